"""Checkpoints of a training that was interrupted, and how it resumes from one."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from scvi import settings

from tosica._settings import logger
from tosica.model._save_load import to_plain

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from tosica._types import AnyPath
    from tosica.model._state import TrainingState

CHECKPOINT_FILE = "training.pt"
# Key of our entry in Lightning's checkpoint.
_ENTRY = "tosica"


class EpochCheckpoint(Checkpoint):
    """Write a checkpoint after each epoch; restore random numbers and history from one.

    Parameters
    ----------
    path
        The file, or ``None`` to write none.
    description
        How the training started, as :func:`describe_start` returns it.
    """

    def __init__(self, path: Path | None, description: dict[str, Any]) -> None:
        self.path = path
        self._description = description

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file, which is replaced as a whole."""
        # A training resumes with a new epoch, so this one must not have been cut short.
        if self.path is None or trainer.should_stop:
            return
        try:
            trainer.save_checkpoint(self.path)
        except OSError as error:
            # A full disk does not end the training.
            logger.warning("train: goes on without a new checkpoint (%s)", error)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add random numbers and history, which Lightning leaves out."""
        random = {"cpu": torch.get_rng_state()}
        if pl_module.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(pl_module.device)
        tables = getattr(trainer.logger, "history", {})
        history = {name: table[name].to_dict() for name, table in tables.items()}
        # Lightning logs the training loss only afterwards.
        loss = float(trainer.callback_metrics["train_loss"])
        history.setdefault("train_loss", {})[trainer.current_epoch] = loss
        checkpoint[_ENTRY] = self._description | {"random": random, "history": history}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore random numbers and history."""
        random = checkpoint[_ENTRY]["random"]
        torch.set_rng_state(random["cpu"])
        if pl_module.device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"], pl_module.device)
        history = getattr(trainer.logger, "history", {})
        for name, losses in checkpoint[_ENTRY]["history"].items():
            index = pd.Index(list(losses), name="epoch")
            columns = {name: list(losses.values())}
            history[name] = pd.DataFrame(columns, index, dtype=object)


class SafeCheckpointIO(TorchCheckpointIO):
    """Read checkpoints as tensors and plain values, without executing anything."""

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        """Read a checkpoint to the CPU; Lightning moves it."""
        return dict(torch.load(path, map_location="cpu", weights_only=True))


def find_checkpoint(path: AnyPath) -> Path:
    """Find the checkpoint that ``resume`` names: a file, or the one in a folder."""
    path = Path(path)
    return path / CHECKPOINT_FILE if path.is_dir() else path


def read_start(path: Path) -> dict[str, Any]:
    """Read from a checkpoint how its training started.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is no checkpoint of a training, damaged, or holds more than plain values.
    """
    try:
        return dict(SafeCheckpointIO().load_checkpoint(path)[_ENTRY])
    except FileNotFoundError:
        raise
    # torch raises many kinds of errors for a file that it cannot read.
    except Exception as error:
        raise ValueError(
            f"{str(path)!r} is no checkpoint of this version, or damaged: train anew, without resume."
        ) from error


def add_checkpoint(state: TrainingState) -> None:
    """Let the trainer write checkpoints or resume from one, which must be of the same training."""
    trainer = state.runner.trainer
    description = describe_start(state)
    if state.resumed is not None:
        resumed = state.resumed["arguments"]
        for name, value in description["arguments"].items():
            if resumed.get(name) != value:
                raise ValueError(
                    f"The checkpoint was written with another {name}: pass the same, or no resume."
                )
    # Not among the arguments: scvi-tools would make one of its own as well.
    trainer.callbacks.append(EpochCheckpoint(state.checkpoint, description))
    trainer.strategy.checkpoint_io = SafeCheckpointIO()
    if state.checkpoint is not None:
        state.checkpoint.parent.mkdir(parents=True, exist_ok=True)


def describe_start(state: TrainingState) -> dict[str, Any]:
    """Describe in plain values how a training started, except for its random numbers."""
    data = state.data
    model = state.model
    genes = model.tokens.var_names.tolist()
    hasher = hashlib.sha256()
    for value in (model.labels, genes, model.gene_sets, len(data.codes)):
        hasher.update(repr(value).encode())
    hasher.update(data.codes.tobytes())
    hasher.update(data.strata.tobytes())
    arguments = {
        "model or reference": hasher.hexdigest(),
        **asdict(state.settings),
        "max_epochs": state.n_epochs,
        "seed": settings.seed,
    }
    return {
        "arguments": to_plain(arguments),
        "training": torch.from_numpy(data.train_idx),
        "validation": torch.from_numpy(data.val_idx),
        "left_out": torch.from_numpy(data.left_out),
        "draws": data.seed,
    }
