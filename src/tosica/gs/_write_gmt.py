"""Write gene sets to GMT files."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tosica._replace_files import replacing
from tosica._validation import check_path
from tosica.gs._read_gmt import WEB_PAGE

# Placeholder in the files of the Broad Institute.
_NO_DESCRIPTION = "na"
_SEPARATORS = {"\t": "a tab", "\n": "a line break", "\r": "a line break", "\0": "a null character"}


def write_gmt(
    gene_sets: Mapping[str, Iterable[str]],
    path: str | os.PathLike[str],
    *,
    descriptions: Mapping[str, str] | None = None,
) -> None:
    """Write gene sets to a GMT file.

    The file is written under a temporary name and then renamed, so that a full disk or an
    interruption neither leaves an incomplete file nor damages an existing one. The same gene sets
    give the same bytes: a ``.gz`` file contains neither the time nor its own name.

    Parameters
    ----------
    gene_sets
        Gene set name to genes. Duplicated genes of a set are written once. A Python ``set``, which
        has no order, is written sorted.
    path
        Path of the file, gzip-compressed if its name ends in ``.gz``. An existing file is replaced.
    descriptions
        Gene set name to the second field of its line. Sets without a description get ``"na"``.

    Raises
    ------
    FileNotFoundError
        If the folder to write to does not exist.
    IsADirectoryError
        If ``path`` is a folder.
    OSError
        If the file cannot be written. An existing file is unchanged.
    TypeError
        If ``gene_sets`` or ``descriptions`` is not a mapping, if genes are not an iterable of
        strings, or if a name, gene or description is not a string.
    ValueError
        If there is no gene set, if a set has no genes, if ``descriptions`` names an unknown set, or
        if :func:`read_gmt` would change a name, gene or description, because it is empty, contains
        a tab or a line break, or starts or ends with whitespace.

    See Also
    --------
    read_gmt : read gene sets from a GMT file.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import tosica
    >>> markers = {"T cell": ["CD3D", "CD3E"], "B cell": ["CD79A", "MS4A1"]}
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "markers.gmt.gz"
    ...     tosica.gs.write_gmt(markers, path, descriptions={"T cell": "by hand"})
    ...     tosica.gs.read_gmt(path) == markers
    True
    """
    check_path("path", path)
    content = _format(gene_sets, {} if descriptions is None else descriptions).encode()
    # If the path is a link, the file that it points to is replaced.
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the path of the GMT file to write.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {target.parent} to write to; create it first.")
    with replacing(target) as [temporary]:
        temporary.write_bytes(compress(content) if target.name.lower().endswith(".gz") else content)


def _format(gene_sets: Mapping[str, Iterable[str]], descriptions: Mapping[str, str]) -> str:
    for argument, value in (("gene_sets", gene_sets), ("descriptions", descriptions)):
        if not isinstance(value, Mapping):
            raise TypeError(
                f"{argument} must be a dict of gene set names, not {type(value).__name__}."
            )
    if not gene_sets:
        raise ValueError("There is no gene set to write: gene_sets is empty.")
    unknown = [name for name in descriptions if name not in gene_sets]
    if unknown:
        raise ValueError(
            f"descriptions names {unknown[0]!r}, which is not in gene_sets; remove it."
        )

    lines = []
    for name, genes in gene_sets.items():
        _check_text(name, "The gene set name")
        if name.startswith("\ufeff") or WEB_PAGE.match(name):
            raise ValueError(
                f"The gene set name {name!r} starts like a web page or with a byte order mark, so "
                "read_gmt could not read it; rename the set."
            )
        description = descriptions.get(name, _NO_DESCRIPTION)
        _check_text(description, f"The description of {name!r}", empty=True)
        lines.append("\t".join([name, description, *_unique_genes(name, genes)]) + "\n")
    return "".join(lines)


def _unique_genes(name: str, genes: Iterable[str]) -> list[str]:
    if isinstance(genes, str) or not isinstance(genes, Iterable):
        raise TypeError(
            f"The genes of {name!r} must be a list of strings, not "
            f"{'one string' if isinstance(genes, str) else type(genes).__name__}."
        )
    unique = list(dict.fromkeys(genes))
    if not unique:
        raise ValueError(f"The gene set {name!r} has no genes; add some or leave it out.")
    for gene in unique:
        _check_text(gene, f"A gene of {name!r}")
    return sorted(unique) if isinstance(genes, (set, frozenset)) else unique


def _check_text(text: object, what: str, *, empty: bool = False) -> None:
    """Raise an error for a field that ``read_gmt`` would change."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a string, not {type(text).__name__}: {text!r}.")
    if not text and not empty:
        raise ValueError(f"{what} is an empty string; fill it in or leave it out.")
    for character, called in _SEPARATORS.items():
        if character in text:
            raise ValueError(f"{what} contains {called}, which a GMT file cannot store: {text!r}.")
    if text != text.strip():
        raise ValueError(f"{what} starts or ends with whitespace; strip it: {text!r}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} cannot be written as UTF-8: {text!r}.") from error


def compress(content: bytes) -> bytes:
    """Compress to the same bytes on every machine."""
    # gzip.compress lets zlib write the operating system into the header.
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as file:
        file.write(content)
    return buffer.getvalue()
