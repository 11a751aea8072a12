"""How the network learns: the loss, what is hidden from it at each step, and the schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from lightning.pytorch import Callback, LightningModule

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
    from torch import Tensor

    from tosica.module import TOSICAModule


class TrainingPlan(LightningModule):
    """Cross-entropy on cells of which a random part of the genes and gene sets is hidden.

    Parameters
    ----------
    module
        The network.
    lr
        Highest learning rate of the one-cycle schedule.
    weight_decay
        Decay of AdamW, applied to weight matrices and not to biases, norms or the class token.
    gene_dropout
        Share of the genes hidden from each cell at each step.
    token_dropout
        Share of the gene sets hidden from a whole minibatch at each step. What is hidden is not
        computed either.
    modality_dropout
        Where there are several modalities: what the loss of cells that are seen without some of
        them counts, every choice of modalities equally. The loss of whole cells counts the rest.
        Whole cells gain from it too: what either modality says by itself is learnt, where
        otherwise the stronger one would drown the weaker one.
    label_smoothing
        Probability spread evenly over all labels in the target.
    warmup
        Share of the steps in which the learning rate rises.

    Attributes
    ----------
    shifts
        Shape ``(n_shifts, n_genes)``, or ``None``, as at first. A random sum of these is added to
        each cell at each step, so that the network learns to look past them. They go to the device
        with the plan, and are not saved.
    """

    shifts: Tensor | None

    def __init__(
        self,
        module: TOSICAModule,
        *,
        lr: float = 3e-3,
        weight_decay: float = 0.05,
        gene_dropout: float = 0.5,
        token_dropout: float = 0.75,
        modality_dropout: float = 0.9,
        label_smoothing: float = 0.1,
        warmup: float = 0.25,
    ) -> None:
        super().__init__()
        for name, share in {"gene_dropout": gene_dropout, "token_dropout": token_dropout}.items():
            if not 0 <= share < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, not {share}.")
        if not 0 <= warmup <= 1:
            raise ValueError(f"warmup must lie between 0 and 1, not {warmup}.")
        self.module = module
        self.lr = lr
        self.weight_decay = weight_decay
        self.gene_dropout = gene_dropout
        if not 0 <= modality_dropout <= 1:
            raise ValueError(f"modality_dropout must lie between 0 and 1, not {modality_dropout}.")
        self.token_dropout = token_dropout
        self.modality_dropout = modality_dropout
        self.label_smoothing = label_smoothing
        self.warmup = warmup
        self.register_buffer("shifts", None, persistent=False)
        self._loss_sum: Tensor | float = 0.0
        self._n_seen = 0

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """One step on a minibatch."""
        _, _, losses = self.module(
            batch,
            inference_kwargs={
                "gene_dropout": self.gene_dropout,
                "token_keep": 1 - self.token_dropout,
                "modality_dropout": self.modality_dropout,
                "shifts": self.shifts,
            },
            loss_kwargs={"label_smoothing": self.label_smoothing},
        )
        # Lightning's own bookkeeping of a step takes as long as a tenth of a small step.
        self._loss_sum = self._loss_sum + losses.loss.detach() * losses.n_obs_minibatch
        self._n_seen += losses.n_obs_minibatch
        return losses.loss

    def on_train_epoch_end(self) -> None:
        """Report the mean loss over the epoch's cells."""
        self._log("train_loss", self._loss_sum / self._n_seen, self._n_seen, prog_bar=True)
        self._loss_sum, self._n_seen = 0.0, 0

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Loss and accuracy on held-out cells that are seen whole."""
        _, _, losses = self.module(batch)
        hit = (losses.logits.argmax(1) == losses.true_labels).float().mean()
        self._log("validation_loss", losses.loss, losses.n_obs_minibatch, prog_bar=True)
        self._log("validation_accuracy", hit, losses.n_obs_minibatch)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with a one-cycle schedule over all steps."""
        named = list(self.module.named_parameters())
        # The embedding's bias is a table, so the name tells what the shape does not.
        is_matrix = {name: p.ndim > 1 and not name.endswith("bias") for name, p in named}
        matrices = [p for name, p in named if is_matrix[name]]
        others = [p for name, p in named if not is_matrix[name]]
        optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": self.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=self.lr,
            fused=self.device.type in ("cpu", "cuda"),
        )
        n_steps = int(self.trainer.estimated_stepping_batches)
        # torch divides by the steps of the rise less one.
        warmup = 2 / n_steps if self.warmup * n_steps == 1 else self.warmup
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.lr, total_steps=n_steps, pct_start=min(warmup, 1.0)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def _log(
        self, name: str, value: Tensor | float, n_cells: int, *, prog_bar: bool = False
    ) -> None:
        self.log(name, value, on_step=False, on_epoch=True, prog_bar=prog_bar, batch_size=n_cells)


class KeepBest(Callback):
    """Keep the weights of the epoch with the lowest validation loss, in memory."""

    def __init__(self) -> None:
        self._lowest = float("inf")
        self._weights: dict[str, Tensor] | None = None

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Copy the weights if they are the best so far."""
        loss = float(trainer.callback_metrics["validation_loss"])
        if loss < self._lowest:
            self._lowest = loss
            self._weights = {k: v.clone() for k, v in pl_module.state_dict().items()}

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go back to the best weights."""
        if self._weights is not None:
            pl_module.load_state_dict(self._weights)
