"""End the training of a network between two steps, keep its state, and go on from it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback

from tosica._logging import logger
from tosica.model._checkpoint import restore_history, to_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.pytorch import LightningModule, Trainer

    from tosica.model._interruption import Interruption
    from tosica.model._training_plan import TrainingPlan


class FitControl(Callback):
    """Write checkpoints every few minutes, and end the training after the first Ctrl-C.

    It is put behind the callbacks of users, so that it sees the weights that they leave, and before
    the one that goes back to the best weights.

    Parameters
    ----------
    interruption
        Whether Ctrl-C was pressed.
    write
        Called with the state of the fit to write a checkpoint. By default none is written.
    minutes
        Time between two checkpoints.
    resumed
        State of a fit to go on from, as ``write`` was called with it.
    """

    def __init__(
        self,
        interruption: Interruption,
        write: Callable[[dict[str, Any]], None] | None = None,
        minutes: float = 10.0,
        resumed: dict[str, Any] | None = None,
    ) -> None:
        self._interruption = interruption
        self._write = write
        self._seconds = 60 * minutes
        self._due = 0.0
        self._resumed = resumed
        self._ends_with_epoch = False

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Take the state that the training goes on from, or write the first checkpoint."""
        if self._resumed is not None:
            load_fit(trainer, pl_module, self._resumed)
            self._resumed = None
            self._due = time.monotonic() + self._seconds
        elif self._write is not None:
            # Before hours of training, rather than after them, it is noticed that this is
            # impossible. It also keeps the linear branch, which may have taken long.
            self._keep(trainer, pl_module, between_epochs=True)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Write a checkpoint if it is time."""
        if self._write is not None and time.monotonic() >= self._due:
            self._keep_if_possible(trainer, pl_module, between_epochs=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write a checkpoint if it is time, and end the training if Ctrl-C was pressed."""
        wanted = self._interruption.requested
        if not wanted and (self._write is None or time.monotonic() < self._due):
            return
        # After the last step of an epoch, the loss is still to be reported.
        if batch_idx + 1 >= trainer.num_training_batches:
            return
        if self._write is not None:
            if not _is_between_steps(trainer, batch_idx):
                return
            self._keep_if_possible(trainer, pl_module, between_epochs=False)
        if wanted:
            self._end(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the training if Ctrl-C was pressed in the last step of an epoch."""
        wanted = self._interruption.requested and not trainer.should_stop
        if wanted and trainer.current_epoch + 1 < int(trainer.max_epochs or 0):
            self._ends_with_epoch = True
            self._end(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the last checkpoint, unless the training would have ended here anyhow."""
        if not self._ends_with_epoch:
            return
        if any(each.stopped_epoch for each in trainer.early_stopping_callbacks):
            self._interruption.after = ""
        elif self._write is not None:
            self._keep_if_possible(trainer, pl_module, between_epochs=True)

    def _end(self, trainer: Trainer) -> None:
        total = int(trainer.estimated_stepping_batches)
        self._interruption.after = (
            f"step {trainer.global_step} of {total}, in epoch {trainer.current_epoch + 1} of "
            f"{trainer.max_epochs}"
        )
        trainer.should_stop = True

    def _keep(self, trainer: Trainer, plan: TrainingPlan, *, between_epochs: bool) -> None:
        if self._write is not None and trainer.is_global_zero:
            self._write(fit_state(trainer, plan, between_epochs=between_epochs))
        self._due = time.monotonic() + self._seconds

    def _keep_if_possible(self, trainer: Trainer, plan: TrainingPlan, **kwargs: bool) -> None:
        try:
            self._keep(trainer, plan, **kwargs)
        except OSError as error:
            # A full disk does not end what was computed so far.
            logger.warning("train: goes on without a new checkpoint. %s", error)
            self._due = time.monotonic() + self._seconds


def _is_between_steps(trainer: Trainer, batch_idx: int) -> bool:
    """Whether no gradient is waiting to be applied, and no validation follows this minibatch."""
    n_done, every = batch_idx + 1, trainer.val_check_batch
    if n_done % trainer.accumulate_grad_batches:
        return False
    return trainer.check_val_every_n_epoch is not None and not (
        isinstance(every, int) and n_done % every == 0
    )


def fit_state(trainer: Trainer, plan: TrainingPlan, *, between_epochs: bool) -> dict[str, Any]:
    """State of a fit, in tensors and plain values, of which some are those of the fit itself.

    Parameters
    ----------
    trainer, plan
        What is trained, by whom.
    between_epochs
        Whether no epoch has begun. Otherwise a step has ended in the midst of one.
    """
    callbacks = {}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        try:
            callbacks[callback.state_key] = to_plain(callback.state_dict())
        except TypeError:
            logger.info(
                "train: the checkpoint leaves out the state of the callback %s, which is more than "
                "tensors and plain values",
                type(callback).__name__,
            )
    history = getattr(trainer.logger, "history", None)
    return {
        "loops": _loops(trainer, between_epochs=between_epochs),
        "optimizers": [each.state_dict() for each in trainer.optimizers],
        "schedules": [each.scheduler.state_dict() for each in trainer.lr_scheduler_configs],
        "precision": dict(trainer.precision_plugin.state_dict()),
        "plan": plan.progress(),
        "callbacks": {name: state for name, state in callbacks.items() if state},
        "history": to_plain(history) if isinstance(history, dict) else None,
        "random": random_state(plan.device),
    }


def _loops(trainer: Trainer, *, between_epochs: bool) -> dict[str, Any]:
    """Where Lightning's loops are, as if everything that follows a step or an epoch were over."""
    loops: dict[str, Any] = trainer.fit_loop.state_dict()
    epoch, batch = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    for part in ("total", "current"):
        batch[part] |= {"completed": batch[part]["processed"]}
        n_done = epoch[part]["processed"]
        if between_epochs:
            epoch[part] |= {"ready": n_done, "started": n_done, "completed": n_done}
    if between_epochs:
        # The next epoch begins with its first minibatch.
        loops["state_dict"] = {}
    else:
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
    return loops


def prepare_fit(trainer: Trainer, state: dict[str, Any]) -> None:
    """Set the loops and the logger of a trainer to a state, before it fits."""
    trainer.fit_loop.load_state_dict(state["loops"])
    history = getattr(trainer.logger, "history", None)
    if isinstance(history, dict) and state["history"] is not None:
        # As scvi-tools makes these tables.
        tables = restore_history(state["history"]) or {}
        history.update({name: table.astype(object) for name, table in tables.items()})


def load_fit(trainer: Trainer, plan: TrainingPlan, state: dict[str, Any]) -> None:
    """Set optimizer, schedule, callbacks and random numbers to a state, when a fit starts."""
    for optimizer, of_optimizer in zip(trainer.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(of_optimizer)
    for config, of_schedule in zip(trainer.lr_scheduler_configs, state["schedules"], strict=True):
        config.scheduler.load_state_dict(of_schedule)
    if state["precision"]:
        trainer.precision_plugin.load_state_dict(state["precision"])
    plan.load_progress(state["plan"])
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if callback.state_key in state["callbacks"]:
            callback.load_state_dict(state["callbacks"][callback.state_key])
    set_random_state(state["random"], plan.device)


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """State of the random numbers that a network on a device draws."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Draw on from a state."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
