"""Find, download and replace files whole: others find the old one or the new one."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pooch

from tosica._settings import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUNDLED = Path(__file__).with_name("bundled")
# Seconds without an answer.
_TIMEOUT = 30
_START, _END = ".tosica-", ".tmp"


def cache_folder() -> Path:
    """Find the folder in ``TOSICA_CACHE``, or else the user's cache."""
    chosen = os.environ.get("TOSICA_CACHE")
    return Path(chosen).expanduser() if chosen else Path(pooch.os_cache("tosica"))


def find_model(path: str | Path) -> Path:
    """Find the folder of a model: the path, or a model inside the package, such as ``"blood"``."""
    inside = _BUNDLED / path
    return (
        inside
        if len(Path(path).parts) == 1 and inside.is_dir() and not Path(path).exists()
        else Path(path)
    )


def download(url: str, target: Path) -> None:
    """Download a file with pooch, without keeping or checking it.

    Parameters
    ----------
    url
        Address of the file, ``http`` or ``https``.
    target
        Path to write to.

    Raises
    ------
    OSError
        If the server does not provide it, the network fails, or it cannot be written.
    """
    client = pooch.HTTPDownloader(progressbar=settings.shows_progress, timeout=_TIMEOUT)
    client(url, str(target), None)


@contextmanager
def new_in_cache(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write a file of the cache to; it becomes ``path`` at the end.

    Raises
    ------
    OSError
        If the folder cannot be made or written.
    """
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(temporary_folder(path.parent))
        except OSError as error:
            raise type(error)(
                f"The cache folder {str(path.parent)!r} cannot be written ({error.strerror}): name another one "
                "in the environment variable TOSICA_CACHE."
            ) from error
        yield folder / path.name
        os.replace(folder / path.name, path)


def check_folder(path: Path) -> None:
    """Raise a ``FileNotFoundError`` if there is no folder to write a file to."""
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"the folder {str(path.parent)!r} does not exist: create it first."
        )


def check_output(path: Path, *, overwrite: bool) -> None:
    """Check before the work that its result can be written.

    Raises
    ------
    FileNotFoundError
        If there is no folder to write to.
    PermissionError
        If the folder is read-only.
    FileExistsError
        If there is something already that is not to be replaced.
    """
    check_folder(path)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(
            f"the folder {str(path.parent)!r} is read-only: choose another one."
        )
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"{str(path)!r} exists: pass overwrite=True to replace it, or give another output."
        )


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and let this file replace ``path`` at the end.

    Parameters
    ----------
    path
        A file in a folder that exists. If it is there, the new file gets its permissions.

    Raises
    ------
    OSError
        If the file cannot be written. What was there before is unchanged.
    """
    try:
        with temporary_folder(path.parent) as folder:
            temporary = folder / path.name
            yield temporary
            if path.exists():
                shutil.copymode(path, temporary)
            sync(temporary)
            os.replace(temporary, path)
    except OSError as error:
        why = str(error.strerror or error).strip().split("\n")[0]
        raise type(error)(
            f"{str(path)!r} could not be written ({why}): is the disk full, the folder read-only, "
            "or the file open elsewhere? What was there before is unchanged."
        ) from error


@contextmanager
def as_os_error() -> Iterator[None]:
    """Raise an OSError for the RuntimeError of torch and HDF5 if they cannot write."""
    try:
        yield
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # such as NotImplementedError
            raise
        raise OSError(str(error)) from error


def explain_hdf5(error: object) -> str:
    """Say what helps against an error of HDF5, as the end of a sentence without its full stop."""
    text = str(error)
    if "plugin" in text or "required filter" in text:
        return "its compression needs a filter: pip install hdf5plugin, and in Python import hdf5plugin first"
    if "lock" in text and "block" not in text:
        return "close it elsewhere, or set HDF5_USE_FILE_LOCKING=FALSE where the disk knows no locks"
    return "copy it again to the end, or save it again"


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Make a folder inside of ``folder``, and remove it at the end."""
    with TemporaryDirectory(
        prefix=_START, suffix=_END, dir=folder, ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


def is_temporary(path: Path) -> bool:
    """Whether a killed process may have left a path here."""
    return path.name.startswith(_START) and path.name.endswith(_END)


def sync(path: Path) -> None:
    """Wait until a file is on the disk, so that it is whole also after a power failure."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
