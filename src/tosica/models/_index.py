"""An index of models: a JSON file with their files, sizes and hashes, checked value by value.

It may lie in a folder or on a web server. Files of a model are named by the package, not by the
index, and lie below the index or at an address of a web server, so that an index cannot make the
package read or write anything else.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin
from urllib.request import url2pathname

from tosica._download import cache_folder, download, reason
from tosica._logging import logger
from tosica._replace_files import replacing
from tosica.model._model_about import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

INDEX_FILE = "index.json"
VARIABLE = "TOSICA_MODEL_INDEX"
FORMAT = 1
# Files of a model, the one that is needed first.
MODEL_FILES = ("model.pt", "README.md")
# Texts and numbers that an index states of a model.
TEXTS = ("tissue", "organism", "version", "license", "doi", "description", "citation", "contact")
NUMBERS = ("n_labels", "n_cells")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# An index of thousands of models is smaller, a model of a few labels and thousands of genes too.
_LARGEST_INDEX, _LARGEST_FILE = 2**24, 2**36
_TOO_MANY = 2**63


@dataclass(frozen=True)
class File:
    """One file of a model: its address, bytes and SHA-256."""

    address: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Entry:
    """One model of an index; ``about`` has what the index states of it."""

    name: str
    url: str
    files: Mapping[str, File]
    about: Mapping[str, Any]


@dataclass(frozen=True)
class Index:
    """The models of an index by name, and the address or path that it was read from."""

    address: str
    entries: Mapping[str, Entry]


def is_model_name(name: str) -> bool:
    """Whether a name can be that of a model, and so of a folder."""
    return bool(_NAME.fullmatch(name)) and not name.endswith(".")


def is_web(address: str) -> bool:
    """Whether an address is one of a web server."""
    return address.lower().startswith(("http://", "https://"))


def read_index(index: str | os.PathLike[str] | None) -> Index:
    """Read an index and check everything in it.

    Parameters
    ----------
    index
        Address, path or folder of the index; ``None`` for the one in ``TOSICA_MODEL_INDEX``.

    Raises
    ------
    TypeError
        If it is neither an address nor a path.
    ValueError
        If there is none to read, or it is damaged or no index.
    FileNotFoundError
        If there is no such file.
    ConnectionError
        If it cannot be downloaded, and there is no copy of it in the cache.
    """
    address = _find(index)
    content = _download_index(address) if is_web(address) else _read_file(Path(address))
    return parse_index(content, address)


def parse_index(content: bytes, address: str) -> Index:
    """Check the content of an index.

    Raises
    ------
    ValueError
        If it is no index, or states anything that cannot be.
    """
    try:
        held = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{address} is not JSON, so it is no index of models: check the address, or write one "
            "with tosica.models.write_index(folder)."
        ) from error
    if not isinstance(held, dict) or not isinstance(held.get("models"), dict):
        raise ValueError(
            f"{address} has no 'models', so it is no index of models: check the address, or write "
            "one with tosica.models.write_index(folder)."
        )
    if held.get("format") != FORMAT:
        raise ValueError(
            f"{address} is an index of format {held.get('format')!r}, and this version of tosica "
            f"reads format {FORMAT}: update tosica, or write the index anew."
        )
    models = held["models"].items()
    return Index(address, {name: _read_entry(name, fields, address) for name, fields in models})


def _find(index: Any) -> str:
    """Address of a web server, or path of a file."""
    if index is None:
        index = os.environ.get(VARIABLE) or None
    if index is None:
        raise ValueError(
            f"There is no index of models to read: pass index, or set {VARIABLE} to the address or "
            "path of one; tosica.models.write_index(folder) writes it."
        )
    if not isinstance(index, str | os.PathLike):
        raise TypeError(
            f"index must be the address or path of an index, not {type(index).__name__}."
        )
    address = os.fspath(index)
    if not address:
        raise ValueError("index is an empty string, and must be an address or a path.")
    if is_web(address):
        return f"{address}{INDEX_FILE}" if address.endswith("/") else address
    scheme, colon, path_of_file = address.partition("://")
    if colon and scheme.lower() != "file":
        raise ValueError(f"index must begin with http, https or file, or be a path: {address!r}.")
    if colon:
        address = url2pathname(path_of_file)
    path = Path(address).expanduser()
    return str(path / INDEX_FILE if path.is_dir() else path)


def _read_file(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no index of models {str(path)!r}: check the path, or write one with "
            "tosica.models.write_index(folder)."
        )
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_INDEX)
    except OSError as error:
        raise type(error)(
            f"{str(path)!r} cannot be read ({reason(error)}): make it readable."
        ) from error


def _download_index(address: str) -> bytes:
    """Download an index; without the server, take the copy of the last time."""
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    kept = cache_folder() / "models" / f"index-{digest}.json"
    with TemporaryDirectory() as folder:
        temporary = Path(folder) / INDEX_FILE
        try:
            download(
                address,
                temporary,
                to=Path(folder),
                check="check the address of the index",
                advice="try again",
                progress=False,
                most=_LARGEST_INDEX,
            )
            content = temporary.read_bytes()
        except ConnectionError as error:
            with suppress(OSError):
                content = kept.read_bytes()
                logger.warning("models: %s The copy of the last time is used.", error)
                return content
            raise
    # Only what is an index is kept, and a cache that cannot be written to is none.
    parse_index(content, address)
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as [name]:
            name.write_bytes(content)
    return content


# ------------------------------------------------------------------------------- one model


def _read_entry(name: str, fields: Any, address: str) -> Entry:
    where = f"The index {address} is damaged: model {name!r}"
    if not is_model_name(name):
        raise ValueError(
            f"{where} has a name that no folder should have: names are letters, digits, '.', '_' "
            "and '-', and begin with a letter or digit."
        )
    if not isinstance(fields, dict):
        raise ValueError(f"{where} is no object with 'url' and 'files'.")
    missing = [key for key in ("url", "files") if key not in fields]
    if missing:
        raise ValueError(f"{where} has no {' and no '.join(map(repr, missing))}.")
    url = _resolve(fields["url"], address, where)
    files = fields["files"]
    if not isinstance(files, dict) or MODEL_FILES[0] not in files or set(files) - set(MODEL_FILES):
        raise ValueError(
            f"{where} must list the file {MODEL_FILES[0]!r}, and besides it at most "
            f"{MODEL_FILES[1]!r}."
        )
    listed = [each for each in MODEL_FILES if each in files]
    return Entry(
        name,
        url,
        {each: _read_file_entry(each, files[each], url, where) for each in listed},
        {key: _stated(key, fields.get(key), where) for key in (*TEXTS, *NUMBERS)},
    )


def _resolve(url: Any, address: str, where: str) -> str:
    """Address or path of the folder of a model, which the index names relative to itself."""
    if not isinstance(url, str) or not url:
        raise ValueError(f"{where} has a 'url' that is no string.")
    # A colon would begin another protocol, or name a disk of Windows.
    is_below = (
        ":" not in url
        and not url.startswith(("/", "\\", "~"))
        and not {"..", ""} & set(url.rstrip("/").replace("\\", "/").split("/"))
    )
    if not url.isprintable() or not (is_below or is_web(url)):
        raise ValueError(
            f"{where} has the 'url' {url!r}, which is neither a folder below the index nor an "
            "address that begins with http or https."
        )
    folder = url if url.endswith("/") else f"{url}/"
    if not is_below:
        return folder
    return urljoin(address, folder) if is_web(address) else str(Path(address).parent / folder)


def _read_file_entry(name: str, fields: Any, url: str, where: str) -> File:
    stated = fields if isinstance(fields, dict) else {}
    size, sha256 = stated.get("size"), stated.get("sha256")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _LARGEST_FILE:
        raise ValueError(f"{where} has no 'size' in bytes for {name!r}.")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256.lower()):
        raise ValueError(f"{where} has no 'sha256' of 64 hexadecimal digits for {name!r}.")
    address = f"{url}{name}" if is_web(url) else str(Path(url) / name)
    return File(address, size, sha256.lower())


def _stated(key: str, value: Any, where: str) -> Any:
    """A text or a number that the index states, which may be missing."""
    if value is None:
        return None
    if key in NUMBERS:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _TOO_MANY:
            raise ValueError(f"{where} has a {key!r} that is no number of anything.")
        return value
    if not isinstance(value, str):
        raise ValueError(f"{where} has a {key!r} that is no string.")
    # Others' texts shall not move the cursor of a terminal.
    return one_line(value)
