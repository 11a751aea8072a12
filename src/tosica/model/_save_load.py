"""A model's file: scvi-tools' layout, holding nothing but tensors and plain values.

scvi-tools pickles arrays, tables and whatever else a model has, so reading such a file can run
code. Here everything is turned into tensors, lists, dicts, strings and numbers before it is
written, and the file is read by torch's reader that accepts nothing else.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

MODEL_FILE = "model.pt"
STATE, VAR_NAMES, ATTRIBUTES = "model_state_dict", "var_names", "attr_dict"
# Attributes without which there is no model.
_NEEDED = ("registry_", "init_params_", "is_trained_", "history_")


def write_model(
    folder: Path, prefix: str, state: dict[str, Any], var_names: np.ndarray, attributes: dict
) -> None:
    """Write a model's file into a folder that exists, whole or not at all."""
    contents = {
        STATE: state,
        VAR_NAMES: to_plain(var_names),
        ATTRIBUTES: to_plain(attributes),
    }
    handle, name = tempfile.mkstemp(dir=folder, suffix=".tmp")
    os.close(handle)
    try:
        torch.save(contents, name)
        Path(name).replace(folder / f"{prefix}{MODEL_FILE}")
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_model(folder: Path, prefix: str, device: torch.device | str) -> dict[str, Any]:
    """Read a model's file without running anything that it may hold.

    Raises
    ------
    FileNotFoundError
        If the folder or the file is not there.
    ValueError
        If the file is cut short, or holds anything but tensors and plain values.
    """
    path = folder / f"{prefix}{MODEL_FILE}"
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {str(folder)!r} to load a model from.")
    if not path.is_file():
        raise FileNotFoundError(
            f"The folder {str(folder)!r} holds no {path.name}, so it is not a saved model or not "
            "a whole one."
        )
    try:
        contents = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        # torch reads an archive's directory first, so what is cut short is not even one.
        if not zipfile.is_zipfile(path):
            raise ValueError(_not_whole(path)) from error
        raise ValueError(
            f"{str(path)!r} holds more than tensors and plain values, so tosica did not write it, "
            "and it was not opened further because that could run code."
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise ValueError(_not_whole(path)) from error
    missing = _missing_from(contents, STATE, VAR_NAMES, ATTRIBUTES)
    missing = missing or _missing_from(contents[ATTRIBUTES], *_NEEDED)
    if missing:
        raise ValueError(f"{str(path)!r} has no {', '.join(missing)}: not a saved model.")
    return contents


def _missing_from(contents: Any, *keys: str) -> list[str]:
    return sorted(set(keys) - set(contents if isinstance(contents, dict) else ()))


def _not_whole(path: Path) -> str:
    return f"{str(path)!r} is cut short or damaged; copy or save the model again."


def to_plain(value: Any) -> Any:
    """Turn arrays into tensors or lists, and tables into dicts, all the way down."""
    match value:
        # Before float and str, whose subclasses some of numpy's scalars are.
        case np.generic():
            return value.item()
        case None | bool() | int() | float() | str() | torch.Tensor():
            return value
        case np.ndarray() if value.dtype.kind in "biuf":
            return torch.from_numpy(np.ascontiguousarray(value))
        case np.ndarray() | pd.Index():
            return [to_plain(item) for item in value.tolist()]
        case pd.DataFrame():
            return {"index": to_plain(value.index), "columns": to_plain(value.to_dict("list"))}
        case dict():
            return {str(key): to_plain(item) for key, item in value.items()}
        case list() | tuple() | set():
            return [to_plain(item) for item in value]
    raise TypeError(f"A saved model cannot hold a {type(value).__name__}.")


def restore_registry(registry: dict[str, Any]) -> dict[str, Any]:
    """Give the fields of a registry the arrays back that scvi-tools and tosica put there."""
    for field in registry["field_registries"].values():
        state = field["state_registry"]
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                state[key] = value.cpu().numpy()
            elif key in ("categorical_mapping", "column_names", "gene_sets"):
                state[key] = np.array(value, dtype=object)
    return registry


def restore_history(history: dict[str, Any] | None) -> dict[str, pd.DataFrame] | None:
    """Give the training history its tables back."""
    if history is None:
        return None
    return {
        name: pd.DataFrame(table["columns"], index=pd.Index(table["index"], name="epoch"))
        for name, table in history.items()
    }
