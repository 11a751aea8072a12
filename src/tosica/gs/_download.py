"""Download GMT files once, check them, and keep them in the cache.

Each file in the cache has a record beside it, `<file>.json`, with its hash at the first download.
Both are written in a temporary folder and then renamed, so that an interruption or a second
process leaves a complete file or none.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pandas as pd

from tosica._download import cache_folder, download, reason
from tosica._logging import format_thousands, logger
from tosica._replace_files import sync, temporary_folder
from tosica.gs._read_gmt import parse_gmt, read_within_limit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Digits of a hash that a message shows.
_SHOWN = 12


def describe_cached(name: str) -> dict[str, Any]:
    """Whether a file is in the cache, and how many gene sets and genes it has.

    Parameters
    ----------
    name
        Path of the file below the cache folder, as for :func:`fetch_gmt`.

    Returns
    -------
    dict
        ``available``, ``n_sets`` and ``n_genes``; the numbers are ``pandas.NA`` before the first
        download.
    """
    path = cache_folder() / name
    record = _read_record(path) or {}
    return {
        "available": path.is_file(),
        "n_sets": record.get("n_sets", pd.NA),
        "n_genes": record.get("n_genes", pd.NA),
    }


def fetch_gmt(url: str, name: str) -> dict[str, list[str]]:
    """Read the gene sets of a GMT file from the cache, and download it before if needed.

    Parameters
    ----------
    url
        URL of the file.
    name
        Path of the file below the cache folder, which is ``TOSICA_CACHE`` or the user's cache.

    Returns
    -------
    dict
        Gene set name to list of genes.

    Raises
    ------
    ConnectionError
        If the server cannot be reached, does not have the file, or the download is incomplete.
    PermissionError, OSError
        If the cache cannot be written to.
    ValueError
        If the downloaded file is not GMT, or differs from that of the first download.
    """
    path = cache_folder() / name
    record = _read_record(path)
    content = _read(path)
    if content is not None:
        if record is None:
            # The user put the file there, on a machine without a network.
            gene_sets = parse_gmt(content, str(path))
            _write_record(path, content, gene_sets, url)
            return gene_sets
        if _hash(content) == record["sha256"]:
            return parse_gmt(content, str(path))
        logger.warning("%s has changed since its download: downloading it again", path)
    with _temporary_beside(path) as temporary:
        content = _download(url, temporary, path)
        gene_sets = parse_gmt(content, url)
        if record is not None and _hash(content) != record["sha256"]:
            raise _changed_content(url, path, content, record)
        record = _write_record(path, content, gene_sets, url)
        # Another process may have written its record first.
        if record is not None and _hash(content) != record["sha256"]:
            raise _changed_content(url, path, content, record)
        sync(temporary)
        os.replace(temporary, path)
    logger.info("downloaded %s gene sets to %s", format_thousands(len(gene_sets)), path)
    return gene_sets


def _read_record(path: Path) -> dict[str, Any] | None:
    """Record of a file; None if it was never downloaded, or if the record is damaged."""
    try:
        record = json.loads(_record_path(path).read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and "sha256" in record else None


def _record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return read_within_limit(file, str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise type(error)(
            f"{path} in the cache cannot be read ({reason(error)}): make it readable, or set "
            "TOSICA_CACHE to another folder."
        ) from error


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """Make a temporary folder beside a file first, to find out whether that can be written."""
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(temporary_folder(path.parent))
        except OSError as error:
            raise type(error)(
                f"Gene sets cannot be cached in {path.parent} ({reason(error)}): set TOSICA_CACHE "
                "to a folder that you may write to."
            ) from error
        yield folder / path.name


def _download(url: str, temporary: Path, path: Path) -> bytes:
    download(
        url,
        temporary,
        to=path.parent,
        check="check the version",
        advice=f"try again, or fetch the file elsewhere and put it at {path}",
    )
    with temporary.open("rb") as file:
        return read_within_limit(file, url)


def _write_record(
    path: Path, content: bytes, gene_sets: dict[str, list[str]], url: str
) -> dict[str, Any] | None:
    """Write the record of a first download unless there is one; return the one that is valid."""
    target = _record_path(path)
    record = {
        "sha256": _hash(content),
        "url": url,
        "n_sets": len(gene_sets),
        "n_genes": len({gene for genes in gene_sets.values() for gene in genes}),
    }
    # The user's folder may be read-only.
    with suppress(OSError), temporary_folder(target.parent) as folder:
        temporary = folder / target.name
        temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        sync(temporary)
        if target.exists() and _read_record(path) is None:
            target.unlink(missing_ok=True)
        try:
            # Unlike a rename, a link never replaces the record of another process.
            os.link(temporary, target)
        except FileExistsError:
            pass
        except OSError:
            # The file system has no links.
            os.replace(temporary, target)
    return _read_record(path)


def _changed_content(url: str, path: Path, content: bytes, record: dict[str, Any]) -> ValueError:
    return ValueError(
        f"{url} has changed since its first download (sha256 {_hash(content)[:_SHOWN]}… instead of "
        f"{record['sha256'][:_SHOWN]}…), so it was not kept: if the new file is right, delete "
        f"{_record_path(path)} and try again."
    )
