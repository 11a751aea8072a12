"""Load, list and combine named collections of gene sets.

``human_gobp`` and ``mouse_gobp`` are in the folder ``resources``: ``<name>.json``, and
``<name>.gmt.gz`` or the collection that it is mapped from. All others are files of MSigDB, which
``msigdb.json`` lists.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pandas as pd

from tosica._checks import FilePath, InstanceOf, did_you_mean, validate_params
from tosica._files import cache_folder, download, new_in_cache
from tosica._settings import format_thousands, logger
from tosica.gs._genes import orthologs
from tosica.gs._gmt import parse_gmt, read_gmt

_PACKAGE: Final = files("tosica.gs")
_RESOURCES: Final = _PACKAGE.joinpath("resources")
# What is known of each collection: of MSigDB's the name of the file without version, too.
_ABOUT: Final[dict[str, dict[str, Any]]] = {
    **{name: json.loads(_RESOURCES.joinpath(f"{name}.json").read_bytes()) for name in ("human_gobp", "mouse_gobp")},
    **json.loads(_PACKAGE.joinpath("msigdb.json").read_bytes()),
}
COLLECTIONS: Final = tuple(_ABOUT)

# Files are <server>/<version>.<species>/<file>.v<version>.<species>.symbols.gmt.
_SERVER: Final = "https://data.broadinstitute.org/gsea-msigdb/msigdb/release"
# Releases that have all files below.
_VERSIONS: Final[tuple[str, ...]] = ("2022.1", "2023.1", "2023.2", "2024.1", "2025.1")
_DEFAULT_VERSION: Final = "2024.1"
_COLUMNS: Final = [
    *("source", "release", "version", "available", "licence", "organism", "identifier", "n_sets"),
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
            return {gene_set: list(genes) for gene_set, genes in _read_bundled(self.name).items()}
        path = self._path
        if path.is_file():
            return read_gmt(path)
        with new_in_cache(path) as temporary:
            download(self._url, temporary)
            # A login page, or half a file, is not kept.
            gene_sets = parse_gmt(temporary.read_bytes(), self._url)
        logger.info("downloaded %s gene sets to %s", format_thousands(len(gene_sets)), path)
        return gene_sets

    def describe(self) -> dict[str, Any]:
        """Return the columns of :func:`collections`, without downloading anything."""
        about = _ABOUT[self.name]
        if "file" not in about:
            return {**about, "version": self.version, "available": True}
        path, release = self._path, f"MSigDB {self.version}.{about['species']}"
        n_sets, n_genes = _count(path, path.stat().st_mtime_ns) if path.is_file() else (pd.NA, pd.NA)
        known = {"version": self.version, "available": path.is_file(), "n_sets": n_sets, "n_genes": n_genes}
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
        hint = f"; did you mean {' or '.join(map(repr, same))}?" if same else did_you_mean(bare, COLLECTIONS, 1)
        raise ValueError(
            f"There is no gene set collection {name!r}, only {', '.join(COLLECTIONS)}{hint} Files: tosica.gs.read_gmt."
        )
    versions, default = _VERSIONS, _DEFAULT_VERSION
    if "file" not in _ABOUT[bare]:
        default = _ABOUT[bare]["release"].removeprefix("GO ")
        versions = (default,)
    wanted = version or suffix or default
    if wanted not in versions:
        raise ValueError(f"There is no version {wanted!r} of {bare}; those that exist: {', '.join(versions)}.")
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
    >>> tosica.gs.collections().loc["human_gobp", ["source", "organism", "licence"]].to_list()
    ['Gene Ontology, biological process', 'Homo sapiens', 'CC BY 4.0']
    """
    rows = [find_collection(name).describe() for name in COLLECTIONS]
    rows = [row | {"citation": "; ".join(row["citation"])} for row in rows]
    table = pd.DataFrame(rows, index=pd.Index(COLLECTIONS, name="name"), columns=_COLUMNS)
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
    return {name: genes for name, genes in mapped.items() if len(genes) >= least and most_specific[genes] == name}


# --------------------------------------------------------------------------- several as one

_GeneSets: TypeAlias = str | os.PathLike[str] | Mapping[str, Iterable[str]]


@validate_params(
    collections=InstanceOf("a dict of prefix to gene sets, or a list of collections and files", Mapping, list, tuple)
)
def join(collections: Mapping[str, _GeneSets] | Iterable[str | os.PathLike[str]]) -> dict[str, list[str]]:
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
