"""Reading GMT files."""

from __future__ import annotations

import gzip
import os
import zlib

from tosica.gs._parse_gmt import GZIP_MAGIC, parse_gmt, refuse_binary, refuse_web_page

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
        msg = f"path must be a str or a pathlib.Path, not {type(path).__name__}."
        raise TypeError(msg)
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
        msg = (
            f"There is no gene set file {source}; check the path, or take a collection that "
            "comes with tosica: tosica.gs.load(name)."
        )
        raise FileNotFoundError(msg) from error
    # Windows answers a folder with PermissionError.
    except (IsADirectoryError, PermissionError) as error:
        if os.path.isdir(source):
            msg = f"{source} is a folder, not a GMT file; give the path of one file."
            raise IsADirectoryError(msg) from error
        raise
    return _gunzip(data, source) if compressed and data else data


def _gunzip(data: bytes, source: str) -> bytes:
    if not data.startswith(GZIP_MAGIC):
        refuse_web_page(data[:_HEAD].decode("utf-8-sig", errors="replace"), source)
        msg = (
            f"{source} is not gzip-compressed although its name ends in .gz; remove .gz from the "
            "name if it is plain text, or fetch the file again."
        )
        raise ValueError(msg)
    try:
        return gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        msg = (
            f"{source} is a truncated or damaged gzip file ({str(error).rstrip('.')}); "
            "copy or download it again."
        )
        raise ValueError(msg) from error
