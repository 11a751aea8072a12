"""The training plan of the network: settings of dropout and loss, optimizer and schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule
from torch.optim.lr_scheduler import OneCycleLR

from tosica._text import only_known
from tosica._validate import Fraction, InstanceOf, Number
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
    from torch import Tensor
    from tqdm.auto import tqdm

    from tosica.module import TOSICAModule


@dataclass(frozen=True)
class TrainingPlanConfig:
    """Settings of a training; ``plan_kwargs`` of :meth:`tosica.TOSICA.train`.

    Parameters
    ----------
    lr
        Highest learning rate of the one-cycle schedule.
    weight_decay
        Decay of AdamW, applied to weight matrices and not to biases, norms or the class token.
    gene_dropout
        Share of the genes hidden from each cell at each step, but for ``complete_cells``.
    complete_cells
        Share of the cells whose genes are all seen. A network that never sees a complete cell learns what
        goes with hidden genes, and the longer it is trained, the worse it labels complete cells.
    token_dropout
        Share of the gene sets hidden from a whole minibatch at each step. They are not computed.
    modality_dropout
        With several modalities: weight, in the loss, of cells that lack some of them; every choice
        of modalities has the same weight. Complete cells have the rest. The network then learns
        from each modality alone as well, so that the stronger one does not drown the weaker one.
    label_smoothing
        Probability spread evenly over all labels in the target.
    warmup
        Share of the steps in which the learning rate rises.
    """

    lr: float = 3e-3
    weight_decay: float = 0.05
    gene_dropout: float = 0.5
    complete_cells: float = 0.25
    token_dropout: float = 0.75
    modality_dropout: float = 0.9
    label_smoothing: float = 0.1
    warmup: float = 0.25


_PLAN_KWARGS = InstanceOf("a dict, such as {'lr': 0.003}", dict)
_SETTINGS = {
    "lr": Number(above=0),
    "weight_decay": Number(least=0),
    "gene_dropout": Fraction(one=False),
    "complete_cells": Fraction(),
    "token_dropout": Fraction(one=False),
    "modality_dropout": Fraction(),
    "label_smoothing": Fraction(one=False),
    "warmup": Fraction(),
}
# Losses are logged as their mean over the cells of an epoch, in all processes.
_PER_EPOCH: dict[str, Any] = {"on_step": False, "on_epoch": True, "sync_dist": True}


def make_config(plan_kwargs: dict[str, Any] | None) -> TrainingPlanConfig:
    """Make the settings of a training from ``plan_kwargs``.

    Raises
    ------
    TypeError
        If it is no dict, names a setting that does not exist, or a value is no number.
    ValueError
        If a value is out of range.
    """
    if plan_kwargs is None:
        return TrainingPlanConfig()
    _PLAN_KWARGS.check("plan_kwargs", plan_kwargs)
    for name, value in plan_kwargs.items():
        if name not in _SETTINGS:
            raise TypeError(f"plan_kwargs has no {name!r}{only_known(name, _SETTINGS)}")
        _SETTINGS[name].check(name, value)
    return TrainingPlanConfig(**plan_kwargs)


class TrainingPlan(LightningModule):
    """Minimize the cross-entropy of cells with a random part of genes and gene sets hidden.

    Parameters
    ----------
    module
        The network.
    config
        Settings.
    label_shares
        Share of each label in the draws, ``(n_labels,)``, by default the same. It moves to the
        device with the plan, and is not saved.
    """

    label_shares: Tensor | None

    def __init__(
        self,
        module: TOSICAModule,
        config: TrainingPlanConfig | None = None,
        label_shares: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.config = config or TrainingPlanConfig()
        self.register_buffer("label_shares", label_shares, persistent=False)
        # The bar that is drawn while the network is trained.
        self.progress: tqdm | None = None
        self._loss_sum: Tensor | float = 0.0
        self._n_cells = 0

    def on_train_start(self) -> None:
        """Let each process of several hide other genes."""
        if self.trainer.world_size > 1:
            seed = int(torch.randint(2**31, ()))
            torch.manual_seed(seed + self.trainer.global_rank)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Compute the loss of a minibatch."""
        _, _, losses = self.module(
            batch,
            inference_kwargs={
                "gene_dropout": self.config.gene_dropout,
                "complete_cells": self.config.complete_cells,
                "token_keep": 1 - self.config.token_dropout,
                "modality_dropout": self.config.modality_dropout,
            },
            loss_kwargs={
                "label_smoothing": self.config.label_smoothing,
                "label_shares": self.label_shares,
            },
        )
        # Lightning's own bookkeeping of a step takes as long as a tenth of a small step.
        self._loss_sum = self._loss_sum + losses.loss.detach() * losses.n_obs_minibatch
        self._n_cells += losses.n_obs_minibatch
        if self.progress is not None:
            epoch = f"{self.current_epoch + 1}/{self.trainer.max_epochs}"
            self.progress.set_description(
                f"train: network, epoch {epoch}", refresh=False
            )
            n_cells = len(batch[REGISTRY_KEYS.X_KEY])
            self.progress.update(n_cells * self.trainer.world_size)
        return losses.loss

    def on_train_epoch_end(self) -> None:
        """Log the mean loss over the epoch's cells."""
        if self._n_cells:  # Ctrl-C may end an epoch before its first step.
            self.log(
                "train_loss",
                self._loss_sum / self._n_cells,
                batch_size=self._n_cells,
                prog_bar=True,
                **_PER_EPOCH,
            )
        self._loss_sum = 0.0
        self._n_cells = 0

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Log loss and accuracy on complete held-out cells."""
        n_cells = len(batch[REGISTRY_KEYS.X_KEY])
        loss = torch.zeros((), device=self.device)
        accuracy = loss
        # With several processes, a minibatch may be empty, and has to be logged all the same.
        if n_cells:
            _, _, losses = self.module(batch)
            loss = losses.loss
            is_right = losses.logits.argmax(1) == losses.true_labels
            accuracy = is_right.float().mean()
        self.log(
            "validation_loss", loss, batch_size=n_cells, prog_bar=True, **_PER_EPOCH
        )
        self.log("validation_accuracy", accuracy, batch_size=n_cells, **_PER_EPOCH)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Make AdamW with a one-cycle schedule over all steps."""
        n_steps = int(self.trainer.estimated_stepping_batches)
        optimizer, schedule = make_optimizer(self.module, self.config, n_steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def make_optimizer(
    module: TOSICAModule, config: TrainingPlanConfig, n_steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Make AdamW and a one-cycle schedule over all steps."""
    matrices = []
    vectors = []
    for name, parameter in module.named_parameters():
        # The embedding's bias is a table.
        if parameter.ndim > 1 and not name.endswith("bias"):
            matrices.append(parameter)
        else:
            vectors.append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=config.lr,
        fused=module.device.type in ("cpu", "cuda"),
    )
    warmup = config.warmup
    if warmup * n_steps == 1:
        # torch divides by the steps of the rise less one. One step alone has no rise.
        warmup = 2 / n_steps if n_steps > 1 else 0.0
    schedule = OneCycleLR(
        optimizer, max_lr=config.lr, total_steps=n_steps, pct_start=min(warmup, 1.0)
    )
    return optimizer, schedule
