"""How the network is trained: loss, dropout and optimizer; the trainer, its checkpoints, Ctrl-C."""

from __future__ import annotations

import hashlib
import inspect
import signal
import threading
import time
import warnings
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch
import numpy as np
import pandas as pd
import scvi.train
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.callbacks import ProgressBar as LightningProgressBar
from lightning.pytorch.strategies import DDPStrategy
from scvi import settings
from scvi.train._callbacks import LoudEarlyStopping
from scvi.train._logger import SimpleLogger
from tqdm.auto import tqdm

from tosica._checks import Flag, Fraction, InstanceOf, Number
from tosica._settings import logger
from tosica._text import format_thousands, only_known
from tosica.model._reference_on_disk import label_shares
from tosica.model._save_load import to_plain
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator

    # The state of a training, whose module imports this one.
    from typing import Any as TrainingState

    from lightning.pytorch import Trainer
    from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
    from torch import Tensor

    from tosica.model._setup import SetupMixin
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


_GIVEN = InstanceOf("a dict, such as {'lr': 0.003}", dict)
# How losses are logged: their mean over the cells of an epoch, in all processes.
_OF_EPOCH: dict[str, Any] = {"on_step": False, "on_epoch": True, "sync_dist": True}


def make_config(plan_kwargs: dict[str, Any] | None) -> TrainingPlanConfig:
    """Make the settings of a training from ``plan_kwargs``.

    Raises
    ------
    TypeError
        If it is no dict, names a setting that does not exist, or a value is no number.
    ValueError
        If a value is out of range.
    """
    given = {} if plan_kwargs is None else plan_kwargs
    _GIVEN.check("plan_kwargs", given)
    for name in given:
        if name not in _SETTINGS:
            raise TypeError(f"plan_kwargs has no {name!r}{only_known(name, _SETTINGS)}")
        _SETTINGS[name].check(name, given[name])
    return TrainingPlanConfig(**given)


class TrainingPlan(LightningModule):
    """Minimize the cross-entropy of cells with a random part of genes and gene sets hidden.

    Parameters
    ----------
    module
        The network.
    config
        Settings.
    label_shares
        Share of each label in the draws, ``(n_labels,)``, by default the same.
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
        # What is shown of the training, while it runs.
        self.progress: tqdm | None = None
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
        """Report the mean loss over the epoch's cells."""
        if self._n_cells:  # Ctrl-C may end an epoch before its first step.
            self.log(
                "train_loss",
                self._loss_sum / self._n_cells,
                batch_size=self._n_cells,
                prog_bar=True,
                **_OF_EPOCH,
            )
        self._loss_sum, self._n_cells = 0.0, 0

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Loss and accuracy on complete held-out cells."""
        n_cells = len(next(iter(batch.values())))
        loss = hit = torch.zeros((), device=self.device)
        # One of several processes may have no share, but its turn to report.
        if n_cells:
            _, _, losses = self.module(batch)
            loss, hit = (
                losses.loss,
                (losses.logits.argmax(1) == losses.true_labels).float().mean(),
            )
        self.log(
            "validation_loss", loss, batch_size=n_cells, prog_bar=True, **_OF_EPOCH
        )
        self.log("validation_accuracy", hit, batch_size=n_cells, **_OF_EPOCH)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with a one-cycle schedule over all steps."""
        optimizer, schedule = make_optimizer(
            self.module, self.config, int(self.trainer.estimated_stepping_batches)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def make_optimizer(
    module: TOSICAModule, config: TrainingPlanConfig, n_steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Make AdamW and a one-cycle schedule over all steps."""
    named = list(module.named_parameters())
    # The embedding's bias is a table, so the name tells what the shape does not.
    is_matrix = {name: p.ndim > 1 and not name.endswith("bias") for name, p in named}
    matrices = [p for name, p in named if is_matrix[name]]
    others = [p for name, p in named if not is_matrix[name]]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=config.lr,
        fused=module.device.type in ("cpu", "cuda"),
    )
    # torch divides by the steps of the rise less one.
    warmup = 2 / n_steps if config.warmup * n_steps == 1 else config.warmup
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=config.lr, total_steps=n_steps, pct_start=min(warmup, 1.0)
    )
    return optimizer, schedule


class KeepBest(Callback):
    """Keep the weights of the epoch with the lowest validation loss, in memory."""

    def __init__(self) -> None:
        self._lowest = float("inf")
        self._weights: dict[str, Tensor] | None = None

    def on_validation_epoch_end(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Copy the weights if they are the best so far."""
        loss = float(trainer.callback_metrics["validation_loss"])
        if loss < self._lowest:
            self._lowest = loss
            self._weights = {k: v.clone() for k, v in pl_module.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """Get the best weights and their loss, for a checkpoint."""
        return {"lowest": self._lowest, "weights": self._weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best weights from a checkpoint."""
        self._lowest, self._weights = state_dict["lowest"], state_dict["weights"]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go back to the best weights."""
        if self._weights is not None:
            pl_module.load_state_dict(self._weights)


class EarlyStopping(LoudEarlyStopping):  # type: ignore[misc] # scvi-tools has no types
    """Stop early as scvi-tools does, without printing and with several processes too."""

    def teardown(self, *_: Any, **__: Any) -> None:
        """Print nothing."""


# ------------------------------------------------------------------------------- making the trainer

TRAINER_ARGUMENTS = {
    *inspect.signature(scvi.train.Trainer).parameters,
    *inspect.signature(lightning.pytorch.Trainer).parameters,
} - {"kwargs"}


_FLAG = Flag()


def pop_progress_args(trainer_kwargs: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Remove the arguments about bars from those of the trainer, and say whether ours is shown.

    A bar among the callbacks is shown in the place of ours.
    """
    rest = dict(trainer_kwargs)
    rest.pop("simple_progress_bar", None)
    wanted = rest.pop("enable_progress_bar", True)
    _FLAG.check("enable_progress_bar", wanted)
    wanted = bool(wanted) and rest.pop("progress_bar_refresh_rate", 1) != 0
    others = [
        c for c in rest.get("callbacks") or () if isinstance(c, LightningProgressBar)
    ]
    if others and wanted:
        return False, rest | {"enable_progress_bar": True, "simple_progress_bar": False}
    return wanted, rest


CHECKPOINT_FILE = "training.pt"
# Key of our own part of Lightning's checkpoint.
_OURS = "tosica"
_STOPPING = "early_stopping_"


def pop_early_stopping(trainer_kwargs: dict[str, Any]) -> EarlyStopping:
    """Remove the arguments of early stopping from those of the trainer, and make its callback."""
    names = [name for name in trainer_kwargs if name.startswith(_STOPPING)]
    given = {name.removeprefix(_STOPPING): trainer_kwargs.pop(name) for name in names}
    defaults = {"monitor": "validation_loss", "patience": 10, "warmup_epochs": 0}
    return EarlyStopping(**defaults | given)


def make_trainer(state: TrainingState) -> None:
    """Make the training plan and the trainer, which refuses wrong arguments and what processes cannot do together."""
    n_cells = np.bincount(
        state.data.codes[state.data.train_idx], minlength=len(state.model.labels)
    )
    # A label without cells has to be learnt not to occur.
    shares = torch.from_numpy(label_shares(n_cells.clip(1))).float()
    state.plan = state.model._training_plan_cls(
        state.model.module, state.settings.plan, shares
    )
    # Losses are kept once an epoch; lightning warns if it has fewer steps than this.
    kwargs: dict[str, Any] = {"log_every_n_steps": 1, "enable_progress_bar": False}
    kwargs |= (
        {"check_val_every_n_epoch": 1} if state.data.n_val else {"limit_val_batches": 0}
    )
    kwargs |= state.trainer_kwargs
    if isinstance(kwargs.get("max_time"), Real):
        kwargs["max_time"] = {"seconds": kwargs["max_time"]}
    kwargs["callbacks"] = list(kwargs.get("callbacks") or ())
    if state.settings.early_stopping:
        kwargs["callbacks"] += [pop_early_stopping(kwargs), KeepBest()]
    if kwargs.get("logger") is None and not kwargs.get("log_save_dir"):
        # By default scvi-tools would write to the working directory with strategy="ddp".
        kwargs["logger"] = SimpleLogger()
    if state.resume is not None:
        kwargs["ckpt_path"] = state.resume
    with warnings.catch_warnings():
        # It is not: the loss is the mean over all processes, and the callback is ours.
        warnings.filterwarnings(
            "ignore", message="early_stopping was automatically disabled"
        )
        state.runner = state.model._train_runner_cls(
            state.model,
            training_plan=state.plan,
            data_splitter=state.data,
            max_epochs=state.n_epochs,
            **kwargs,
        )
    trainer = state.runner.trainer
    if trainer.world_size > 1:
        is_ddp = (
            type(trainer.strategy) is DDPStrategy
            and trainer.strategy._start_method == "popen"
        )
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


# ------------------------------------------------------------------------------- checkpoints


class EpochCheckpoint(Checkpoint):
    """Write a checkpoint after each epoch; restore random numbers and history from one.

    Parameters
    ----------
    path
        The file, or ``None`` to write none.
    start
        What the training began with, as :func:`describe_start` returns it.
    """

    def __init__(self, path: Path | None, start: dict[str, Any]) -> None:
        self.path = path
        self._start = start

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file, which is replaced whole."""
        # A training that goes on begins with a new epoch, so this one must not have been cut short.
        if self.path is None or trainer.should_stop:
            return
        try:
            trainer.save_checkpoint(self.path)
        except OSError as error:
            # A full disk does not end what was computed so far.
            logger.warning("train: goes on without a new checkpoint (%s)", error)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add what Lightning leaves out."""
        random = {"cpu": torch.get_rng_state()}
        if pl_module.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(pl_module.device)
        tables = getattr(trainer.logger, "history", {})
        history = {name: table[name].to_dict() for name, table in tables.items()}
        # Lightning logs it after this.
        loss = float(trainer.callback_metrics["train_loss"])
        history.setdefault("train_loss", {})[trainer.current_epoch] = loss
        checkpoint[_OURS] = self._start | {"random": random, "history": history}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore what Lightning leaves out."""
        ours = checkpoint[_OURS]
        torch.set_rng_state(ours["random"]["cpu"])
        if pl_module.device.type == "cuda" and "cuda" in ours["random"]:
            torch.cuda.set_rng_state(ours["random"]["cuda"], pl_module.device)
        history = getattr(trainer.logger, "history", {})
        for name, values in ours["history"].items():
            index = pd.Index(list(values), name="epoch")
            history[name] = pd.DataFrame(
                {name: list(values.values())}, index, dtype=object
            )


class SafeCheckpointIO(TorchCheckpointIO):
    """Read checkpoints as tensors and plain values, without executing anything."""

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        """Read a checkpoint to the CPU; Lightning moves it."""
        return dict(torch.load(path, map_location="cpu", weights_only=True))


def find_checkpoint(path: str | Path) -> Path:
    """Find the checkpoint that ``resume`` names: a file, or the one in a folder."""
    path = Path(path)
    return path / CHECKPOINT_FILE if path.is_dir() else path


def read_start(path: Path) -> dict[str, Any]:
    """Read what the training of a checkpoint began with.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is no checkpoint of a training, damaged, or holds more than plain values.
    """
    try:
        return dict(SafeCheckpointIO().load_checkpoint(path)[_OURS])
    except FileNotFoundError:
        raise
    # torch raises many kinds of errors for what it cannot read.
    except Exception as error:
        raise ValueError(
            f"{str(path)!r} is no checkpoint of this version, or damaged: train anew, without resume."
        ) from error


def add_checkpoint(state: TrainingState) -> None:
    """Let the trainer write checkpoints or resume from one, which must be of the same training."""
    start, trainer = describe_start(state), state.runner.trainer
    if state.resumed is not None:
        before, now = state.resumed["arguments"], start["arguments"]
        changed = [name for name in now if before.get(name) != now[name]]
        if changed:
            raise ValueError(
                f"The checkpoint was written with another {changed[0]}: pass the same, or no resume."
            )
    # Not among the arguments: scvi-tools would make one of its own as well.
    trainer.callbacks.append(EpochCheckpoint(state.checkpoint, start))
    trainer.strategy.checkpoint_io = SafeCheckpointIO()
    if state.checkpoint is not None:
        state.checkpoint.parent.mkdir(parents=True, exist_ok=True)


def describe_start(state: TrainingState) -> dict[str, Any]:
    """Describe what decides a training, besides its random numbers, in plain values."""
    data, model = state.data, state.model
    described = hashlib.sha256()
    for part in (
        model.labels,
        model.tokens.var_names.tolist(),
        model.gene_sets,
        len(data.codes),
    ):
        described.update(repr(part).encode())
    for codes in (data.codes, data.strata):
        described.update(codes.tobytes())
    arguments = asdict(state.settings) | {
        "max_epochs": state.n_epochs,
        "seed": settings.seed,
    }
    return {
        "arguments": to_plain(
            {"model or reference": described.hexdigest()} | arguments
        ),
        "training": torch.from_numpy(data.train_idx),
        "validation": torch.from_numpy(data.val_idx),
        "left_out": torch.from_numpy(data.left_out),
        "draws": data.seed,
    }


# ------------------------------------------------------------------------------- running it


@contextmanager
def catch_interrupt(trainer: Trainer) -> Iterator[list[int]]:
    """End a fit after its current step on the first Ctrl-C, and raise on the second.

    Only in the main thread and in one process, and unless Ctrl-C does something else already.

    Yields
    ------
    A list that holds something once Ctrl-C was pressed.
    """
    pressed: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()

    def stop(number: int, *_: object) -> None:
        pressed.append(number)
        trainer.should_stop = True
        signal.signal(signal.SIGINT, before)

    if (
        in_main_thread
        and trainer.world_size == 1
        and before is signal.default_int_handler
    ):
        signal.signal(signal.SIGINT, stop)
    try:
        yield pressed
    except SystemExit as end:
        # Lightning turns KeyboardInterrupt into the end of the process.
        if isinstance(end.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    finally:
        # Lightning also leaves Ctrl-C ignored.
        if in_main_thread and before is not None:
            signal.signal(signal.SIGINT, before)


def describe_step(trainer: Trainer) -> str:
    """Say after which step a trainer was ended."""
    return f"step {trainer.global_step}, in epoch {trainer.current_epoch} of {trainer.max_epochs}"


@contextmanager
def restore_on_failure(model: SetupMixin) -> Iterator[None]:
    """Restore weights and attributes if the block raises, also on Ctrl-C.

    The weights are in memory twice meanwhile.
    """
    module, before, attributes = model.module, deepcopy(model.module), dict(vars(model))
    if isinstance(model.history_, dict):
        # scvi-tools adds the rows of a further training to the dict itself.
        attributes["history_"] = dict(model.history_)
    try:
        yield
    except BaseException:
        # Lightning leaves the model of a GPU on the CPU.
        module.to(before.device).load_state_dict(before.state_dict())
        module.train(before.training)
        model.__dict__.clear()
        model.__dict__.update(attributes)
        logger.info("train: did not end, and the model is as it was before")
        raise


def log_end(state: TrainingState) -> None:
    """Say how long the training was and how good its model is, or raise if Ctrl-C ended it."""
    model, trainer = state.model, state.runner.trainer
    if state.ended_early:
        resume = ""
        if state.checkpoint is not None and state.checkpoint.exists():
            resume = f"; to go on, call train with the same arguments and resume={str(state.checkpoint)!r}"
        # No warning, because the command line would show it: it saves no such model.
        logger.info(
            "train: ended early, after %s: the model can be used and saved%s",
            state.ended_early,
            resume,
        )
        raise KeyboardInterrupt
    if not trainer.is_global_zero:
        return
    n_epochs, held_out = trainer.current_epoch, ""
    if model.training_.held_out_codes is not None:
        truth, best = model.training_.held_out_codes
        held_out = f"; validation accuracy {(truth == best).mean():.1%} ({format_thousands(len(truth))} cells)"
    logger.info(
        "train: %s%s on %s cells in %s%s",
        f"{n_epochs} epoch{'s' * (n_epochs != 1)}",
        f" of {state.n_epochs} (stopped early)" if n_epochs < state.n_epochs else "",
        format_thousands(state.data.n_train + state.data.n_val),
        tqdm.format_interval(time.monotonic() - state.began),
        held_out,
    )
