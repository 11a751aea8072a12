"""The file by which an interrupted training goes on: what it holds, and whom it belongs to."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from scvi import settings

from tosica._files import as_os_error, replace_file
from tosica.model._checkpoint import DIGEST, digest, to_plain
from tosica.model._model_folder import make_folder
from tosica.model._read_model import has_digest, read_plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tosica.data import Block, CellMatrix, JointMatrix
    from tosica.model._data_module import ReferenceData
    from tosica.model._registry_mixin import RegistryMixin

CHECKPOINT_FILE = "training.pt"
# Raised with every change by which a checkpoint of before can no longer be read.
_FORMAT = 1
_NEEDED = {"format", "version", "identity", "arguments", "phase", "module", DIGEST}
# Rows of the reference whose expression is part of its identity.
_N_PROBED = 16
_OTHER = {
    "n_cells": "a reference with another number of cells",
    "genes": "a reference with other genes",
    "labels": "a reference with other labels",
    "gene_sets": "a model with other gene sets",
    "network": "a network of another shape",
    "cells": "a reference whose cells have other labels, batches or expression",
}


class TrainingCheckpoint:
    """Writes the file of a training, and replaces it whole each time.

    Parameters
    ----------
    folder
        Folder of the file.

    Raises
    ------
    FileExistsError
        If it is a file.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / CHECKPOINT_FILE
        if Path(folder).is_file():
            # Raises here, before any work.
            make_folder(Path(folder))
        self.constant: dict[str, Any] = {"linear": None}

    def begin(self, model: RegistryMixin, data: ReferenceData, directions: Any) -> None:
        """Make the folder, and keep what a training begins with.

        Parameters
        ----------
        model
            The model before the training.
        data
            Its cells.
        directions
            In which batches differ, or ``None``.

        Raises
        ------
        OSError
            If the folder cannot be made.
        """
        make_folder(self.path.parent)
        history = model.history_ if isinstance(model.history_, dict) else None
        split = {
            "training": data.train_idx,
            "validation": data.val_idx,
            "left_out": data.left_out,
        }
        before = {
            "is_trained_": bool(model.is_trained_),
            "refitted_": model.refitted_,
            "history_": history,
        }
        plain = {"split": split, "before": before, "seed": data.seed}
        self.constant |= to_plain(plain | {"batch_directions": directions})

    def write(self, **changing: Any) -> None:
        """Write the file.

        Raises
        ------
        OSError
            If it cannot be written. The one that was there is unchanged.
        """
        contents = {"format": _FORMAT, "version": version("tosica")} | self.constant | changing
        contents[DIGEST] = digest(contents)
        with replace_file(self.path) as name, as_os_error():
            torch.save(contents, name)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read the file of a training without executing anything.

    Parameters
    ----------
    path
        The file, or its folder.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If it is damaged, holds anything but tensors and plain values, is something else, or was
        written by a version of tosica whose checkpoints this one does not know.
    """
    file = Path(path)
    if file.is_dir():
        file /= CHECKPOINT_FILE
    damaged = ValueError(
        f"{str(file)!r} is no checkpoint of a training, cut short or damaged: resume from another "
        "one, or train without resume."
    )
    try:
        opened = file.open("rb")
    except OSError as error:
        wrong = type(error) if isinstance(error, PermissionError) else FileNotFoundError
        raise wrong(
            f"{str(file)!r} cannot be read ({error.strerror}): resume takes the file that "
            "train(checkpoint_dir=...) writes, or its folder."
        ) from error
    with opened:
        contents = read_plain(opened, file, damaged)
    if not isinstance(contents, dict) or "format" not in contents or "version" not in contents:
        raise damaged
    if contents["format"] != _FORMAT:
        raise ValueError(
            f"{str(file)!r} was written by tosica {contents['version']}, whose checkpoints tosica "
            f"{version('tosica')} cannot read: resume with that version, or train without resume."
        )
    if not contents.keys() >= _NEEDED or not has_digest(contents, contents.pop(DIGEST)):
        raise damaged
    return contents | {"path": str(file)}


def identify(
    model: RegistryMixin, rows: CellMatrix | JointMatrix, codes: np.ndarray, strata: np.ndarray
) -> dict[str, str | int]:
    """Hashes of what a training rests on: the reference, its gene sets and the network.

    Parameters
    ----------
    model
        The model.
    rows
        Expression of the reference, of which a few cells are read.
    codes, strata
        Code of the label and of the batch of each cell, shape ``(n_obs,)``.
    """
    tokens = model._tokens
    probed = np.unique(np.linspace(0, len(codes) - 1, _N_PROBED).astype(np.int64))
    block: Block = rows.take(probed)
    expression = block.toarray() if sp.issparse(block) else np.asarray(block)
    shapes = {name: tuple(p.shape) for name, p in model.module.named_parameters()}
    parts: dict[str, Any] = {
        "genes": model._var_names.tolist(),
        "labels": model.labels,
        "gene_sets": [
            [str(name) for name in tokens.names],
            torch.from_numpy(np.array(tokens.indptr)),
            torch.from_numpy(np.array(tokens.genes)),
        ],
        "network": [shapes, model.init_params_["non_kwargs"]["n_heads"]],
        "cells": [
            torch.from_numpy(np.array(codes)),
            torch.from_numpy(np.array(strata)),
            torch.from_numpy(np.array(expression, dtype=np.float32)),
        ],
    }
    return {"n_cells": len(codes)} | {name: digest(part) for name, part in parts.items()}


def check_identity(contents: dict[str, Any], identity: dict[str, Any]) -> None:
    """Check that a checkpoint was written by a training of the same model.

    Raises
    ------
    ValueError
        If it was not.
    """
    for name, other in _OTHER.items():
        if contents["identity"].get(name) != identity[name]:
            raise ValueError(
                f"The checkpoint {contents['path']!r} belongs to {other}: resume with the model "
                "and the reference that it was written for, or train without resume."
            )


def plain_arguments(
    given: dict[str, Any], plan: dict[str, Any], trainer: dict[str, Any]
) -> dict[str, Any]:
    """Arguments of a training that decide its weights, as far as a file can hold them.

    Parameters
    ----------
    given
        Parameters of ``train``.
    plan
        All settings of the training plan.
    trainer
        Arguments that go on to the trainer.
    """
    plain = (bool, int, float, str)
    found = {"scvi.settings.seed": settings.seed} | given
    found |= {f"plan_kwargs[{name!r}]": value for name, value in plan.items()}
    found |= {name: value for name, value in trainer.items() if isinstance(value, plain)}
    return {name: value for name, value in to_plain(found).items() if name not in _IRRELEVANT}


# They say where and how weights are computed, and what is shown and logged.
_IRRELEVANT = {
    *("accelerator", "devices", "compile", "benchmark", "enable_progress_bar"),
    *("simple_progress_bar", "progress_bar_refresh_rate", "enable_model_summary", "logger"),
    *("log_every_n_steps", "log_save_dir", "default_root_dir", "learning_rate_monitor", "profiler"),
    *("enable_checkpointing", "checkpointing_monitor", "num_sanity_val_steps", "barebones"),
}


def check_arguments(contents: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Check that a checkpoint was written by a training with the same arguments.

    Raises
    ------
    ValueError
        If it was not.
    """
    before: dict[str, Any] = contents["arguments"]
    for name in _in_order(before, arguments):
        if before.get(name) != arguments.get(name):
            raise ValueError(
                f"The checkpoint {contents['path']!r} was written with {name}="
                f"{before.get(name)!r}, and this training has {name}={arguments.get(name)!r}: "
                "resume with the same arguments, or train without resume."
            )


def _in_order(*names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for each in names for name in each))
