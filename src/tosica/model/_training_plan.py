"""Training plan of the network: loss, dropout of genes and gene sets, optimizer, schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule

from tosica._checks import Fraction, InstanceOf, Number, only_known

if TYPE_CHECKING:
    from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
    from torch import Tensor

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
        Share of the genes hidden from each cell at each step.
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

    Raises
    ------
    TypeError, ValueError
        If a value is no number, or out of range.
    """

    lr: float = 3e-3
    weight_decay: float = 0.05
    gene_dropout: float = 0.5
    token_dropout: float = 0.75
    modality_dropout: float = 0.9
    label_smoothing: float = 0.1
    warmup: float = 0.25

    def __post_init__(self) -> None:
        for name, constraint in _SETTINGS.items():
            constraint.check(name, getattr(self, name))


_SETTINGS = {
    "lr": Number(above=0),
    "weight_decay": Number(least=0),
    "gene_dropout": Fraction(one=False),
    "token_dropout": Fraction(one=False),
    "modality_dropout": Fraction(),
    "label_smoothing": Fraction(one=False),
    "warmup": Fraction(),
}


_GIVEN = InstanceOf("a dict, such as {'lr': 0.003}", dict)
# How losses are logged: their mean over the cells of an epoch, in all processes.
_OF_EPOCH: dict[str, Any] = {"on_step": False, "on_epoch": True, "sync_dist": True}


def make_config(plan_kwargs: dict[str, Any] | None) -> TrainingPlanConfig:
    """Make the settings of a training from ``plan_kwargs``.

    Raises
    ------
    TypeError
        If it is no dict, or names a setting that does not exist.
    """
    given = {} if plan_kwargs is None else plan_kwargs
    _GIVEN.check("plan_kwargs", given)
    for name in given:
        if name not in _SETTINGS:
            raise TypeError(f"plan_kwargs has no {name!r}{only_known(name, _SETTINGS)}")
    return TrainingPlanConfig(**given)


class TrainingPlan(LightningModule):
    """Minimize the cross-entropy of cells with a random part of genes and gene sets hidden.

    Parameters
    ----------
    module
        The network.
    config
        Settings.
    batch_directions
        Shape ``(n_directions, n_genes)``. A random sum of these is added to each cell at each step,
        so that the network learns to ignore them. They move to the device with the plan, and are
        not saved.
    """

    batch_directions: Tensor | None

    def __init__(
        self, module: TOSICAModule, config: TrainingPlanConfig | None = None, batch_directions: Tensor | None = None
    ) -> None:
        super().__init__()
        self.module = module
        self.config = config or TrainingPlanConfig()
        self.register_buffer("batch_directions", batch_directions, persistent=False)
        self._loss_sum: Tensor | float = 0.0
        self._n_cells = 0

    def on_train_start(self) -> None:
        """Let each process of several hide other genes."""
        if self.trainer.world_size > 1:
            drawn = int(torch.randint(2**31, ()))
            torch.manual_seed(drawn + self.trainer.global_rank)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """One step on a minibatch."""
        _, _, losses = self.module(
            batch,
            inference_kwargs={
                "gene_dropout": self.config.gene_dropout,
                "token_keep": 1 - self.config.token_dropout,
                "modality_dropout": self.config.modality_dropout,
                "batch_directions": self.batch_directions,
            },
            loss_kwargs={"label_smoothing": self.config.label_smoothing},
        )
        # Lightning's own bookkeeping of a step takes as long as a tenth of a small step.
        self._loss_sum = self._loss_sum + losses.loss.detach() * losses.n_obs_minibatch
        self._n_cells += losses.n_obs_minibatch
        return losses.loss

    def on_train_epoch_end(self) -> None:
        """Report the mean loss over the epoch's cells."""
        self.log("train_loss", self._loss_sum / self._n_cells, batch_size=self._n_cells, prog_bar=True, **_OF_EPOCH)
        self._loss_sum, self._n_cells = 0.0, 0

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Loss and accuracy on complete held-out cells."""
        n_cells = len(next(iter(batch.values())))
        loss = hit = torch.zeros((), device=self.device)
        # One of several processes may have no share, but its turn to report.
        if n_cells:
            _, _, losses = self.module(batch)
            loss, hit = losses.loss, (losses.logits.argmax(1) == losses.true_labels).float().mean()
        self.log("validation_loss", loss, batch_size=n_cells, prog_bar=True, **_OF_EPOCH)
        self.log("validation_accuracy", hit, batch_size=n_cells, **_OF_EPOCH)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with a one-cycle schedule over all steps."""
        named = list(self.module.named_parameters())
        # The embedding's bias is a table, so the name tells what the shape does not.
        is_matrix = {name: p.ndim > 1 and not name.endswith("bias") for name, p in named}
        matrices = [p for name, p in named if is_matrix[name]]
        others = [p for name, p in named if not is_matrix[name]]
        optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": self.config.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=self.config.lr,
            fused=self.device.type in ("cpu", "cuda"),
        )
        n_steps = int(self.trainer.estimated_stepping_batches)
        # torch divides by the steps of the rise less one.
        warmup = 2 / n_steps if self.config.warmup * n_steps == 1 else self.config.warmup
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.config.lr, total_steps=n_steps, pct_start=min(warmup, 1.0)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
