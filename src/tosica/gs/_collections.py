"""Load, list and combine named collections of gene sets, and read and write GMT files.

``human_gobp`` and ``mouse_gobp`` are in the folder ``resources``: ``<name>.json``, and
``<name>.gmt.gz`` or the collection that it is mapped from. All others are files of MSigDB, which
``msigdb.json`` lists.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pandas as pd

from tosica._checks import FilePath, InstanceOf, validate_params
from tosica._files import cache_folder, download, new_in_cache, replace_file
from tosica._settings import logger, warn_user
from tosica._text import did_you_mean, format_thousands, list_names
from tosica.gs._genes import ENSEMBL, ORGANISMS, gene_table, orthologs

_PACKAGE: Final = files("tosica.gs")
_RESOURCES: Final = _PACKAGE.joinpath("resources")
# What is known of each collection: of MSigDB's the name of the file without version, too.
_ABOUT: Final[dict[str, dict[str, Any]]] = {
    **{
        name: json.loads(_RESOURCES.joinpath(f"{name}.json").read_bytes())
        for name in ("human_gobp", "mouse_gobp")
    },
    **json.loads(_PACKAGE.joinpath("msigdb.json").read_bytes()),
}
COLLECTIONS: Final = tuple(_ABOUT)

# Files are <server>/<version>.<species>/<file>.v<version>.<species>.symbols.gmt.
_SERVER: Final = "https://data.broadinstitute.org/gsea-msigdb/msigdb/release"
# Releases that have all files below.
_VERSIONS: Final[tuple[str, ...]] = ("2022.1", "2023.1", "2023.2", "2024.1", "2025.1")
_DEFAULT_VERSION: Final = "2024.1"
_COLUMNS: Final = [
    *(
        "source",
        "release",
        "version",
        "available",
        "licence",
        "organism",
        "identifier",
        "n_sets",
    ),
    *("n_genes", "date", "url", "citation"),
]


@validate_params()
def load(name: str, *, version: str | None = None) -> dict[str, list[str]]:
    """Load a collection of gene sets.

    ``human_gobp`` and ``mouse_gobp`` are inside the package. All other collections are files of
    MSigDB. The first call downloads them, with a progress bar, to the folder in the environment
    variable ``TOSICA_CACHE``, or else to the user's cache folder. Later calls read them from there
    without using the network. ``TOSICA_MSIGDB_URL`` names a mirror with the layout of MSigDB's
    server.

    Parameters
    ----------
    name
        Name of the collection, one of the index of :func:`tosica.gs.collections`:

        ``"human_gobp"``
            Human biological processes of the Gene Ontology (Ashburner et al., Nat. Genet. 25,
            25, 2000; The Gene Ontology Consortium, Nucleic Acids Res. 54, D1779, 2026; CC BY
            4.0) with 10 to 300 genes each, as gene symbols. A process includes the genes of its
            subprocesses, of its parts and of processes that regulate it. All evidence codes are
            used.
        ``"mouse_gobp"``
            The same processes with the one-to-one mouse orthologs of their human genes, 10 to
            300 genes each.
        ``"human_reactome"``, ``"mouse_reactome"`` and so on
            Collections of MSigDB (Subramanian et al., PNAS 102, 15545, 2005; Castanza et al., Nat.
            Methods 20, 1619, 2023; CC BY 4.0), as gene symbols.

        ``"human_reactome@2023.2"`` also names the version.
    version
        Release of MSigDB, such as ``"2023.2"``; by default ``"2024.1"``.

    Returns
    -------
    dict
        Gene set name to list of genes, in the order of the collection. Each call returns a new
        dict, which may be changed.

    Raises
    ------
    TypeError
        If ``name`` or ``version`` is not a string.
    ValueError
        If there is no such collection or version, or if the file is not GMT.
    OSError
        If the file cannot be downloaded, or the cache cannot be written to.

    See Also
    --------
    collections : sources, versions and licences, and which collections are downloaded.
    read_gmt : read gene sets from a file.
    join : combine several collections.

    Examples
    --------
    >>> import tosica
    >>> gene_sets = tosica.gs.load("human_gobp")
    >>> "CD3E" in gene_sets["T cell receptor signaling pathway"]
    True
    """
    return find_collection(name, version).load()


class Collection(NamedTuple):
    """One version of a named collection."""

    name: str
    version: str

    def load(self) -> dict[str, list[str]]:
        """Return gene set name to list of genes, as new lists that the caller may change."""
        if "file" not in _ABOUT[self.name]:
            return {
                gene_set: list(genes)
                for gene_set, genes in _read_bundled(self.name).items()
            }
        path = self._path
        if path.is_file():
            return read_gmt(path)
        with new_in_cache(path) as temporary:
            download(
                self._url,
                temporary,
                alternative="set TOSICA_MSIGDB_URL to a mirror of MSigDB",
            )
            # A login page, or half a file, is not kept.
            gene_sets = parse_gmt(temporary.read_bytes(), self._url)
        logger.info(
            "downloaded %s gene sets to %s", format_thousands(len(gene_sets)), path
        )
        return gene_sets

    def describe(self) -> dict[str, Any]:
        """Return the columns of :func:`collections`, without downloading anything."""
        about = _ABOUT[self.name]
        if "file" not in about:
            return {**about, "version": self.version, "available": True}
        path, release = self._path, f"MSigDB {self.version}.{about['species']}"
        n_sets, n_genes = (
            _count(path, path.stat().st_mtime_ns) if path.is_file() else (pd.NA, pd.NA)
        )
        known = {
            "version": self.version,
            "available": path.is_file(),
            "n_sets": n_sets,
            "n_genes": n_genes,
        }
        return {**about, **known, "release": release, "url": self._url}

    @property
    def _location(self) -> str:
        """Path of a file of MSigDB, on the server and in the cache."""
        about = _ABOUT[self.name]
        release = f"{self.version}.{about['species']}"
        return f"{release}/{about['file']}.v{release}.symbols.gmt"

    @property
    def _url(self) -> str:
        server = os.environ.get("TOSICA_MSIGDB_URL") or _SERVER
        return f"{server.rstrip('/')}/{self._location}"

    @property
    def _path(self) -> Path:
        return cache_folder() / self._location


def find_collection(name: str, version: str | None = None) -> Collection:
    """Find a collection by ``name`` or ``name@version``."""
    bare, _, suffix = name.partition("@")
    if bare not in COLLECTIONS:
        # "gobp" may stand for human_gobp or mouse_gobp.
        same = [each for each in COLLECTIONS if each.endswith(f"_{bare.lower()}")]
        hint = (
            f"; did you mean {' or '.join(map(repr, same))}?"
            if same
            else did_you_mean(bare, COLLECTIONS, 1)
        )
        raise ValueError(
            f"There is no gene set collection {name!r}, only {', '.join(COLLECTIONS)}{hint} Files: tosica.gs.read_gmt."
        )
    versions, default = _VERSIONS, _DEFAULT_VERSION
    if "file" not in _ABOUT[bare]:
        default = _ABOUT[bare]["release"].removeprefix("GO ")
        versions = (default,)
    wanted = version or suffix or default
    if wanted not in versions:
        raise ValueError(
            f"There is no version {wanted!r} of {bare}; those that exist: {', '.join(versions)}."
        )
    return Collection(bare, wanted)


def collections() -> pd.DataFrame:
    """List the named collections of gene sets.

    Nothing is downloaded.

    Returns
    -------
    pandas.DataFrame
        One row per collection. The index is the name that :func:`tosica.gs.load` takes. Columns:

        ``source``, ``release``, ``version``
            Origin of the gene sets, their release, and the version that :func:`tosica.gs.load`
            takes.
        ``available``
            Whether the collection is on this machine. Otherwise it is downloaded at first use.
        ``licence``, ``url``, ``citation``
            Terms of use, web address, and papers to cite.
        ``organism``, ``identifier``
            Scientific name of the species, and type of the gene names.
        ``n_sets``, ``n_genes``
            Number of gene sets, and of different genes in them; missing (``<NA>``) before the first
            download.
        ``date``
            Date of the annotations; empty for downloaded collections.

    See Also
    --------
    load : load the gene sets of a collection.

    Examples
    --------
    >>> import tosica
    >>> tosica.gs.collections().loc[
    ...     "human_gobp", ["source", "organism", "licence"]
    ... ].to_list()
    ['Gene Ontology, biological process', 'Homo sapiens', 'CC BY 4.0']
    """
    rows = [find_collection(name).describe() for name in COLLECTIONS]
    rows = [row | {"citation": "; ".join(row["citation"])} for row in rows]
    table = pd.DataFrame(
        rows, index=pd.Index(COLLECTIONS, name="name"), columns=_COLUMNS
    )
    return table.astype({"n_sets": "Int64", "n_genes": "Int64", "available": bool})


@lru_cache(maxsize=16)
def _count(path: Path, _changed: int) -> tuple[int, int] | tuple[Any, Any]:
    """Count the gene sets of a file in the cache and their genes; missing if it is damaged."""
    try:
        gene_sets = read_gmt(path)
    except (OSError, ValueError):
        return pd.NA, pd.NA
    return len(gene_sets), len(set().union(*gene_sets.values()))


# --------------------------------------------------------------------------- inside the package


@lru_cache(maxsize=2)
def _read_bundled(name: str) -> Mapping[str, Iterable[str]]:
    """Read a bundled collection, or map one by orthology; callers must not change it."""
    metadata = _ABOUT[name]
    if "orthologs_of" not in metadata:
        resource = _RESOURCES.joinpath(f"{name}.gmt.gz")
        return parse_gmt(resource.read_bytes(), resource.name)
    gene_sets = {k: list(v) for k, v in _read_bundled(metadata["orthologs_of"]).items()}
    ortholog_of = orthologs("human", "mouse")
    mapped = {
        name: tuple(sorted(ortholog_of[gene] for gene in genes if gene in ortholog_of))
        for name, genes in gene_sets.items()
    }
    # Of sets with the same genes, the one that had the fewest before is the most specific.
    most_specific: dict[tuple[str, ...], str] = {}
    for name in sorted(mapped, key=lambda name: len(gene_sets[name])):
        most_specific.setdefault(mapped[name], name)
    least = metadata["min_genes"]
    return {
        name: genes
        for name, genes in mapped.items()
        if len(genes) >= least and most_specific[genes] == name
    }


# --------------------------------------------------------------------------- several as one

_GeneSets: TypeAlias = str | os.PathLike[str] | Mapping[str, Iterable[str]]


@validate_params(
    collections=InstanceOf(
        "a dict of prefix to gene sets, or a list of collections and files",
        Mapping,
        list,
        tuple,
    )
)
def join(
    collections: Mapping[str, _GeneSets] | Iterable[str | os.PathLike[str]],
) -> dict[str, list[str]]:
    """Combine several collections of gene sets, with a prefix before the name of each set.

    Parameters
    ----------
    collections
        Prefix to gene sets: the name of a collection (:func:`tosica.gs.load`), the path of a GMT
        file, or a dict of name to genes. In a list of names and paths, the prefix is the name of
        the collection, or that of the file without its ending.

    Returns
    -------
    dict
        ``"<prefix>: <gene set>"`` to list of genes, in the order of the collections.

    Raises
    ------
    TypeError
        If ``collections`` is none of the above.
    ValueError
        If there is nothing to join, a prefix is empty or duplicated, or a collection or file
        cannot be read (:func:`tosica.gs.load`, :func:`tosica.gs.read_gmt`).

    See Also
    --------
    tosica.pp.build_mask : takes the result, or the list itself.

    Examples
    --------
    >>> import tosica
    >>> markers = {"T cell": ["CD3D", "CD3E"]}
    >>> joined = tosica.gs.join({"GO": "human_gobp", "mine": markers})
    >>> len(joined), joined["mine: T cell"]
    (5835, ['CD3D', 'CD3E'])
    """
    if isinstance(collections, Mapping):
        parts = list(collections.items())
    else:
        parts = [(_prefix(part), part) for part in collections]
    if not parts:
        raise ValueError("There is nothing to join: name at least one collection.")
    joined: dict[str, list[str]] = {}
    prefixes: set[str] = set()
    for prefix, part in parts:
        if not isinstance(prefix, str) or not prefix.strip() or prefix in prefixes:
            raise ValueError(
                f"A prefix must be a string that is neither empty nor there twice, not {prefix!r}: pass others."
            )
        prefixes.add(prefix)
        for name, genes in _read_part(prefix, part).items():
            joined[f"{prefix}: {name}"] = list(genes)
    return joined


def is_gmt_path(text: str) -> bool:
    """Tell the path of a GMT file from the name of a collection."""
    return text.lower().endswith((".gmt", ".gmt.gz"))


def _prefix(part: str | os.PathLike[str]) -> str:
    FilePath().check("A collection in a list", part)
    if isinstance(part, str) and not is_gmt_path(part):
        return part
    name = Path(part).name
    return name[: name.lower().rindex(".gmt")] if is_gmt_path(name) else name


def _read_part(prefix: str, part: _GeneSets) -> Mapping[str, Iterable[str]]:
    if isinstance(part, Mapping):
        return part
    if isinstance(part, str) and not is_gmt_path(part):
        return load(part)
    FilePath().check(f"collections[{prefix!r}]", part)
    return read_gmt(part)


# ------------------------------------------------------------------------------- GMT files


# Placeholder in the files of the Broad Institute.
_NO_DESCRIPTION = "na"
_GZIP_MAGIC = b"\x1f\x8b"


@validate_params()
def read_gmt(path: str | os.PathLike[str]) -> dict[str, list[str]]:
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


def parse_gmt(data: bytes, source: str) -> dict[str, list[str]]:
    """Parse the bytes of a GMT file, called ``source`` in error messages."""
    try:
        plain = gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
        text = plain.decode("utf-8-sig")
    except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(
            f"{source} is neither UTF-8 text nor a gzip file of it ({error}): download or save it again."
        ) from error
    gene_sets: dict[str, list[str]] = {}
    descriptions: list[str] = []
    # A gene is in dozens of sets, and all share one string.
    shared: dict[str, str] = {}
    # str.splitlines would also split at characters that a name may contain.
    for number, line in enumerate(re.split("\r\n|\r|\n", text), 1):
        if not line.strip():
            continue
        name, *fields = (field.strip() for field in line.split("\t"))
        descriptions += fields[:1]
        genes = list(
            dict.fromkeys(shared.setdefault(gene, gene) for gene in fields[1:] if gene)
        )
        if not name or not genes:
            raise ValueError(
                f"{source}, line {number}: a line of a GMT file has a name, a description and at least one gene, "
                f"separated by tabs, but this one is {line[:40]!r}; complete it, or check that it is the right file."
            )
        if name in gene_sets:
            raise ValueError(
                f"{source}, line {number}: the gene set {name!r} is duplicated; rename or remove one."
            )
        gene_sets[name] = genes
    if not gene_sets:
        raise ValueError(
            f"{source} holds no gene set; check that it is the right file."
        )
    if _are_genes(descriptions, shared):
        shown = list_names(descriptions, 2)
        warn_user(
            f"{source} has no column of descriptions: its second column holds genes ({shown}), which were kept."
        )
        gene_sets = {
            name: list(dict.fromkeys([first, *genes] if first else genes))
            for first, (name, genes) in zip(
                descriptions, gene_sets.items(), strict=True
            )
        }
    return gene_sets


def _are_genes(descriptions: list[str], genes: Iterable[str]) -> bool:
    """Whether most of what stands for descriptions are genes."""
    given = {text for text in descriptions if text and text.lower() != _NO_DESCRIPTION}
    # Most are the same text, an accession, an address or a sentence: that takes no table of genes to tell.
    if 2 * len(given) <= len(descriptions) or any(
        re.search(r"[ /:]", text) for text in given
    ):
        return False
    known = {gene.upper() for gene in genes}
    for organism in (
        ORGANISMS
        if 2 * sum(text.upper() in known for text in given) < len(given)
        else ()
    ):
        known |= (
            gene_table(organism).by_upper_case.keys()
            | gene_table(organism).genes_of(ENSEMBL).keys()
        )
    return 2 * sum(text.upper() in known for text in given) > len(given)


@validate_params(
    gene_sets=InstanceOf("a dict of gene set names to genes", Mapping),
    descriptions=InstanceOf(
        "a dict of gene set names to texts", Mapping, optional=True
    ),
)
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
    content = _format(gene_sets, descriptions or {}).encode()
    # If the path is a link, the file that it points to is replaced.
    target = Path(os.path.realpath(path))
    with replace_file(target) as temporary:
        temporary.write_bytes(
            compress(content) if target.name.lower().endswith(".gz") else content
        )


def _format(
    gene_sets: Mapping[str, Iterable[str]], descriptions: Mapping[str, str]
) -> str:
    if not gene_sets:
        raise ValueError("There is no gene set to write: gene_sets is empty.")
    unknown = [name for name in descriptions if name not in gene_sets]
    if unknown:
        raise ValueError(
            f"descriptions names {unknown[0]!r}, which is not in gene_sets; remove it."
        )
    lines = []
    for name, genes in gene_sets.items():
        if isinstance(genes, str) or not isinstance(genes, Iterable):
            raise TypeError(
                f"The genes of {name!r} must be a list of strings, not {genes!r}."
            )
        unique = list(dict.fromkeys(genes))
        if not unique:
            raise ValueError(
                f"The gene set {name!r} has no genes; add some or leave it out."
            )
        description = descriptions.get(name, _NO_DESCRIPTION)
        for text in (name, *unique, *([description] if description != "" else [])):
            _check_text(text, name)
        if isinstance(genes, set | frozenset):
            unique.sort()
        lines.append("\t".join([name, description, *unique]) + "\n")
    return "".join(lines)


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
