"""Locate, download and atomically replace files."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pooch

from tosica._settings import settings
from tosica._text import first_line, parameter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tosica._types import AnyPath

_BUNDLED = Path(__file__).with_name("bundled")
_TEMPORARY_PREFIX = ".tosica-"
_TEMPORARY_SUFFIX = ".tmp"


def cache_folder() -> Path:
    """Find the folder in ``TOSICA_CACHE``, or else the user's cache."""
    folder = os.environ.get("TOSICA_CACHE")
    if folder:
        return Path(folder).expanduser()
    return Path(pooch.os_cache("tosica"))


def find_model(path: AnyPath) -> Path:
    """Find the folder of a model: the path, or a bundled model by its name.

    A folder of the user takes precedence over a bundled model such as ``"blood"``.
    """
    path = Path(path)
    bundled = _BUNDLED / path
    if len(path.parts) == 1 and bundled.is_dir() and not path.exists():
        return bundled
    return path


def download(
    url: str, target: Path, *, alternative: str, known_hash: str | None = None
) -> None:
    """Download a file with pooch.

    Parameters
    ----------
    url
        Address of the file, ``http`` or ``https``.
    target
        Path to write to. It does not exist yet.
    alternative
        Advice for machines without a connection, the end of a sentence.
    known_hash
        SHA-256 of the file. Without it, the contents are not checked.

    Raises
    ------
    OSError
        If the server does not provide it, the network fails, or it cannot be written.
    ValueError
        If the file has another hash.
    """
    # The callers log their own line.
    pooch.get_logger().setLevel("WARNING")
    try:
        pooch.retrieve(
            url,
            known_hash,
            fname=target.name,
            path=target.parent,
            progressbar=settings.shows_progress,
        )
    except OSError as error:
        # Errors of the disk have a number, those of the network have none.
        if error.errno is not None:
            raise
        reason = type(error).__name__
        response = getattr(error, "response", None)
        if response is not None:
            reason = f"HTTP status {response.status_code}"
        raise OSError(
            f"{url} cannot be downloaded ({reason}): check the connection and try "
            f"again, or {alternative}."
        ) from error


@contextmanager
def new_in_cache(path: Path) -> Iterator[Path]:
    """Yield a temporary path; the file written to it becomes ``path`` at the end.

    Raises
    ------
    OSError
        If the folder cannot be made or written.
    """
    with ExitStack() as stack:
        with explain_cache_error(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(temporary_folder(path.parent))
        yield folder / path.name
        os.replace(folder / path.name, path)


@contextmanager
def explain_cache_error(folder: Path) -> Iterator[None]:
    """Say what to do where a folder of the cache cannot be written."""
    try:
        yield
    except OSError as error:
        raise type(error)(
            f"The cache folder {str(folder)!r} cannot be written "
            f"({error.strerror}): name another one in the environment variable "
            "TOSICA_CACHE."
        ) from error


def resolve_output(path: Path) -> Path:
    """Where a result is written: if the path is a link, to what it leads to.

    Raises
    ------
    FileNotFoundError
        If there is no folder to write to.
    FileExistsError
        If it is a device.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"the folder {str(target.parent)!r} does not exist: create it first."
        )
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise FileExistsError(f"{str(path)!r} is a device: give a file.")
    return target


def check_output(path: Path, *, overwrite: bool) -> None:
    """Check that a result can be written, before it is computed.

    Raises
    ------
    FileNotFoundError
        If there is no folder to write to.
    PermissionError
        If the folder is read-only.
    FileExistsError
        If there is something already that is not to be replaced.
    """
    folder = resolve_output(path).parent
    if not os.access(folder, os.W_OK):
        raise PermissionError(
            f"the folder {str(folder)!r} is read-only: choose another one."
        )
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"{str(path)!r} exists: pass {parameter('overwrite', True)} to replace it, or give another "
            "output."
        )


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; this file replaces ``path`` at the end.

    Parameters
    ----------
    path
        A file in a folder that exists. If it is there, the new file gets its permissions; if it is a
        link, what it leads to is replaced.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    OSError
        If the file cannot be written. An existing file is unchanged.
    """
    target = resolve_output(path)
    try:
        with temporary_folder(target.parent) as folder:
            temporary = folder / path.name
            yield temporary
            if target.exists():
                shutil.copymode(target, temporary)
            sync(temporary)
            os.replace(temporary, target)
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise type(error)(
            f"{str(path)!r} could not be written ({reason}): is the disk full, the "
            "folder read-only, or the file open elsewhere? What was there before is "
            "unchanged."
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
    """Give advice on an error of HDF5, as the end of a sentence without full stop."""
    text = str(error)
    if "plugin" in text or "required filter" in text:
        return (
            "its compression needs a filter: pip install hdf5plugin, and in Python "
            "import hdf5plugin first"
        )
    if "lock" in text and "block" not in text:
        return (
            "close it elsewhere, or set HDF5_USE_FILE_LOCKING=FALSE where the disk "
            "knows no locks"
        )
    return "copy it again to the end, or save it again"


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Make a folder inside of ``folder``, and remove it at the end."""
    with TemporaryDirectory(
        prefix=_TEMPORARY_PREFIX,
        suffix=_TEMPORARY_SUFFIX,
        dir=folder,
        ignore_cleanup_errors=True,
    ) as name:
        yield Path(name)


def is_temporary(path: Path) -> bool:
    """Whether a path is temporary, and may remain of a killed process."""
    return path.name.startswith(_TEMPORARY_PREFIX) and path.name.endswith(
        _TEMPORARY_SUFFIX
    )


def sync(path: Path) -> None:
    """Flush a file to the disk, so that it survives a power failure."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
