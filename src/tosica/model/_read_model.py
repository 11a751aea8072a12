"""Read the file of a model without executing anything, and check that it is whole."""

from __future__ import annotations

import os
import pickle
import zipfile
from typing import TYPE_CHECKING, Any

import torch

from tosica.model._checkpoint import (
    ATTRIBUTES,
    DIGEST,
    FINGERPRINT,
    MODEL_FILE,
    STATE,
    VAR_NAMES,
    digest,
    find_not_finite,
)

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

# Attributes that every model has.
_NEEDED = ("registry_", "init_params_", "is_trained_", "history_", FINGERPRINT)


def read_model(folder: Path, prefix: str) -> dict[str, Any]:
    """Read the file of a model without executing anything.

    Raises
    ------
    FileNotFoundError
        If the folder or the file is not there.
    PermissionError
        If the file may not be read.
    ValueError
        If the file is damaged, holds anything but tensors and plain values, or numbers that are not
        finite.
    """
    path = folder / f"{prefix}{MODEL_FILE}"
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {str(folder)!r} to load a model from.")
    with _open(path) as file:
        contents = read_plain(file, path, _damaged(path))
        _check_contents(contents, path, os.fstat(file.fileno()).st_size)
    return contents


def read_plain(file: BinaryIO, path: Path, damaged: ValueError) -> Any:
    """Read tensors and plain values from a file that torch wrote, and execute nothing.

    Parameters
    ----------
    file
        The file, open.
    path
        Its name, for messages.
    damaged
        What to raise if it is damaged.

    Raises
    ------
    ValueError
        If the file is damaged, or holds anything else.
    """
    _check_archive(file, damaged)
    file.seek(0)
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{str(path)!r} holds more than tensors and plain values, so tosica did not write "
            "it, and it was not opened further because that could run code."
        ) from error
    # The unpickler may raise anything on bytes that are no model.
    except Exception as error:
        raise damaged from error


def check_size(state: dict[str, torch.Tensor], *, embed_dim: int, n_layers: int, **_: Any) -> None:
    """Check that a model is as large as its weights before it is made, which may take long.

    Raises
    ------
    ValueError
        If it is not.
    """
    layers = {name.split(".")[2] for name in state if name.startswith("encoder.blocks.")}
    if (embed_dim, n_layers) != (state["head.weight"].shape[1], len(layers)):
        raise ValueError("The weights are of another size.")


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except PermissionError as error:
        raise PermissionError(
            f"{str(path)!r} may not be read by this user: ask its owner for permission."
        ) from error
    except (FileNotFoundError, IsADirectoryError) as error:
        raise FileNotFoundError(
            f"The folder {str(path.parent)!r} holds no {path.name}, so it is not a saved model or "
            "not a whole one."
        ) from error


def _check_archive(file: BinaryIO, damaged: ValueError) -> None:
    """Verify the checksum of every member of the file, none of which torch compresses."""
    try:
        with zipfile.ZipFile(file) as archive:
            compressed = any(part.compress_type != zipfile.ZIP_STORED for part in archive.filelist)
            is_damaged = compressed or archive.testzip() is not None
    # zipfile may raise anything on bytes that are no archive.
    except Exception as error:
        raise damaged from error
    if is_damaged:
        raise damaged


def _check_contents(contents: Any, path: Path, size: int) -> None:
    missing = _missing_from(contents, STATE, VAR_NAMES, ATTRIBUTES)
    missing = missing or _missing_from(contents[ATTRIBUTES], *_NEEDED)
    if missing:
        raise ValueError(f"{str(path)!r} has no {', '.join(missing)}: not a saved model.")
    attributes, state = contents[ATTRIBUTES], contents[STATE]
    is_whole = isinstance(state, dict) and isinstance(attributes["registry_"], dict)
    if not (is_whole and all(_is_dense(tensor, size) for tensor in state.values())):
        raise _damaged(path)
    wrong = find_not_finite(state)
    if wrong is not None:
        raise ValueError(
            f"{str(path)!r} holds weights that are not finite ({wrong}), so the model cannot "
            "name cells; train it again, or load another copy."
        )
    # Files that were saved before the digest was have none.
    if DIGEST in attributes and not has_digest(contents, attributes.pop(DIGEST)):
        raise _damaged(path)


def has_digest(contents: dict[str, Any], expected: Any) -> bool:
    """Whether what a file holds has the hash that it was written with."""
    try:
        return digest(contents) == expected
    # Values that no model holds cannot all be hashed.
    except (RecursionError, TypeError):
        return False


def _is_dense(tensor: Any, size: int) -> bool:
    """Whether a value is a tensor that the file has room for."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and tensor.nbytes <= size
    )


def _missing_from(contents: Any, *keys: str) -> list[str]:
    return sorted(set(keys) - set(contents if isinstance(contents, dict) else ()))


def _damaged(path: Path) -> ValueError:
    return ValueError(f"{str(path)!r} is cut short or damaged; copy or save the model again.")
