"""Load gene set collections by name, and list them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import pandas as pd

from tosica.gs._bundled import collection_names, read_collection, read_metadata
from tosica.gs._download import cache_folder, fetch_gmt, read_record
from tosica.gs._msigdb import DEFAULT_VERSION, MSIGDB, VERSIONS


def load(name: str, *, version: str | None = None) -> dict[str, list[str]]:
    """Load a collection of gene sets.

    ``human_gobp`` and ``mouse_gobp`` are inside the package. The others are files of MSigDB: the
    first call downloads them, with a progress bar, to the folder that the environment variable
    ``TOSICA_CACHE`` names, else to the user's cache folder; from then on they are read from there
    and nothing is asked of the network. What is kept is checked against the hash that it had at
    its first download. ``TOSICA_MSIGDB_URL`` names a mirror with MSigDB's layout.

    Parameters
    ----------
    name
        Name of the collection, one of the index of :func:`tosica.gs.collections`:

        ``"human_gobp"``
            Human biological processes of the Gene Ontology (Ashburner et al., Nat. Genet. 25,
            25, 2000; The Gene Ontology Consortium, Nucleic Acids Res. 54, D1779, 2026; CC BY
            4.0) with 10 to 300 genes each, as gene symbols. A process holds the genes of its
            subprocesses, of its parts and of what regulates it; all evidence codes count.
        ``"mouse_gobp"``
            The same processes with the mouse's one-to-one orthologs of their human genes, 10 to
            300 each.
        ``"human_reactome"``, ``"mouse_reactome"`` and the others
            Collections of MSigDB (Subramanian et al., PNAS 102, 15545, 2005; Castanza et al., Nat.
            Methods 20, 1619, 2023; CC BY 4.0), as gene symbols.

        ``"human_reactome@2023.2"`` names a version with it.
    version
        Release of MSigDB, such as ``"2023.2"``; by default ``"2024.1"``.

    Returns
    -------
    dict
        Gene set name to list of genes, in the order of the collection. It is the caller's own:
        changing it changes nothing else.

    Raises
    ------
    TypeError
        If `name` or `version` is not a string.
    ValueError
        If there is no collection of that name or no such version of it, or if what the server
        gives is no GMT file or another one than at the first download.
    ConnectionError
        If the server cannot be reached, does not have the file or breaks off.
    OSError
        If the cache cannot be written to.

    See Also
    --------
    collections : sources, versions, licences, and what is here already.
    read_gmt : gene sets from a file.
    join : several collections in one.

    Examples
    --------
    >>> import tosica
    >>> gene_sets = tosica.gs.load("human_gobp")
    >>> "CD3E" in gene_sets["T cell receptor signaling pathway"]
    True
    """
    name, version = parse_name(name, version)
    if name in MSIGDB:
        file = MSIGDB[name]
        release = version or DEFAULT_VERSION
        return fetch_gmt(file.url(release), cache_folder() / file.path(release))
    return {gene_set: list(genes) for gene_set, genes in read_collection(name).items()}


def describe(name: str, version: str | None = None) -> dict[str, Any]:
    """Source, release, organism and licence of a collection, without loading it."""
    name, version = parse_name(name, version)
    if name in MSIGDB:
        return MSIGDB[name].metadata(version or DEFAULT_VERSION)
    metadata = read_metadata(name)
    return {"version": metadata["release"].removeprefix("GO "), **metadata}


def known_names() -> list[str]:
    """Every collection there is: those inside the package first."""
    return [*collection_names(), *MSIGDB]


def parse_name(name: str, version: str | None = None) -> tuple[str, str | None]:
    """Name and version of ``name`` or ``name@version``, or the sentence that says what is wrong."""
    for what, value in (("name", name), ("version", version)):
        if not isinstance(value, str) and (what == "name" or value is not None):
            raise TypeError(
                f"The {what} of a gene set collection must be a string, not {type(value).__name__}."
            )
    bare, _, suffix = name.partition("@")
    names = known_names()
    if bare not in names:
        # "gobp" may be the human one or the mouse's.
        nearest = [each for each in names if each.endswith(f"_{bare.lower()}")]
        nearest = nearest or get_close_matches(bare.lower(), names, n=1, cutoff=0.4)
        suggestion = f" (did you mean {' or '.join(map(repr, nearest))}?)" if nearest else ""
        raise ValueError(
            f"There is no gene set collection {name!r}{suggestion}; those that exist: "
            f"{', '.join(names)}; to read a file, use tosica.gs.read_gmt."
        )
    wanted = version or suffix or None
    if bare in MSIGDB:
        versions: tuple[str, ...] = VERSIONS
    else:
        versions = (read_metadata(bare)["release"].removeprefix("GO "),)
    if wanted is not None and wanted not in versions:
        raise ValueError(
            f"There is no version {wanted!r} of {bare}; those that exist: {', '.join(versions)}."
        )
    return bare, wanted


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


def collections() -> pd.DataFrame:
    """List the named collections of gene sets.

    Nothing is downloaded.

    Returns
    -------
    pandas.DataFrame
        One row a collection, its name (what :func:`tosica.gs.load` takes) as index. Columns:

        ``source``, ``release``, ``version``
            Who made the gene sets, which release it is, and what to call it in
            :func:`tosica.gs.load`.
        ``available``
            Whether it is on this machine already; the others are downloaded when first used.
        ``licence``, ``url``, ``citation``
            Under which terms it may be passed on, where it comes from, what to cite.
        ``organism``, ``identifier``
            Scientific name of the species, and what the genes are named by.
        ``n_sets``, ``n_genes``
            Number of gene sets, and of different genes in them; missing (``<NA>``) before the first
            download.
        ``date``
            Day of the annotations, of those inside the package.

    See Also
    --------
    load : the gene sets of a collection.

    Examples
    --------
    >>> import tosica
    >>> tosica.gs.collections().loc["human_gobp", ["source", "organism", "licence"]].to_list()
    ['Gene Ontology, biological process', 'Homo sapiens', 'CC BY 4.0']
    """
    names = known_names()
    table = pd.DataFrame(
        [_row(name) for name in names], index=pd.Index(names, name="name"), columns=_COLUMNS
    )
    return table.astype({"n_sets": "Int64", "n_genes": "Int64", "available": bool})


def _row(name: str) -> dict[str, object]:
    row: dict[str, object] = {"available": True, "date": ""} | describe(name)
    if name in MSIGDB:
        path = cache_folder() / MSIGDB[name].path(DEFAULT_VERSION)
        record = read_record(path) or {}
        row |= {
            "available": path.is_file(),
            "n_sets": record.get("n_sets", pd.NA),
            "n_genes": record.get("n_genes", pd.NA),
        }
    return row | {"citation": "; ".join(describe(name)["citation"])}
