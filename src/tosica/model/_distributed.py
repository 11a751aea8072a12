"""Training in several processes, one for each device."""

from __future__ import annotations

import pickle
import warnings
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, Strategy
from scvi import settings
from scvi.train import TrainRunner
from scvi.train._callbacks import LoudEarlyStopping
from scvi.train._logger import SimpleLogger

from tosica._parallel import thread_pool

if TYPE_CHECKING:
    from tosica.model._registry_mixin import RegistryMixin

# Attributes of a model that are the same in all processes when a training ends. Only the first
# process has a history.
_SHARED = (
    "history_",
    "held_out_probabilities_",
    "held_out_codes_",
    "novelty_statistics_",
    "mislabeled_indices_",
)
_EARLY_STOPPING = ("monitor", "min_delta", "patience", "warmup_epochs", "mode")


class Runner(TrainRunner):  # type: ignore[misc] # scvi-tools has no types
    """Train in one process or in several.

    scvi-tools turns early stopping off if there are several processes, because its losses are those
    of one process. Ours are means over all of them.

    Raises
    ------
    ValueError
        If processes cannot train one model together.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        strategy = kwargs.get("strategy")
        named = isinstance(strategy, str) and "ddp" in strategy
        if (named or isinstance(strategy, DDPStrategy)) and not kwargs.get("log_save_dir"):
            # By default scvi-tools would write to the working directory.
            kwargs["logger"] = kwargs.get("logger") or SimpleLogger()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="early_stopping was automatically disabled")
            super().__init__(*args, **kwargs)
        if kwargs.get("early_stopping"):
            defaults = {"min_delta": 0.0, "patience": 45, "warmup_epochs": 0, "mode": "min"}
            given = {n: kwargs.get(f"early_stopping_{n}", defaults.get(n)) for n in _EARLY_STOPPING}
            if self.trainer.early_stopping_callback is None:
                self.trainer.callbacks.insert(0, LoudEarlyStopping(**given))
            self.trainer.callbacks[:] = [
                _EarlyStopping(**given) if type(callback) is LoudEarlyStopping else callback
                for callback in self.trainer.callbacks
            ]
        _check_strategy(self.trainer, self.model)
        if self.trainer.world_size > 1:
            self.trainer.callbacks.append(_OwnProcess())
        self._handed_back: Path | None = None

    def __call__(self) -> None:
        """Train, and take over what child processes did."""
        trainer = self.trainer
        if trainer.world_size == 1 or not starts_children(trainer):
            super().__call__()
            return
        with TemporaryDirectory() as folder:
            self._handed_back = Path(folder) / "training.pkl"
            trainer.callbacks.append(_HandBack(self._handed_back))
            super().__call__()

    def _update_history(self) -> None:
        if self._handed_back is not None and self._handed_back.exists():
            found = pickle.loads(self._handed_back.read_bytes())
            # By this the refit knows how long the training was.
            self.trainer.fit_loop.epoch_progress.current.completed = found["epochs"]
            if isinstance(self.trainer.logger, SimpleLogger):
                self.trainer.logger.experiment.data = found["history"]
        super()._update_history()


class _EarlyStopping(LoudEarlyStopping):  # type: ignore[misc] # scvi-tools has no types
    """Early stopping that prints nothing: the last line of the training says it."""

    def teardown(self, *_: Any, **__: Any) -> None:
        """Print nothing."""


class _HandBack(Callback):
    """Write what the first child process knows to a file that the parent reads."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            history = getattr(trainer.logger, "history", {})
            found = {"epochs": trainer.current_epoch, "history": history}
            self._path.write_bytes(pickle.dumps(found))


class _OwnProcess(Callback):
    """Prepare a process that trains beside others: threads, and random numbers of its own."""

    def __init__(self) -> None:
        self._threads = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open a pool of threads, since a child has none, and draw other genes to hide."""
        self._threads.enter_context(thread_pool(pl_module.device))
        # All processes have the same state so far.
        drawn = int(torch.randint(2**31, ()))
        torch.manual_seed(drawn + trainer.global_rank)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the pool."""
        self._threads.close()


def starts_children(trainer: Trainer) -> bool:
    """Whether the processes are children of this one, and it does not train itself."""
    start = getattr(trainer.strategy, "_start_method", None)
    return start in ("spawn", "fork", "forkserver")


def _check_strategy(trainer: Trainer, model: RegistryMixin) -> None:
    if trainer.world_size == 1:
        return
    strategy: Strategy = trainer.strategy
    # Subclasses split the weights among the processes.
    if type(strategy) is not DDPStrategy:
        raise ValueError(
            f"Several devices need a strategy by which each has all weights, not "
            f"{type(strategy).__name__}: pass strategy='ddp', 'ddp_spawn' or 'ddp_fork'."
        )
    is_compiled = "forward" in vars(model.module.encoder)
    if is_compiled and starts_children(trainer) and strategy._start_method != "fork":
        raise ValueError(
            "compile=True does not go with children that are spawned, which get no compiled code: "
            "pass strategy='ddp', or leave compile out."
        )
    if settings.seed is None and not starts_children(trainer):
        raise ValueError(
            "With strategy='ddp' every process runs the script and must draw the same cells: set "
            "scvi.settings.seed, such as to 0, before the model is made."
        )


def share_result(model: RegistryMixin) -> None:
    """Give all processes the result of the first one, if each has trained a model of its own.

    Their results are equal up to rounding errors, which processors of several kinds make.
    """
    if not _trains_with_others(model):
        return
    module = model.module
    contents: list[Any] = [
        {name: tensor.cpu() for name, tensor in module.state_dict().items()},
        {name: getattr(model, name) for name in _SHARED},
    ]
    device = next(module.parameters()).device
    torch.distributed.broadcast_object_list(contents, src=0, device=device)
    state, attributes = contents
    if module.linear is not None:
        module.linear.loadings = torch.zeros_like(state["linear.loadings"]).to(device)
    module.load_state_dict(state)
    for name, value in attributes.items():
        setattr(model, name, value)


def _trains_with_others(model: RegistryMixin) -> bool:
    trainer = model.trainer
    return (
        trainer is not None
        and trainer.world_size > 1
        and torch.distributed.is_available()
        and torch.distributed.is_initialized()
    )


def writes_files(model: RegistryMixin) -> bool:
    """Whether this is the only process with the model, or the first of several."""
    trainer = getattr(model, "trainer", None)
    return trainer is None or trainer.world_size == 1 or bool(trainer.is_global_zero)
