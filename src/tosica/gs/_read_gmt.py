"""Read gene sets from GMT files, plain or gzipped."""

from __future__ import annotations

import gzip
import os
import re
import zlib

# How a saved login page, error page or XML error message of a download server begins.
WEB_PAGE = re.compile(r"\s*<(!doctype|!--|\?xml|html|head|body|title|script)\b", re.IGNORECASE)
GZIP_MAGIC = b"\x1f\x8b"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_LINES_SHOWN = 5


class _Stripped(dict[str, str]):
    """Fields without the blanks around them.

    A gene is in dozens of sets: this strips it once, and one string object serves all of them.
    """

    def __missing__(self, field: str) -> str:
        self[field] = field.strip()
        return self[field]


def refuse_binary(data: bytes, source: str) -> None:
    """Raise a ValueError if `data`, a file or its beginning, cannot be GMT text."""
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
    """Raise a ValueError if `text` begins as HTML or XML does."""
    if WEB_PAGE.match(text):
        raise ValueError(
            f"{source} is a web page (HTML or XML), not a GMT file: a login or error page was "
            "probably saved in place of the download; fetch the file again."
        )


def parse_gmt(data: bytes, source: str) -> dict[str, list[str]]:
    """Turn the (uncompressed) bytes of a GMT file into gene sets.

    Parameters
    ----------
    data
        The whole file.
    source
        What to call the file in error messages, usually its path.

    Returns
    -------
    Gene set name to genes, both in the order of the file, each gene once a set.

    Raises
    ------
    ValueError
        If `data` is not whole GMT text.
    """
    refuse_binary(data, source)
    text = _decode(data, source)
    refuse_web_page(text, source)

    gene_sets: dict[str, list[str]] = {}
    lines_of: dict[str, list[int]] = {}
    stripped = _Stripped()
    # Not str.splitlines: it also cuts at characters that a name may hold.
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
            f"{source} is empty; a GMT file holds one gene set a line: its name, a description "
            "and its genes, separated by tabs."
        )
    for name, lines in lines_of.items():
        if len(lines) > 1:
            raise ValueError(
                f"{source}: the gene set {name!r} is there more than once, on lines "
                f"{_enumerate(lines)}; names must be unique, so rename or remove the others."
            )
    return gene_sets


def _decode(data: bytes, source: str) -> str:
    """UTF-8 text without its byte order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Positions count from behind the byte order mark, if there was one.
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{source}, line {line}: not UTF-8 text (byte 0x{error.object[error.start]:02x}); "
            "save the file as UTF-8, or check that it is a GMT file."
        ) from error


def _check_line(name: str, genes: list[str], *, n_fields: int, where: str) -> None:
    """Raise a ValueError unless the line is a whole gene set."""
    if n_fields < 3:
        raise ValueError(
            f"{where}: {n_fields} tab-separated field{'s' * (n_fields > 1)} where a GMT line has "
            "a name, a description and at least one gene; the line is truncated, or the file is "
            "not separated by tabs."
        )
    if not name:
        raise ValueError(f"{where}: the gene set has no name, its first field is empty; name it.")
    if not genes:
        raise ValueError(f"{where}: the gene set {name!r} holds no gene; add some or remove it.")


def _enumerate(lines: list[int]) -> str:
    """`3, 7 and 9`, cut short where a whole column repeats itself."""
    if len(lines) > _LINES_SHOWN:
        shown = ", ".join(str(line) for line in lines[:_LINES_SHOWN])
        return f"{shown} and {len(lines) - _LINES_SHOWN} more"
    return f"{', '.join(str(line) for line in lines[:-1])} and {lines[-1]}"


# Enough to see that a file is not text before gigabytes of it are in memory.
_HEAD = 8192


def read_gmt(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    r"""Read gene sets from a GMT file.

    One gene set a line, fields separated by tabs: name, description, genes. The description is
    not kept. Windows line ends, a byte order mark, blank lines, tabs at the end of a line, empty
    fields and blanks around a field do no harm; a gene that a line repeats is kept once.

    Parameters
    ----------
    path
        The file: UTF-8 text, gzip-compressed if (and only if) its name ends in ``.gz``.

    Returns
    -------
    dict
        Gene set name to list of genes, sets and genes in the order of the file. Every set has at
        least one gene.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    IsADirectoryError
        If `path` is a folder.
    TypeError
        If `path` is not a path.
    ValueError
        If the file is empty, binary, a web page, not UTF-8, or a truncated or damaged gzip file;
        if a line has fewer than three fields, no name or no gene; if two sets share a name. The
        message tells the line.

    See Also
    --------
    write_gmt : the way back.
    load : collections that come with the package.

    Notes
    -----
    The format is described by the Broad Institute: GMT, Gene Matrix Transposed file format,
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
    """The file's content, decompressed if its name says so."""
    compressed = source.lower().endswith(".gz")
    try:
        with open(source, "rb") as file:
            data = file.read(_HEAD)
            if not compressed:
                refuse_binary(data, source)
            data += file.read()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"There is no gene set file {source}; check the path, or take a collection that "
            "comes with tosica: tosica.gs.load(name)."
        ) from error
    # Windows answers a folder with PermissionError.
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
            "name if it is plain text, or fetch the file again."
        )
    try:
        return gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{source} is a truncated or damaged gzip file ({str(error).rstrip('.')}); "
            "copy or download it again."
        ) from error
