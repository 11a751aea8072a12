"""The folder that a model is saved to, and the file that its reference is read from."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tosica._files import is_temporary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from anndata import AnnData
    from mudata import MuData


def check_free(folder: Path) -> None:
    """Check that a folder holds nothing but temporary files of a process that was killed.

    Raises
    ------
    FileExistsError
        If it holds anything else, or is a file.
    """
    if folder.is_dir():
        is_taken = any(not is_temporary(path) for path in folder.iterdir())
    else:
        is_taken = folder.exists()
    if is_taken:
        raise FileExistsError(
            f"{str(folder)!r} exists: choose another folder, or pass overwrite=True."
        )


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
            f"The folder {str(folder)!r} cannot be made ({error.strerror}): choose another one."
        ) from error


@contextmanager
def file_kept(adata: AnnData | MuData | None) -> Iterator[None]:
    """Let a backed object stay with its file after it was written to another one."""
    path = adata.filename if adata is not None and adata.isbacked else None
    try:
        yield
    finally:
        if adata is not None and path is not None:
            adata.file.filename = path
