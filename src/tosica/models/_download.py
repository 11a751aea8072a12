"""Download a model of an index, and check it by its hash."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tosica._download import cache_folder, reason
from tosica._download import download as download_file
from tosica._logging import logger
from tosica._replace_files import sync, temporary_folder
from tosica._validation import check_flags, check_path, check_string, only_known
from tosica.models._index import MODEL_FILES, is_web, read_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tosica.models._index import Entry, File

# Digits of a hash that a message shows.
_SHOWN = 12


def download(
    name: str,
    *,
    index: str | Path | None = None,
    folder: str | Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Download a model of an index, for :meth:`tosica.TOSICA.load`.

    Every file is compared with the size and SHA-256 in the index; one that differs is not kept.
    Files that are there already, and have the right hash, are not downloaded again. Nothing that
    was downloaded is executed, neither here nor when the model is loaded.

    Parameters
    ----------
    name
        Name of the model, one of the index of :func:`available`.
    index
        As in :func:`available`.
    folder
        Folder for the files of the model, made if it is missing. By default one in the folder that
        ``TOSICA_CACHE`` names, or else in the user's cache folder; another version of a model has
        another one.
    overwrite
        Replace another model in ``folder``.

    Returns
    -------
    The folder with the model.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If the index has no such model.
    ValueError
        If a file does not have the size or the hash that the index states; and as
        :func:`available`.
    FileExistsError
        If ``folder`` holds another model, and ``overwrite`` is false.
    FileNotFoundError
        If the index, or a file of the model beside it, is not there.
    ConnectionError
        If the server cannot be reached, does not have a file, or the download is incomplete.
    OSError
        If the files cannot be written.

    See Also
    --------
    available : list the models.

    Examples
    --------
    .. code-block:: python

        folder = tosica.models.download("pbmc", index="https://models.example.org/index.json")
        model = tosica.TOSICA.load(folder)
    """
    check_string("name", name)
    if folder is not None:
        check_path("folder", folder)
    check_flags(overwrite=overwrite)
    found = read_index(index)
    if name not in found.entries:
        raise KeyError(
            f"The index {found.address} has no model {name!r}{only_known(name, found.entries)}"
        )
    entry = found.entries[name]
    digest = entry.files[MODEL_FILES[0]].sha256[:_SHOWN]
    target = cache_folder() / "models" / f"{name}-{digest}" if folder is None else Path(folder)
    states = {each: _state(target / each, file) for each, file in entry.files.items()}
    changed = [each for each, state in states.items() if state == "other"]
    if folder is not None and changed and not overwrite:
        raise FileExistsError(
            f"{str(target / changed[0])!r} is another file than that of {name!r}: choose another "
            "folder, or pass overwrite=True."
        )
    wanted = [each for each in reversed(MODEL_FILES) if states.get(each, "right") != "right"]
    if wanted:
        _fetch_all(entry, wanted, target, in_cache=folder is None)
        logger.info("models: downloaded %s to %s", name, target)
    return target


def _state(path: Path, file: File) -> str:
    """Whether a file is ``"right"``, ``"other"`` or ``"missing"``."""
    if not path.exists():
        return "missing"
    try:
        is_right = path.stat().st_size == file.size and _hash(path) == file.sha256
    except OSError as error:
        raise type(error)(
            f"{str(path)!r} cannot be read ({reason(error)}): make it readable, or choose another "
            "folder."
        ) from error
    return "right" if is_right else "other"


def _hash(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _fetch_all(entry: Entry, wanted: list[str], target: Path, *, in_cache: bool) -> None:
    """Fetch files to a temporary folder, and move them when all of them are right."""
    room = "set TOSICA_CACHE to another folder" if in_cache else "choose another folder"
    is_new = not target.exists()
    try:
        with _temporary_in(target, entry.name, room) as temporary:
            for each in wanted:
                _fetch(entry, each, temporary / each, target, room)
            # The model comes last: its card alone is no model.
            for each in wanted:
                with _cannot_write(target, entry.name, room):
                    sync(temporary / each)
                    os.replace(temporary / each, target / each)
    finally:
        if is_new:
            # Of a download that failed, nothing is kept; a folder with files in it stays.
            with suppress(OSError):
                target.rmdir()


@contextmanager
def _temporary_in(target: Path, name: str, room: str) -> Iterator[Path]:
    """Make a temporary folder in that of a model first, to find out whether it can be written."""
    with ExitStack() as stack:
        with _cannot_write(target, name, room):
            target.mkdir(parents=True, exist_ok=True)
            temporary = stack.enter_context(temporary_folder(target))
        yield temporary


@contextmanager
def _cannot_write(target: Path, name: str, room: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise type(error)(
            f"The model {name!r} cannot be written to {str(target)!r} ({reason(error)}): make it "
            f"writable, or {room}."
        ) from error


def _fetch(entry: Entry, name: str, temporary: Path, target: Path, room: str) -> None:
    """Fetch one file, and compare it with what the index states."""
    file = entry.files[name]
    if is_web(file.address):
        download_file(
            file.address,
            temporary,
            to=target,
            check="tell the authors of the index",
            advice="try again",
            room=room,
            most=file.size,
        )
        size = temporary.stat().st_size
    else:
        size = _copy(file, temporary, target, entry.name, room)
    found = _hash(temporary) if size == file.size else ""
    if found != file.sha256:
        differs = f"sha256 {found[:_SHOWN]}… instead of {file.sha256[:_SHOWN]}…"
        differs = differs if found else f"{size} bytes instead of {file.size}"
        raise ValueError(
            f"{file.address} is not the file that the index states for the model {entry.name!r} "
            f"({differs}), so it was not kept: ask the authors of the index which of the two is "
            "right."
        )


def _copy(file: File, temporary: Path, target: Path, name: str, room: str) -> int:
    """Copy a file beside the index if it has the right size; return the size that it has."""
    source = Path(file.address)
    if not source.is_file():
        raise FileNotFoundError(
            f"The index names the file {file.address!r}, which is not there: write the index anew "
            "with tosica.models.write_index(folder)."
        )
    size = source.stat().st_size
    if size == file.size:
        with _cannot_write(target, name, room):
            shutil.copyfile(source, temporary)
    return size
