"""Write the file of a model atomically, and read it without executing anything."""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pandas as pd
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor


MODEL_FILE = "model.pt"
STATE, VAR_NAMES, ATTRIBUTES = "model_state_dict", "var_names", "attr_dict"
FINGERPRINT = "fingerprint"
# Attributes that every model has.
_NEEDED = ("registry_", "init_params_", "is_trained_", "history_", FINGERPRINT)
# Tensors that may be infinite: before training, expression is not clipped.
_MAY_BE_INFINITE = ("linear.upper",)


def fingerprint(state: Mapping[str, Tensor], *names: Iterable[str]) -> str:
    """Hash of the weights and of the names that they belong to, sixteen characters.

    Parameters
    ----------
    state
        Tensors of the network.
    names
        Labels, genes and gene sets, each in the order of the weights.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    for kind in names:
        # A name may have any character but these.
        digest.update("\0".join([*map(str, kind), ""]).encode() + b"\1")
    return digest.hexdigest()[:16]


def write_model(
    folder: Path, prefix: str, state: dict[str, Any], var_names: np.ndarray, attributes: dict
) -> None:
    """Write the file of a model atomically into an existing folder.

    Raises
    ------
    OSError
        If the file cannot be written. An older file is kept.
    """
    contents = {
        STATE: state,
        VAR_NAMES: to_plain(var_names),
        ATTRIBUTES: to_plain(attributes),
    }
    with replacing(folder / f"{prefix}{MODEL_FILE}") as name:
        torch.save(contents, name)


def make_folder(folder: Path) -> None:
    """Make the folder of a model if it does not exist.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(
            f"The folder {str(folder)!r} cannot be made ({_reason(error)}): choose another one."
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write to, and rename that file to ``path`` at the end.

    Raises
    ------
    OSError
        If the file cannot be written. An older file is kept.
    """
    # Not tempfile, whose files only the owner may read. The suffix is kept, as writers need it.
    name = path.with_name(f".{uuid4().hex}.{path.name}")
    try:
        yield name
        name.replace(path)
    # torch's writer raises RuntimeError.
    except (OSError, RuntimeError) as error:
        raise OSError(
            f"{str(path)!r} could not be written ({_reason(error)}): is the disk full, or the "
            "folder read-only? What was there before is unchanged."
        ) from error
    finally:
        name.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).strip().split("\n")[0]


def read_model(folder: Path, prefix: str, device: torch.device | str) -> dict[str, Any]:
    """Read the file of a model without executing anything.

    Raises
    ------
    FileNotFoundError
        If the folder or the file is not there.
    PermissionError
        If the file may not be read.
    ValueError
        If the file is damaged, holds anything but tensors and plain values, or weights that are not
        finite.
    """
    path = folder / f"{prefix}{MODEL_FILE}"
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {str(folder)!r} to load a model from.")
    if not path.is_file():
        raise FileNotFoundError(
            f"The folder {str(folder)!r} holds no {path.name}, so it is not a saved model or not "
            "a whole one."
        )
    _check_archive(path)
    try:
        contents = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{str(path)!r} holds more than tensors and plain values, so tosica did not write it, "
            "and it was not opened further because that could run code."
        ) from error
    # The unpickler may raise anything on bytes that are no model.
    except Exception as error:
        raise ValueError(_not_whole(path)) from error
    missing = _missing_from(contents, STATE, VAR_NAMES, ATTRIBUTES)
    missing = missing or _missing_from(contents[ATTRIBUTES], *_NEEDED)
    if missing:
        raise ValueError(f"{str(path)!r} has no {', '.join(missing)}: not a saved model.")
    for name, tensor in contents[STATE].items():
        wrong = tensor.isnan() if name in _MAY_BE_INFINITE else ~tensor.isfinite()
        if wrong.any():
            raise ValueError(
                f"{str(path)!r} holds weights that are not finite ({name}), so the model cannot "
                "name cells; train it again, or load another copy."
            )
    return contents


def _check_archive(path: Path) -> None:
    """Verify the checksum of every member of the file."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except PermissionError as error:
        raise PermissionError(
            f"{str(path)!r} may not be read by this user: ask its owner for permission."
        ) from error
    # zipfile may raise anything on bytes that are no archive.
    except Exception as error:
        raise ValueError(_not_whole(path)) from error
    if damaged is not None:
        raise ValueError(_not_whole(path))


def _missing_from(contents: Any, *keys: str) -> list[str]:
    return sorted(set(keys) - set(contents if isinstance(contents, dict) else ()))


def _not_whole(path: Path) -> str:
    return f"{str(path)!r} is cut short or damaged; copy or save the model again."


def to_plain(value: Any) -> Any:
    """Turn arrays into tensors or lists, and tables into dicts, recursively."""
    match value:
        # Before float and str, because some numpy scalars are subclasses of these.
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
    """Turn tensors and lists of a saved registry back into the arrays of the fields."""
    for field in registry["field_registries"].values():
        state = field["state_registry"]
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                state[key] = value.cpu().numpy()
            elif key in ("categorical_mapping", "column_names", "gene_sets"):
                state[key] = np.array(value, dtype=object)
    return registry


def restore_history(history: dict[str, Any] | None) -> dict[str, pd.DataFrame] | None:
    """Turn a saved training history back into tables."""
    if history is None:
        return None
    return {
        name: pd.DataFrame(table["columns"], index=pd.Index(table["index"], name="epoch"))
        for name, table in history.items()
    }
