"""Write files so that others find the old ones or the new ones, also if the process is killed.

Files are written into a temporary folder beside them, `.tosica-<id>.tmp`, and then renamed. The
process holds a lock on that folder, which ends with the process. A folder without a lock was left
by a process that was killed, and is removed by the next one that writes there.

A single rename is atomic, several are not. When files are replaced together, the first rename
decides: a record in the temporary folder names the hash of the first new file and the files that
follow it. Once the first file has that hash, the others are completed by the next process that
writes, and read from the temporary folder until then.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

try:
    import fcntl
except ImportError:  # Windows has no such locks, so folders of killed processes stay there.
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

_START, _END = ".tosica-", ".tmp"
_RECORD = "replaced_together.json"


@contextmanager
def replacing(*paths: Path) -> Iterator[list[Path]]:
    """Yield temporary paths to write to, and let these files replace ``paths`` at the end.

    Parameters
    ----------
    paths
        Files in one folder, which exists. Either all of them are replaced or none. A file that is
        replaced keeps its permissions; others have those of any new file.

    Yields
    ------
    Paths in a temporary folder, with the same names. Every file has to be written.

    Raises
    ------
    OSError
        If a file cannot be written. What was there before is unchanged, unless the first of several
        files had been replaced already, which the message says.
    """
    folder = paths[0].parent
    begun = False
    try:
        with temporary_folder(folder) as temporary:
            names = [temporary / path.name for path in paths]
            yield names
            for path, name in zip(paths, names, strict=True):
                if path.is_dir():
                    raise IsADirectoryError(21, "Is a directory")
                if path.exists():
                    shutil.copymode(path, name)
                sync(name)
            if len(paths) > 1:
                _write_record(temporary, *paths)
            with _locked(folder) if len(paths) > 1 else nullcontext():
                os.replace(names[0], paths[0])
                begun = len(paths) > 1
                # On the disk before the others, also if there is a power failure.
                _sync_folder(folder)
                for path, name in zip(paths[1:], names[1:], strict=True):
                    os.replace(name, path)
                if len(paths) > 1:
                    _sync_folder(folder)
                    _drop_outdated_records(folder, temporary)
            (temporary / _RECORD).unlink(missing_ok=True)
    except OSError as error:
        shown = " and ".join(repr(str(path)) for path in paths)
        state = (
            "Some of these files are new and others old: write them again."
            if begun
            else "What was there before is unchanged."
        )
        raise type(error)(
            f"{shown} could not be written ({_reason(error)}): is the disk full, the folder "
            f"read-only, or a file open elsewhere? {state}"
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


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Make a folder inside of ``folder`` that is removed at the end; remove those left behind."""
    _remove_abandoned(folder)
    temporary, lock = _make_locked(folder)
    try:
        yield temporary
    finally:
        try:
            _complete(temporary)
            shutil.rmtree(temporary, ignore_errors=True)
        finally:
            if lock is not None:
                os.close(lock)


def is_temporary(path: Path) -> bool:
    """Whether a path is a temporary folder of this module."""
    return path.name.startswith(_START) and path.name.endswith(_END)


def current(path: Path) -> Path:
    """Where to read a file from that may have been replaced together with others.

    Usually this is ``path``. If a process was killed in the midst of renaming, it is the new file
    in the temporary folder of that process.
    """
    for temporary in _temporary_folders(path.parent):
        if path.name in _to_complete(temporary):
            return temporary / path.name
    return path


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).strip().split("\n")[0]


# ------------------------------------------------------------------------------ temporary folders


def _temporary_folders(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        # Most names are others', so that paths are made of few.
        names = [entry.name for entry in entries if entry.name.startswith(_START)]
        return [path for name in sorted(names) if is_temporary(path := folder / name)]
    return []


def _make_locked(folder: Path) -> tuple[Path, int | None]:
    while True:
        temporary = folder / f"{_START}{uuid4().hex}{_END}"
        temporary.mkdir()
        if fcntl is None:
            return temporary, None
        # Another process may take it for an abandoned one before it is locked.
        with suppress(FileNotFoundError):
            lock = os.open(temporary, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            except OSError:
                # A file system without locks: nobody removes the folder.
                return temporary, lock
            if temporary.exists():
                return temporary, lock
            os.close(lock)


def _remove_abandoned(folder: Path) -> None:
    """Complete what killed processes had begun to rename, and remove their temporary folders."""
    for temporary in _temporary_folders(folder):
        if fcntl is None:
            return
        # Permission is missing, another process was faster, or the folder is no folder.
        with suppress(OSError):
            lock = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with _locked(folder):
                    _complete(temporary)
                shutil.rmtree(temporary)
            finally:
                os.close(lock)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from renaming files together in the same folder, where that works."""
    if fcntl is None:
        yield
        return
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


# ------------------------------------------------------------------------------ several files


def _write_record(temporary: Path, first: Path, *others: Path) -> None:
    """Write which files follow the first one, and which files they are to replace."""
    record = {
        "first": {"name": first.name, "sha256": _hash(temporary / first.name)},
        "others": {path.name: _hash(path) for path in others},
    }
    path = temporary / _RECORD
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record), encoding="utf-8")
    sync(partial)
    partial.replace(path)
    _sync_folder(temporary)


def _to_complete(temporary: Path) -> list[str]:
    """Names of files that were to follow a first file, which has taken its place already."""
    try:
        record = json.loads((temporary / _RECORD).read_bytes())
        first, digest = record["first"]["name"], record["first"]["sha256"]
        replaced = dict(record["others"])
    # There is no record, or somebody else wrote it.
    except (OSError, ValueError, KeyError, TypeError):
        return []
    names = [first, *replaced]
    if not all(isinstance(name, str) and Path(name).name == name for name in names):
        return []
    waiting = [name for name in replaced if (temporary / name).is_file()]
    if not waiting or _hash(temporary.parent / first) != digest:
        return []
    # A file that was replaced by somebody else since then is newer.
    return [name for name in waiting if _hash(temporary.parent / name) == replaced[name]]


def _drop_outdated_records(folder: Path, own: Path) -> None:
    """Remove records of files that have been replaced since, where no lock says who lives."""
    if fcntl is not None:
        return
    for temporary in _temporary_folders(folder):
        if temporary != own and not _to_complete(temporary):
            with suppress(OSError):
                (temporary / _RECORD).unlink(missing_ok=True)


def _complete(temporary: Path) -> None:
    for name in _to_complete(temporary):
        os.replace(temporary / name, temporary.parent / name)
        _sync_folder(temporary.parent)


def _hash(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def sync(path: Path) -> None:
    """Wait until a file is on the disk, so that it is whole also after a power failure."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    # Windows cannot open folders, and some file systems cannot write them on demand.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
