"""Read and write GMT files."""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tosica._files import replace_file, resolve_output
from tosica._settings import warn_user
from tosica._text import list_names
from tosica._validate import InstanceOf, validate_params
from tosica.gs._gene_table import ORGANISMS, gene_table
from tosica.gs._spelling import ENSEMBL

if TYPE_CHECKING:
    from tosica._types import AnyPath

# Placeholder in the files of the Broad Institute.
_NO_DESCRIPTION = "na"
_GZIP_MAGIC = b"\x1f\x8b"


@validate_params()
def read_gmt(path: AnyPath) -> dict[str, list[str]]:
    r"""Read gene sets from a GMT file.

    Each line is a gene set, with fields separated by tabs: name, description, genes. The
    description is not kept. Windows line ends, a byte order mark, blank lines, tabs at the end of
    a line, empty fields and whitespace around a field are ignored, and so are duplicated genes of
    a set.

    Parameters
    ----------
    path
        Path of the file, UTF-8 text, plain or gzip-compressed.

    Returns
    -------
    dict
        Gene set name to list of genes, both in the order of the file. Every set has at least one
        gene.

    Raises
    ------
    OSError
        If the file cannot be opened.
    TypeError
        If ``path`` is not a path.
    ValueError
        If the file is not UTF-8 text or a damaged gzip file; if a line lacks a name, a description
        or a gene; if two sets share a name; or if there is no set. The message names the line.

    Warns
    -----
    UserWarning
        If there are genes in the place of descriptions; they are kept as genes.

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
    ...     _ = path.write_text(
    ...         "T cell\tna\tCD3D\tCD3E\nB cell\tna\tCD79A\tMS4A1\tCD79A\n"
    ...     )
    ...     tosica.gs.read_gmt(path)
    {'T cell': ['CD3D', 'CD3E'], 'B cell': ['CD79A', 'MS4A1']}
    """
    return parse_gmt(Path(path).read_bytes(), os.fspath(path))


def is_gmt_path(text: str) -> bool:
    """Tell the path of a GMT file from the name of a collection."""
    return text.lower().endswith((".gmt", ".gmt.gz"))


def parse_gmt(content: bytes, source: str) -> dict[str, list[str]]:
    """Parse the bytes of a GMT file, called ``source`` in error messages."""
    gene_sets: dict[str, list[str]] = {}
    descriptions: list[str] = []
    # A gene is in dozens of sets, and all share one string.
    shared: dict[str, str] = {}
    # str.splitlines would also split at characters that a name may contain.
    for number, line in enumerate(re.split("\r\n|\r|\n", _decode(content, source)), 1):
        if not line.strip():
            continue
        name, *fields = (field.strip() for field in line.split("\t"))
        genes = dict.fromkeys(shared.setdefault(gene, gene) for gene in fields[1:])
        genes.pop("", None)
        if not name or not genes:
            raise ValueError(
                f"{source}, line {number}: a line of a GMT file has a name, a description and at least one gene, "
                f"separated by tabs, but this one is {line[:40]!r}; complete it, or check that it is the right file."
            )
        if name in gene_sets:
            raise ValueError(
                f"{source}, line {number}: the gene set {name!r} is duplicated; rename or remove one."
            )
        gene_sets[name] = list(genes)
        descriptions.append(fields[0])
    if not gene_sets:
        raise ValueError(
            f"{source} holds no gene set; check that it is the right file."
        )
    if _are_genes(descriptions, shared):
        examples = list_names(descriptions, 2)
        warn_user(
            f"{source} has no column of descriptions: its second column holds genes ({examples}), which were kept."
        )
        for description, (name, genes_of_set) in zip(
            descriptions, list(gene_sets.items()), strict=True
        ):
            if description:
                gene_sets[name] = list(dict.fromkeys([description, *genes_of_set]))
    return gene_sets


def _decode(content: bytes, source: str) -> str:
    try:
        if content.startswith(_GZIP_MAGIC):
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(
            f"{source} is neither UTF-8 text nor a gzip file of it ({error}): download or save it again."
        ) from error


def _are_genes(descriptions: list[str], genes: Iterable[str]) -> bool:
    """Whether most descriptions are gene names."""
    texts = {text for text in descriptions if text and text.lower() != _NO_DESCRIPTION}
    # Most descriptions are the same text, an accession, an address or a sentence, which
    # are recognized without a table of genes.
    if 2 * len(texts) <= len(descriptions):
        return False
    if any(re.search(r"[ /:]", text) for text in texts):
        return False
    upper = {text.upper() for text in texts}
    gene_names = {gene.upper() for gene in genes}
    if _are_most(upper & gene_names, upper):
        return True
    for organism in ORGANISMS:
        table = gene_table(organism)
        gene_names |= table.by_upper_case.keys() | table.genes_of(ENSEMBL).keys()
    return _are_most(upper & gene_names, upper)


def _are_most(subset: set[str], names: set[str]) -> bool:
    return 2 * len(subset) > len(names)


@validate_params(
    gene_sets=InstanceOf("a dict of gene set names to genes", Mapping),
    descriptions=InstanceOf(
        "a dict of gene set names to texts", Mapping, optional=True
    ),
)
def write_gmt(
    gene_sets: Mapping[str, Iterable[str]],
    path: AnyPath,
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
    if not gene_sets:
        raise ValueError("There is no gene set to write: gene_sets is empty.")
    descriptions = descriptions or {}
    for name in descriptions:
        if name not in gene_sets:
            raise ValueError(
                f"descriptions names {name!r}, which is not in gene_sets; remove it."
            )
    lines = []
    for name, genes in gene_sets.items():
        if isinstance(genes, str) or not isinstance(genes, Iterable):
            raise TypeError(
                f"The genes of {name!r} must be a list of strings, not {genes!r}."
            )
        of_set = list(genes)
        for text in (name, *of_set):
            _check_text(text, name)
        unique = list(dict.fromkeys(of_set))
        if not unique:
            raise ValueError(
                f"The gene set {name!r} has no genes; add some or leave it out."
            )
        description = descriptions.get(name, _NO_DESCRIPTION)
        if description != "":
            _check_text(description, name)
        if isinstance(genes, set | frozenset):
            unique.sort()
        lines.append("\t".join([name, description, *unique]) + "\n")
    content = "".join(lines).encode()
    # A link to a compressed file is followed.
    if resolve_output(Path(path)).name.lower().endswith(".gz"):
        content = compress(content)
    with replace_file(Path(path)) as temporary:
        temporary.write_bytes(content)


def _check_text(text: object, name: str) -> None:
    """Raise an error for a field that ``read_gmt`` would change."""
    if not isinstance(text, str):
        raise TypeError(
            f"The gene set {name!r} has {text!r} where a GMT file holds a string."
        )
    # A byte order mark at the start of a file is not part of a name.
    if not text or text != text.strip().lstrip("\ufeff") or re.search("[\t\n\r]", text):
        raise ValueError(
            f"The gene set {name!r} has the text {text!r}: it is empty, or has tabs, line breaks or outer whitespace."
        )


def compress(content: bytes) -> bytes:
    """Compress to the same bytes on every machine."""
    # gzip.compress lets zlib write the operating system into the header.
    buffer = io.BytesIO()
    with gzip.GzipFile(
        filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0
    ) as file:
        file.write(content)
    return buffer.getvalue()
