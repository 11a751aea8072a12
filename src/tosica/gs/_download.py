"""Files that are downloaded once and kept: whole, checked, and never half there.

Beside each file lies a record, `<file>.json`, with the hash that it had at its first download.
Both are written under another name and moved into place, so that an interruption or a second
process leaves a whole file or none.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pooch
from requests.exceptions import HTTPError, RequestException

from tosica._logging import format_thousands, logger
from tosica.gs._read_gmt import parse_gmt

_TIMEOUT = 30
_CHUNK = 1 << 16
# Of a hash, what is shown of it in a sentence.
_SHOWN = 12


def cache_folder() -> Path:
    """Where downloads are kept: ``TOSICA_CACHE``, or the user's cache folder."""
    chosen = os.environ.get("TOSICA_CACHE")
    return Path(chosen).expanduser() if chosen else Path(pooch.os_cache("tosica"))


def read_record(path: Path) -> dict[str, Any] | None:
    """What is known of the file since its first download; None if it was never downloaded."""
    try:
        record = json.loads(_record_of(path).read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and "sha256" in record else None


def fetch_gmt(url: str, path: Path) -> dict[str, list[str]]:
    """Gene sets of a GMT file, from the cache if it is there and whole, else from the server.

    Parameters
    ----------
    url
        Where to download it from.
    path
        Where it is kept.

    Raises
    ------
    ConnectionError
        If the server cannot be reached, does not have the file or breaks off.
    PermissionError, OSError
        If the cache cannot be written to.
    ValueError
        If what came is no GMT file, or not the one of the first download.
    """
    record = read_record(path)
    content = _read(path)
    if content is not None:
        if record is None:
            # Put there by hand, on a machine without a network.
            gene_sets = parse_gmt(content, str(path))
            _record(path, content, gene_sets, url)
            return gene_sets
        if _hash(content) == record["sha256"]:
            return parse_gmt(content, str(path))
        logger.warning("%s is not what was downloaded: downloading it again", path)
    temporary = _temporary_beside(path)
    try:
        content = _download(url, temporary, path)
        gene_sets = parse_gmt(content, url)
        if record is not None and _hash(content) != record["sha256"]:
            raise _other_content(url, path, content, record)
        record = _record(path, content, gene_sets, url)
        # Another process may have been first.
        if record is not None and _hash(content) != record["sha256"]:
            raise _other_content(url, path, content, record)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    logger.info("downloaded %s gene sets to %s", format_thousands(len(gene_sets)), path)
    return gene_sets


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise type(error)(
            f"{path} in the cache cannot be read ({_reason(error)}): make it readable, or set "
            "TOSICA_CACHE to another folder."
        ) from error


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _temporary_beside(path: Path) -> Path:
    """An empty file in the folder of `path`, which shows whether anything can be written there."""
    temporary = path.with_name(f".{path.name}-{uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    except OSError as error:
        raise type(error)(
            f"Gene sets cannot be kept in {path.parent} ({_reason(error)}): set TOSICA_CACHE to a "
            "folder that you may write to."
        ) from error
    return temporary


def _download(url: str, temporary: Path, path: Path) -> bytes:
    by_hand = f"try again, or fetch the file elsewhere and put it at {path}"
    try:
        pooch.HTTPDownloader(progressbar=True, timeout=_TIMEOUT, chunk_size=_CHUNK)(
            url, str(temporary), None
        )
    except HTTPError as error:
        status = 0 if error.response is None else error.response.status_code
        what = f"HTTP status {status}"
        advice = "check the version, " if status == 404 else ""
        raise ConnectionError(
            f"The server does not give {url} ({what}): {advice}{by_hand}."
        ) from error
    except RequestException as error:
        what = type(error).__name__
        raise ConnectionError(
            f"{url} could not be downloaded, or not to its end ({what}): check the network, "
            f"{by_hand}."
        ) from error
    except OSError as error:
        raise type(error)(
            f"{url} could not be written to {path.parent} ({_reason(error)}): make room, or set "
            "TOSICA_CACHE to another folder."
        ) from error
    return temporary.read_bytes()


def _record(
    path: Path, content: bytes, gene_sets: dict[str, list[str]], url: str
) -> dict[str, Any] | None:
    """Keep the hash of a file's first download, and give the record that holds."""
    target = _record_of(path)
    record = {
        "sha256": _hash(content),
        "url": url,
        "n_sets": len(gene_sets),
        "n_genes": len({gene for genes in gene_sets.values() for gene in genes}),
    }
    temporary = target.with_name(f".{target.name}-{uuid4().hex}.tmp")
    try:
        temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        if target.exists() and read_record(path) is None:
            target.unlink(missing_ok=True)
        # Unlike a move, a link never takes the place of another process's record.
        os.link(temporary, target)
    except FileExistsError:
        pass
    except OSError:
        # No links on this file system, or a file that was put by hand where nothing can be written.
        if temporary.exists():
            os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return read_record(path)


def _other_content(url: str, path: Path, content: bytes, record: dict[str, Any]) -> ValueError:
    return ValueError(
        f"{url} has another content (sha256 {_hash(content)[:_SHOWN]}…) than at its first download "
        f"({record['sha256'][:_SHOWN]}…), so it was not kept: if the new file is right, delete "
        f"{_record_of(path)} and try again."
    )
