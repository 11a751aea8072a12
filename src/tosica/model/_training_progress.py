"""The progress bar of a training, from the check of the labels to the last fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ProgressBar as LightningProgressBar
from lightning.pytorch.utilities import rank_zero_only

from tosica._progress import ProgressBar
from tosica._validation import check_flags
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

# Arguments of the trainer that concern its own bars.
_OF_BARS = ("enable_progress_bar", "progress_bar_refresh_rate", "simple_progress_bar")


class TrainingProgress(ProgressBar):
    """One bar for all phases of a training; its share is that of the cells that are drawn.

    In several processes, the first one shows it.

    Parameters
    ----------
    enabled
        Whether there is a bar.
    """

    total: int

    def __init__(self, *, enabled: bool = True) -> None:
        is_first = getattr(rank_zero_only, "rank", 0) == 0
        super().__init__("train", enabled=enabled and is_first)
        # What follows the network: the linear branch is fitted again if the network is.
        self.seconds_after = 0.0

    def begin(self, phase: str) -> None:
        """Name the phase that begins."""
        self.restart(f"train: {phase}")


class ShowProgress(Callback):
    """Count the cells of each step in a bar.

    Parameters
    ----------
    progress
        The bar.
    phase
        What is trained: ``"network"`` or ``"refit"``.
    n_before
        Cells that the phases before have drawn.
    batch_size
        Cells in a minibatch.
    compiled
        Whether the first step compiles the network.
    """

    def __init__(
        self,
        progress: TrainingProgress,
        phase: str,
        *,
        n_before: int,
        batch_size: int,
        compiled: bool,
    ) -> None:
        self._progress = progress
        self._phase = phase
        self._n_before = n_before
        self._batch_size = batch_size
        self._compiles = compiled

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the phase, which an earlier training may have begun."""
        if trainer.is_global_zero:
            n_steps = trainer.fit_loop.total_batch_idx + 1
            self._progress.n_done = self._n_before + n_steps * self._batch_size
            self._progress.begin("compiling" if self._compiles else self._named(trainer))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Name the epoch."""
        if not self._compiles:
            self._progress.description = f"train: {self._named(trainer)}"

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: dict[str, Any],
        batch_idx: int,
    ) -> None:
        """Count the cells of a minibatch, and those of the other processes."""
        if not trainer.is_global_zero:
            return
        seconds_after = self._progress.seconds_after
        n_cells = len(batch[REGISTRY_KEYS.X_KEY]) * trainer.world_size
        self._progress.advance(n_cells, seconds_after=seconds_after)
        if self._compiles:
            # Its speed says nothing about that of the others.
            self._compiles = False
            self._progress.begin(self._named(trainer))

    def _named(self, trainer: Trainer) -> str:
        return f"{self._phase}, epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"


def take_bar(trainer_kwargs: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Decide whether our bar is shown, and switch off those of Lightning and scvi-tools.

    Parameters
    ----------
    trainer_kwargs
        Arguments of the trainer.

    Returns
    -------
    Whether our bar is shown, and the arguments as the trainer is to get them. A bar that is among
    the callbacks is shown in the place of ours.

    Raises
    ------
    TypeError
        If ``enable_progress_bar`` is neither true nor false.
    """
    if "enable_progress_bar" in trainer_kwargs:
        check_flags(enable_progress_bar=trainer_kwargs["enable_progress_bar"])
    rest = {name: value for name, value in trainer_kwargs.items() if name not in _OF_BARS}
    wanted = bool(trainer_kwargs.get("enable_progress_bar", True))
    wanted = wanted and trainer_kwargs.get("progress_bar_refresh_rate", 1) != 0
    others = [c for c in rest.get("callbacks") or () if isinstance(c, LightningProgressBar)]
    if others and wanted:
        return False, rest | {"enable_progress_bar": True, "simple_progress_bar": False}
    return wanted, rest | {"enable_progress_bar": False}
