"""Load named collections of gene sets, and list them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pandas as pd

from tosica.gs._bundled import Bundled
from tosica.gs._msigdb import MSigDB

if TYPE_CHECKING:
    from tosica.gs._source import Source

# To add a server, write a source in a file of its own and append it here.
SOURCES: Final[tuple[Source, ...]] = (Bundled(), MSigDB())

_COLUMNS = [
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


def load(name: str, *, version: str | None = None) -> dict[str, list[str]]:
    """Load a collection of gene sets.

    ``human_gobp`` and ``mouse_gobp`` are inside the package. All other collections are files of
    MSigDB. The first call downloads them, with a progress bar, to the folder in the environment
    variable ``TOSICA_CACHE``, or else to the user's cache folder. Later calls read them from there
    without using the network, and check them against the hash of the first download.
    ``TOSICA_MSIGDB_URL`` names a mirror with the layout of MSigDB's server.

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
        If there is no such collection or version, or if the downloaded file is not GMT or differs
        from that of the first download.
    ConnectionError
        If the server cannot be reached, does not have the file, or the download is incomplete.
    OSError
        If the cache cannot be written to.

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
    source: Source

    def load(self) -> dict[str, list[str]]:
        """Gene set name to list of genes."""
        return self.source.load(self.name, self.version)

    def describe(self) -> dict[str, Any]:
        """Metadata of the collection, see :meth:`tosica.gs._source.Source.describe`."""
        return self.source.describe(self.name, self.version)


def collection_names() -> list[str]:
    """Names of all collections, source by source."""
    return [name for source in SOURCES for name in source.names]


def find_collection(name: str, version: str | None = None) -> Collection:
    """Find a collection by ``name`` or ``name@version``.

    Raises
    ------
    TypeError
        If ``name`` or ``version`` is not a string.
    ValueError
        If there is no such collection, or no such version of it.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"The name of a gene set collection must be a string, not {type(name).__name__}."
        )
    if version is not None and not isinstance(version, str):
        raise TypeError(
            f"The version of a gene set collection must be a string, not {type(version).__name__}."
        )
    bare, _, suffix = name.partition("@")
    source = next((source for source in SOURCES if bare in source.names), None)
    if source is None:
        raise ValueError(
            f"There is no gene set collection {name!r}{_suggestion(bare)}; those that exist: "
            f"{', '.join(collection_names())}; to read a file, use tosica.gs.read_gmt."
        )
    wanted = version or suffix or source.default_version(bare)
    versions = source.versions(bare)
    if wanted not in versions:
        raise ValueError(
            f"There is no version {wanted!r} of {bare}; those that exist: {', '.join(versions)}."
        )
    return Collection(bare, wanted, source)


def _suggestion(name: str) -> str:
    names = collection_names()
    # "gobp" may stand for human_gobp or mouse_gobp.
    similar = [each for each in names if each.endswith(f"_{name.lower()}")]
    similar = similar or get_close_matches(name.lower(), names, n=1, cutoff=0.4)
    return f" (did you mean {' or '.join(map(repr, similar))}?)" if similar else ""


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
    names = collection_names()
    table = pd.DataFrame(
        [_row(name) for name in names], index=pd.Index(names, name="name"), columns=_COLUMNS
    )
    return table.astype({"n_sets": "Int64", "n_genes": "Int64", "available": bool})


def _row(name: str) -> dict[str, object]:
    row: dict[str, Any] = {"available": True, "date": ""} | find_collection(name).describe()
    return row | {"citation": "; ".join(row["citation"])}
