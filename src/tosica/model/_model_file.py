"""Read and write the file of a model: tensors and plain values with a digest, nothing executed."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from tosica._files import as_os_error, is_temporary, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_DIGEST = "digest"


def check_free(folder: Path) -> None:
    """Check that a model can be saved to a folder without replacing anything.

    Raises
    ------
    FileExistsError
        If it is a file, or holds anything but temporary files of a killed process.
    """
    if folder.is_file() or (folder.is_dir() and not all(map(is_temporary, folder.iterdir()))):
        raise FileExistsError(f"{str(folder)!r} exists: choose another folder, or pass overwrite=True.")


def write_plain(contents: dict[str, Any], path: Path) -> None:
    """Write tensors and plain values to a file, with a digest of them.

    Raises
    ------
    OSError
        If it cannot be written. What was there before is unchanged.
    """
    with replace_file(path) as temporary, as_os_error():
        torch.save(contents | {_DIGEST: digest(contents)}, temporary)


def read_plain(path: Path) -> dict[str, Any]:
    """Read what :func:`write_plain` wrote, without executing anything.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged, or holds anything but tensors and plain values.
    """
    if not path.is_file():
        raise FileNotFoundError(f"The folder {str(path.parent)!r} holds no {path.name}, so it is no saved model.")
    with path.open("rb") as file:
        # The unpickler may raise anything on bytes that are something else.
        try:
            contents = torch.load(file, map_location="cpu", weights_only=True)
            is_whole = contents.pop(_DIGEST) == digest(contents)
        except Exception as error:
            raise ValueError(
                f"{str(path)!r} is damaged, or no saved model, and nothing in it was executed: copy or save it again."
            ) from error
    if not is_whole:
        raise ValueError(f"{str(path)!r} is damaged: copy or save the model again.")
    return dict(contents)


def digest(contents: Any) -> str:
    """Hash tensors and plain values; anything else raises a TypeError."""
    hasher, rest = hashlib.sha256(), [contents]
    while rest:
        match value := rest.pop():
            case torch.Tensor():
                # A view of one number may have any shape, and would need any amount of memory.
                if not value.is_contiguous():
                    raise TypeError("A tensor is not contiguous.")
                hasher.update(f"{value.dtype} {tuple(value.shape)} ".encode())
                hasher.update(value.detach().cpu().numpy().tobytes())
            case dict():
                hasher.update(f"dict {len(value)} ".encode())
                rest += [item for key in sorted(value, key=str, reverse=True) for item in (value[key], key)]
            case list() | tuple():
                hasher.update(f"list {len(value)} ".encode())
                rest += reversed(value)
            case _:
                text = f"{type(value).__name__} {value!r}"
                hasher.update(f"{len(text)} {text} ".encode())
    return hasher.hexdigest()


def to_plain(value: Any) -> Any:
    """Turn arrays into tensors or lists, and tables into dicts, recursively."""
    match value:
        # Before float and str, because some numpy scalars are subclasses of these.
        case np.generic():
            return value.item()
        case None | bool() | int() | float() | str():
            return value
        case torch.Tensor():
            return value.contiguous()
        case np.ndarray() if value.dtype.kind in "biuf":
            return torch.from_numpy(np.array(value, order="C"))
        case np.ndarray() | pd.Index():
            return [to_plain(item) for item in value.tolist()]
        case pd.DataFrame():
            return {"index": to_plain(value.index), "columns": to_plain(value.to_dict("list"))}
        case dict():
            return {str(key): to_plain(item) for key, item in value.items()}
        case list() | tuple() | set():
            return [to_plain(item) for item in value]
    raise TypeError(f"A saved model cannot hold a {type(value).__name__}.")


@contextmanager
def refuse_other_versions(path: Path) -> Iterator[None]:
    """Say that a file that is whole is not of this version, if its contents are not those of a model."""
    try:
        yield
    # What is missing or of another type shows in many ways.
    except (AttributeError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{str(path)!r} holds no model of this version of tosica: train it again.") from error


def restore_registry(registry: dict[str, Any]) -> dict[str, Any]:
    """Turn tensors and lists of a saved registry back into the arrays of the fields."""
    for field in registry["field_registries"].values():
        state = field["state_registry"]
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                state[key] = value.cpu().numpy()
            elif key in ("categorical_mapping", "column_names", "gene_sets", "labels"):
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
