"""Read gene sets from GMT files, plain or gzipped."""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from typing import BinaryIO

# Start of a login page, an error page or an XML message that was saved instead of the file.
WEB_PAGE = re.compile(r"\s*<(!doctype|!--|\?xml|html|head|body|title|script)\b", re.IGNORECASE)
GZIP_MAGIC = b"\x1f\x8b"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_LINES_SHOWN = 5


class _Stripped(dict[str, str]):
    """Field to the field without surrounding whitespace.

    A gene is in dozens of sets. It is stripped once, and all sets share one string.
    """

    def __missing__(self, field: str) -> str:
        self[field] = field.strip()
        return self[field]


def refuse_binary(data: bytes, source: str) -> None:
    """Raise a ValueError if ``data``, the start of a file, cannot be GMT text."""
    if data.startswith(GZIP_MAGIC):
        raise ValueError(
            f"{source} is gzip-compressed, but its name does not end in .gz; "
            "rename it so that it does."
        )
    if data.startswith(_UTF16_MARKS):
        raise ValueError(f"{source} is UTF-16 text; save it as UTF-8.")
    if b"\0" in data:
        raise ValueError(
            f"{source} is a binary file, not GMT text; check that it is the right file."
        )


def refuse_web_page(text: str, source: str) -> None:
    """Raise a ValueError if ``text`` starts like HTML or XML."""
    if WEB_PAGE.match(text):
        raise ValueError(
            f"{source} is a web page (HTML or XML), not a GMT file: a login or error page was "
            "probably saved instead of the file; download it again."
        )


def parse_gmt(data: bytes, source: str) -> dict[str, list[str]]:
    """Parse the uncompressed bytes of a GMT file.

    Parameters
    ----------
    data
        Content of the whole file.
    source
        Name of the file in error messages, usually its path.

    Returns
    -------
    dict
        Gene set name to list of genes, both in the order of the file, without duplicated genes.

    Raises
    ------
    ValueError
        If ``data`` is not valid GMT text.
    """
    refuse_binary(data, source)
    text = _decode(data, source)
    refuse_web_page(text, source)

    gene_sets: dict[str, list[str]] = {}
    lines_of: dict[str, list[int]] = {}
    stripped = _Stripped()
    # str.splitlines would also split at characters that a name may contain.
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        if not line or line.isspace():
            continue
        fields = line.split("\t")
        name = fields[0].strip()
        unique = dict.fromkeys(map(stripped.__getitem__, fields[2:]))
        unique.pop("", None)
        genes = list(unique)
        _check_line(name, genes, n_fields=len(fields), where=f"{source}, line {number}")
        lines_of.setdefault(name, []).append(number)
        gene_sets[name] = genes

    if not gene_sets:
        raise ValueError(
            f"{source} is empty; a GMT file has one gene set per line: its name, a description "
            "and its genes, separated by tabs."
        )
    for name, lines in lines_of.items():
        if len(lines) > 1:
            raise ValueError(
                f"{source}: the gene set {name!r} is duplicated, on lines {_enumerate(lines)}; "
                "names must be unique, so rename or remove the duplicates."
            )
    return gene_sets


def _decode(data: bytes, source: str) -> str:
    """UTF-8 text without its byte order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Positions do not include the byte order mark, if there was one.
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{source}, line {line}: not UTF-8 text (byte 0x{error.object[error.start]:02x}); "
            "save the file as UTF-8, or check that it is a GMT file."
        ) from error


def _check_line(name: str, genes: list[str], *, n_fields: int, where: str) -> None:
    """Raise a ValueError if the line is not a complete gene set."""
    if n_fields < 3:
        raise ValueError(
            f"{where}: {n_fields} tab-separated field{'s' * (n_fields > 1)} where a GMT line has "
            "a name, a description and at least one gene; the line is truncated, or the file is "
            "not separated by tabs."
        )
    if not name:
        raise ValueError(f"{where}: the gene set has no name, its first field is empty; name it.")
    if not genes:
        raise ValueError(f"{where}: the gene set {name!r} has no genes; add some or remove it.")


def _enumerate(lines: list[int]) -> str:
    """Write ``3, 7 and 9``, or only the first numbers of a long list."""
    if len(lines) > _LINES_SHOWN:
        shown = ", ".join(str(line) for line in lines[:_LINES_SHOWN])
        return f"{shown} and {len(lines) - _LINES_SHOWN} more"
    return f"{', '.join(str(line) for line in lines[:-1])} and {lines[-1]}"


# Bytes that are checked before the whole file, perhaps gigabytes of binary data, is read.
_HEAD = 8192
# The largest collections have some 300 MB. A small compressed file may unpack to any size.
_LARGEST, _PIECE = 2**30, 2**24


def read_gmt(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    r"""Read gene sets from a GMT file.

    Each line is a gene set, with fields separated by tabs: name, description, genes. The
    description is not kept. Windows line ends, a byte order mark, blank lines, tabs at the end of
    a line, empty fields and whitespace around a field are ignored, and so are duplicated genes of
    a set.

    Parameters
    ----------
    path
        Path of the file, UTF-8 text, gzip-compressed if (and only if) its name ends in ``.gz``.

    Returns
    -------
    dict
        Gene set name to list of genes, both in the order of the file. Every set has at least one
        gene.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    IsADirectoryError
        If ``path`` is a folder.
    TypeError
        If ``path`` is not a path.
    ValueError
        If the file is empty, binary, a web page, not UTF-8, a truncated or damaged gzip file, or
        larger than 1 GB, unpacked; if a line has fewer than three fields, no name or no gene; or if
        two sets share a name. The message names the line.

    See Also
    --------
    write_gmt : write gene sets to a GMT file.
    load : load a named collection.

    Notes
    -----
    The Broad Institute describes the format: GMT, Gene Matrix Transposed file format,
    https://docs.gsea-msigdb.org/#GSEA/Data_Formats/.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import tosica
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "markers.gmt"
    ...     _ = path.write_text("T cell\tna\tCD3D\tCD3E\nB cell\tna\tCD79A\tMS4A1\tCD79A\n")
    ...     tosica.gs.read_gmt(path)
    {'T cell': ['CD3D', 'CD3E'], 'B cell': ['CD79A', 'MS4A1']}
    """
    try:
        source = os.fspath(path)
    except TypeError:
        source = None
    if not isinstance(source, str):
        raise TypeError(f"path must be a str or a pathlib.Path, not {type(path).__name__}.")
    return parse_gmt(_read_bytes(source), source)


def _read_bytes(source: str) -> bytes:
    """Content of the file, decompressed if its name ends in ``.gz``."""
    compressed = source.lower().endswith(".gz")
    try:
        with open(source, "rb") as file:
            data = file.read(_HEAD)
            if not compressed:
                refuse_binary(data, source)
            data += read_within_limit(file, source)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"There is no gene set file {source}; check the path, or load a named collection with "
            "tosica.gs.load(name)."
        ) from error
    # Windows raises a PermissionError for a folder.
    except (IsADirectoryError, PermissionError) as error:
        if os.path.isdir(source):
            raise IsADirectoryError(
                f"{source} is a folder, not a GMT file; give the path of one file."
            ) from error
        raise
    return _gunzip(data, source) if compressed and data else data


def _gunzip(data: bytes, source: str) -> bytes:
    if not data.startswith(GZIP_MAGIC):
        refuse_web_page(data[:_HEAD].decode("utf-8-sig", errors="replace"), source)
        raise ValueError(
            f"{source} is not gzip-compressed although its name ends in .gz; remove .gz from the "
            "name if it is plain text, or download the file again."
        )
    try:
        with gzip.open(io.BytesIO(data)) as file:
            head = file.read(_HEAD)
            refuse_binary(head, source)
            return head + read_within_limit(file, source)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{source} is a truncated or damaged gzip file ({str(error).rstrip('.')}); "
            "copy or download it again."
        ) from error


def read_within_limit(file: BinaryIO | gzip.GzipFile, source: str) -> bytes:
    """Read the rest of a file, as long as it is not larger than any collection of gene sets.

    Raises
    ------
    ValueError
        If it is.
    """
    pieces: list[bytes] = []
    size = 0
    while piece := file.read(_PIECE):
        size += len(piece)
        if size > _LARGEST:
            raise ValueError(
                f"{source} holds more than {_LARGEST // 2**20} MB of text, as no collection of "
                "gene sets does; check that it is the right file."
            )
        pieces.append(piece)
    return b"".join(pieces)
