"""Download one file into a temporary place; every failure is one sentence."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pooch
from requests.exceptions import HTTPError, RequestException

from tosica._settings import settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_TIMEOUT = 30
_CHUNK = 1 << 16


def cache_folder() -> Path:
    """The folder in ``TOSICA_CACHE``, or else the user's cache."""
    chosen = os.environ.get("TOSICA_CACHE")
    return Path(chosen).expanduser() if chosen else Path(pooch.os_cache("tosica"))


def reason(error: OSError) -> str:
    """What the system says of a failure, without its number and paths."""
    return error.strerror or str(error)


def download(
    url: str,
    target: Path,
    *,
    to: Path,
    check: str,
    advice: str,
    room: str = "set TOSICA_CACHE to another folder",
    progress: bool = True,
    most: int | None = None,
) -> None:
    """Download a file with pooch, without keeping or checking it.

    Parameters
    ----------
    url
        Address of the file, ``http`` or ``https``.
    target
        Temporary path to write to.
    to
        Folder that the file is for, for messages.
    check
        What may be wrong if the server does not have the file, such as ``"check the version"``.
    advice
        What else to do after a failure.
    room
        What to do if there is no room on the disk, besides making some.
    progress
        Whether to draw a progress bar, unless ``tosica.settings`` says that there are none.
    most
        Bytes that the file may have at most. By default there is no limit.

    Raises
    ------
    ConnectionError
        If the server cannot be reached, does not have the file, or the download is incomplete.
    ValueError
        If the file is larger than ``most``.
    OSError
        If the file cannot be written.
    """
    try:
        with target.open("wb") as file, _closing_responses() as hooks:
            output = file if most is None else _Limited(file, most)
            pooch.HTTPDownloader(
                progressbar=progress and settings.shows_progress,
                timeout=_TIMEOUT,
                chunk_size=_CHUNK,
                hooks=hooks,
            )(url, output, None)
    except _TooLargeError as error:
        raise ValueError(
            f"{url} is larger than {most} bytes, so it was not kept: {check}, or {advice}."
        ) from error
    except HTTPError as error:
        status = 0 if error.response is None else error.response.status_code
        first = f"{check}, " if status == 404 else ""
        raise ConnectionError(
            f"The server does not provide {url} (HTTP status {status}): {first}{advice}."
        ) from error
    except RequestException as error:
        raise ConnectionError(
            f"{url} could not be downloaded completely ({type(error).__name__}): check the "
            f"network, {advice}."
        ) from error
    except OSError as error:
        raise type(error)(
            f"{url} could not be written to {to} ({reason(error)}): make room, or {room}."
        ) from error


@contextmanager
def _closing_responses() -> Iterator[dict[str, Any]]:
    """Close what pooch leaves open if a download fails: yields hooks for requests."""
    responses: list[Any] = []
    try:
        yield {"response": lambda response, *_args, **_kwargs: responses.append(response)}
    finally:
        for response in responses:
            response.close()


class _TooLargeError(Exception):
    """More was sent than the file may have."""


class _Limited:
    """A file that takes a number of bytes at most, since a server may send any number."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file = file
        self._left = most

    def write(self, content: bytes) -> int:
        self._left -= len(content)
        if self._left < 0:
            raise _TooLargeError
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()
