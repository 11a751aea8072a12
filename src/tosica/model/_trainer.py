"""Make the trainer of the network: its arguments, early stopping and the history of losses."""

from __future__ import annotations

import inspect
import warnings
from numbers import Real
from typing import TYPE_CHECKING, Any

import lightning.pytorch
import numpy as np
import pandas as pd
import scvi.train
import torch
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_only
from scvi import settings

from tosica._validate import Flag
from tosica.model._checkpoint import add_checkpoint
from tosica.model._reference_on_disk import label_shares

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch import Tensor

    from tosica.model._state import TrainingState

TRAINER_ARGUMENTS = {
    *inspect.signature(scvi.train.Trainer).parameters,
    *inspect.signature(lightning.pytorch.Trainer).parameters,
} - {"kwargs"}
_FLAG = Flag()
_EARLY_STOPPING = "early_stopping_"


class KeepBest(Callback):
    """Keep the weights of the epoch with the lowest validation loss, in memory."""

    def __init__(self) -> None:
        self._lowest_loss = float("inf")
        self._weights: dict[str, Tensor] | None = None

    def on_validation_epoch_end(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Copy the weights if they are the best so far."""
        loss = float(trainer.callback_metrics["validation_loss"])
        if loss < self._lowest_loss:
            self._lowest_loss = loss
            self._weights = {
                name: tensor.clone() for name, tensor in pl_module.state_dict().items()
            }

    def state_dict(self) -> dict[str, Any]:
        """Get the best weights and their loss, for a checkpoint."""
        return {"lowest": self._lowest_loss, "weights": self._weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best weights from a checkpoint."""
        self._lowest_loss = state_dict["lowest"]
        self._weights = state_dict["weights"]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go back to the best weights."""
        if self._weights is not None:
            pl_module.load_state_dict(self._weights)


class EarlyStopping(scvi.train.LoudEarlyStopping):  # type: ignore[misc] # no types
    """Stop early as scvi-tools does, without printing and with several processes too."""

    def teardown(self, *_: Any, **__: Any) -> None:
        """Print nothing."""


class HistoryLogger(Logger):
    """Keep losses in memory, in a table for each, as scvi-tools does.

    With several processes, the logger of scvi-tools would write to the working directory.
    """

    name = "history"
    version = 0

    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, pd.DataFrame] = {}

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add a row to the table of each loss."""
        epoch = metrics.pop("epoch", step)
        for name, value in metrics.items():
            if name not in self.history:
                index = pd.Index([], name="epoch")
                self.history[name] = pd.DataFrame(columns=[name], index=index)
            self.history[name].loc[epoch, name] = value

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Log nothing, because the model keeps its parameters."""


def pop_progress_args(trainer_kwargs: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Remove the arguments about bars from those of the trainer, and say whether ours is shown.

    Callbacks of the caller become a list. A bar among the callbacks is shown in the place of ours.
    """
    kwargs = dict(trainer_kwargs)
    kwargs.pop("simple_progress_bar", None)
    is_enabled = kwargs.pop("enable_progress_bar", True)
    _FLAG.check("enable_progress_bar", is_enabled)
    shows_bar = bool(is_enabled) and kwargs.pop("progress_bar_refresh_rate", 1) != 0
    callbacks = kwargs.get("callbacks") or ()
    if isinstance(callbacks, Callback):
        # Lightning's trainer takes a single one, too.
        callbacks = [callbacks]
    kwargs["callbacks"] = list(callbacks)
    if shows_bar and any(isinstance(callback, ProgressBar) for callback in callbacks):
        kwargs |= {"enable_progress_bar": True, "simple_progress_bar": False}
        return False, kwargs
    return shows_bar, kwargs


def make_trainer(state: TrainingState) -> None:
    """Make the training plan and the trainer."""
    model = state.model
    codes = state.data.codes[state.data.train_idx]
    n_cells = np.bincount(codes, minlength=len(model.labels))
    # The network has to learn that a label without cells does not occur.
    shares = torch.from_numpy(label_shares(n_cells.clip(1))).float()
    state.plan = model._training_plan_cls(model.module, state.settings.plan, shares)
    with warnings.catch_warnings():
        # Ours works with several processes, because the loss is averaged over them.
        warnings.filterwarnings(
            "ignore", message="early_stopping was automatically disabled"
        )
        state.runner = model._train_runner_cls(
            model,
            training_plan=state.plan,
            data_splitter=state.data,
            max_epochs=state.n_epochs,
            **_make_trainer_kwargs(state),
        )
    if state.runner.trainer.world_size > 1:
        strategy = state.runner.trainer.strategy
        is_ddp = type(strategy) is DDPStrategy and strategy._start_method == "popen"
        if not is_ddp or state.checkpoint or state.resume or state.blocks is not None:
            raise ValueError(
                "Training on several devices takes strategy='ddp', and neither checkpoint_dir, resume nor datamodule: "
                "pass it without these, or devices=1."
            )
        if settings.seed is None:
            raise ValueError(
                "With strategy='ddp' all processes must draw the same cells: set scvi.settings.seed first."
            )
    if state.checkpoint is not None or state.resumed is not None:
        add_checkpoint(state)


def _make_trainer_kwargs(state: TrainingState) -> dict[str, Any]:
    # Losses are kept once an epoch; lightning warns if it has fewer steps than this.
    kwargs: dict[str, Any] = {"log_every_n_steps": 1, "enable_progress_bar": False}
    if state.data.n_val:
        kwargs["check_val_every_n_epoch"] = 1
    else:
        kwargs["limit_val_batches"] = 0
    kwargs |= state.trainer_kwargs
    if isinstance(kwargs.get("max_time"), Real):
        kwargs["max_time"] = {"seconds": kwargs["max_time"]}
    if state.settings.early_stopping:
        options = {"monitor": "validation_loss", "patience": 10, "warmup_epochs": 0}
        for name in list(kwargs):
            if name.startswith(_EARLY_STOPPING):
                options[name.removeprefix(_EARLY_STOPPING)] = kwargs.pop(name)
        kwargs["callbacks"] = [
            *kwargs["callbacks"],
            EarlyStopping(**options),
            KeepBest(),
        ]
    if kwargs.get("logger") is None and not kwargs.get("log_save_dir"):
        kwargs["logger"] = HistoryLogger()
    if state.resume is not None:
        kwargs["ckpt_path"] = state.resume
    return kwargs
