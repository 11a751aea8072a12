"""What collections there are."""

from __future__ import annotations

import pandas as pd

from tosica.gs._cache import cache_folder, read_record
from tosica.gs._load import describe, known_names
from tosica.gs._msigdb import DEFAULT_VERSION, MSIGDB

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
