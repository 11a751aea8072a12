"""Write and read training checkpoints: Lightning's, once an epoch, with the split of the cells."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from scvi import settings as scvi_settings

from tosica._settings import logger
from tosica.model._checkpoint import to_plain

if TYPE_CHECKING:
    # The state of a training, whose module imports this one.
    from typing import Any as TrainingState

    from lightning.pytorch import LightningModule, Trainer

CHECKPOINT_FILE = "training.pt"
# Key of our own part of Lightning's checkpoint.
_OURS = "tosica"


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

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
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

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore what Lightning leaves out."""
        ours = checkpoint[_OURS]
        torch.set_rng_state(ours["random"]["cpu"])
        if pl_module.device.type == "cuda" and "cuda" in ours["random"]:
            torch.cuda.set_rng_state(ours["random"]["cuda"], pl_module.device)
        history = getattr(trainer.logger, "history", {})
        for name, values in ours["history"].items():
            index = pd.Index(list(values), name="epoch")
            history[name] = pd.DataFrame({name: list(values.values())}, index, dtype=object)


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
            f"{str(path)!r} is no checkpoint of train(checkpoint_dir=...), of another version, or "
            "damaged: resume from another one, or train without resume."
        ) from error


def describe_start(state: TrainingState) -> dict[str, Any]:
    """Describe what decides a training, besides its random numbers, in plain values."""
    data, model = state.data, state.model
    described = hashlib.sha256()
    for part in (model.labels, model._var_names.tolist(), model.gene_sets, len(data.codes)):
        described.update(repr(part).encode())
    for codes in (data.codes, data.strata):
        described.update(codes.tobytes())
    arguments = asdict(state.settings) | {"max_epochs": state.n_epochs, "seed": scvi_settings.seed}
    return {
        "arguments": to_plain({"model or reference": described.hexdigest()} | arguments),
        "training": torch.from_numpy(data.train_idx),
        "validation": torch.from_numpy(data.val_idx),
        "left_out": torch.from_numpy(data.left_out),
        "draws": data.seed,
    }


def check_same_training(resumed: dict[str, Any], start: dict[str, Any]) -> None:
    """Refuse a checkpoint of another training."""
    before, now = resumed["arguments"], start["arguments"]
    changed = [name for name in now if before.get(name) != now[name]]
    if changed:
        raise ValueError(
            f"The checkpoint to resume from was written with another {changed[0]}: train with the "
            "same model, reference and arguments, or without resume."
        )
