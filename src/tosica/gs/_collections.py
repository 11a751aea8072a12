"""Load and list named collections of gene sets.

``human_gobp`` and ``mouse_gobp`` are in the folder ``resources``: ``<name>.json``, and
``<name>.gmt.gz`` or the collection that it is mapped from. All others are files of MSigDB,
which ``msigdb.json`` lists.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pandas as pd

from tosica._files import cache_folder, download, new_in_cache
from tosica._settings import logger
from tosica._text import did_you_mean, format_thousands, in_python, parameter
from tosica._validate import validate_params
from tosica.gs._gene_table import orthologs
from tosica.gs._gmt import parse_gmt, read_gmt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_PACKAGE: Final = files("tosica.gs")
_RESOURCES: Final = _PACKAGE.joinpath("resources")


_METADATA: Final[dict[str, dict[str, Any]]] = {
    name: json.loads(_RESOURCES.joinpath(f"{name}.json").read_bytes())
    for name in ("human_gobp", "mouse_gobp")
} | json.loads(_PACKAGE.joinpath("msigdb.json").read_bytes())
COLLECTIONS: Final = tuple(_METADATA)
_COMMON_NAMES: Final = {"Homo sapiens": "human", "Mus musculus": "mouse"}

# Files are <server>/<version>.<species>/<file>.v<version>.<species>.symbols.gmt.
_SERVER: Final = "https://data.broadinstitute.org/gsea-msigdb/msigdb/release"
# Releases that have all files below.
_VERSIONS: Final = ("2022.1", "2023.1", "2023.2", "2024.1", "2025.1")
_DEFAULT_VERSION: Final = "2024.1"
_COLUMNS: Final = [
    "source",
    "release",
    "version",
    "available",
    "licence",
    "organism",
    "identifier",
    "n_sets",
    "n_genes",
    "date",
    "url",
    "citation",
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
        If there is no such collection or version, if ``name`` and ``version`` have different ones, or
        if the file is not GMT.
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
        if not self._is_file:
            gene_sets = _read_bundled(self.name)
            return {name: list(genes) for name, genes in gene_sets.items()}
        if self._path.is_file():
            return read_gmt(self._path)
        with new_in_cache(self._path) as temporary:
            download(
                self._url,
                temporary,
                alternative="set TOSICA_MSIGDB_URL to a mirror of MSigDB",
            )
            # A login page, or half a file, is not kept.
            gene_sets = parse_gmt(temporary.read_bytes(), self._url)
        logger.info(
            "downloaded %s gene sets to %s",
            format_thousands(len(gene_sets)),
            self._path,
        )
        return gene_sets

    def describe(self) -> dict[str, Any]:
        """Return the columns of :func:`collections`, without downloading anything."""
        metadata = _METADATA[self.name]
        columns = {name: metadata[name] for name in _COLUMNS if name in metadata}
        columns["citation"] = "; ".join(metadata["citation"])
        columns["release"] = self.release
        columns["version"] = self.version
        columns["available"] = True
        if self._is_file:
            columns["url"] = self._url
            columns["available"] = self._path.is_file()
            n_sets, n_genes = pd.NA, pd.NA
            if self._path.is_file():
                n_sets, n_genes = _count(self._path, self._path.stat().st_mtime_ns)
            columns["n_sets"] = n_sets
            columns["n_genes"] = n_genes
        return columns

    @property
    def organism(self) -> str:
        """``"human"`` or ``"mouse"``."""
        return _COMMON_NAMES[_METADATA[self.name]["organism"]]

    @property
    def release(self) -> str:
        """Release of the source, with its name."""
        metadata = _METADATA[self.name]
        if not self._is_file:
            return str(metadata["release"])
        return f"MSigDB {self.version}.{metadata['species']}"

    @property
    def _is_file(self) -> bool:
        """Whether it is a file of MSigDB; others are inside the package."""
        return "file" in _METADATA[self.name]

    @property
    def _location(self) -> str:
        """Path of a file of MSigDB, on the server and in the cache."""
        version = self.release.removeprefix("MSigDB ")
        file = _METADATA[self.name]["file"]
        return f"{version}/{file}.v{version}.symbols.gmt"

    @property
    def _url(self) -> str:
        server = os.environ.get("TOSICA_MSIGDB_URL") or _SERVER
        return f"{server.rstrip('/')}/{self._location}"

    @property
    def _path(self) -> Path:
        return cache_folder() / self._location


def is_collection(name: object) -> bool:
    """Whether a name is that of a collection, with or without ``@version``."""
    return isinstance(name, str) and name.partition("@")[0] in COLLECTIONS


def find_collection(name: str, version: str | None = None) -> Collection:
    """Find a collection by ``name`` or ``name@version``."""
    bare, _, suffix = name.partition("@")
    if bare not in COLLECTIONS:
        # "gobp" may stand for human_gobp or mouse_gobp.
        same = [known for known in COLLECTIONS if known.endswith(f"_{bare.lower()}")]
        hint = did_you_mean(bare, COLLECTIONS, 1)
        if same:
            hint = f"; did you mean {' or '.join(map(repr, same))}?"
        files = in_python(
            "tosica.gs.read_gmt reads a file.", "The name of a file ends in .gmt."
        )
        raise ValueError(
            f"There is no gene set collection {name!r}, only {', '.join(COLLECTIONS)}{hint} {files}"
        )
    versions: Sequence[str] = _VERSIONS
    default = _DEFAULT_VERSION
    if "file" not in _METADATA[bare]:
        default = _METADATA[bare]["release"].removeprefix("GO ")
        versions = (default,)
    if version and suffix and version != suffix:
        raise ValueError(
            f"{name!r} is of version {suffix}, and {parameter('version', version)}: give one of them."
        )
    version = version or suffix or default
    if version not in versions:
        raise ValueError(
            f"There is no version {version!r} of {bare}; those that exist: {', '.join(versions)}."
        )
    return Collection(bare, version)


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
    table = pd.DataFrame(
        [find_collection(name).describe() for name in COLLECTIONS],
        index=pd.Index(COLLECTIONS, name="name"),
        columns=_COLUMNS,
    )
    return table.astype({"n_sets": "Int64", "n_genes": "Int64", "available": bool})


@lru_cache(maxsize=16)
def _count(path: Path, _changed: int) -> tuple[Any, Any]:
    """Count the gene sets of a file in the cache and their genes; missing if it is damaged."""
    try:
        gene_sets = read_gmt(path)
    except (OSError, ValueError):
        return pd.NA, pd.NA
    return len(gene_sets), len(set().union(*gene_sets.values()))


@lru_cache(maxsize=2)
def _read_bundled(name: str) -> Mapping[str, Sequence[str]]:
    """Read a bundled collection, or map one by orthology; callers must not change it."""
    metadata = _METADATA[name]
    if "orthologs_of" not in metadata:
        resource = _RESOURCES.joinpath(f"{name}.gmt.gz")
        return parse_gmt(resource.read_bytes(), resource.name)
    gene_sets = _read_bundled(metadata["orthologs_of"])
    ortholog_of = orthologs("human", "mouse")
    mapped = {
        set_name: tuple(sorted(ortholog_of[g] for g in genes if g in ortholog_of))
        for set_name, genes in gene_sets.items()
    }
    # Of sets with the same genes, the one that had the fewest before is the most specific.
    most_specific: dict[tuple[str, ...], str] = {}
    for set_name in sorted(mapped, key=lambda set_name: len(gene_sets[set_name])):
        most_specific.setdefault(mapped[set_name], set_name)
    return {
        set_name: genes
        for set_name, genes in mapped.items()
        if len(genes) >= metadata["min_genes"] and most_specific[genes] == set_name
    }
