"""What collections there are."""

from __future__ import annotations

import pandas as pd

from tosica.gs._resources import collection_names, read_metadata

_COLUMNS = [
    "source",
    "release",
    "date",
    "licence",
    "organism",
    "identifier",
    "n_sets",
    "n_genes",
    "url",
    "citation",
]


def collections() -> pd.DataFrame:
    """List the collections of gene sets that come with the package.

    Returns
    -------
    pandas.DataFrame
        One row a collection, its name (what :func:`tosica.gs.load` takes) as index. Columns:

        ``source``, ``release``, ``date``
            Who made the gene sets, which release it is, and the day of its annotations.
        ``licence``, ``url``, ``citation``
            Under which terms it may be passed on, where it comes from, what to cite.
        ``organism``, ``identifier``
            Scientific name of the species, and what the genes are named by.
        ``n_sets``, ``n_genes``
            Number of gene sets, and of different genes in them.

    See Also
    --------
    load : the gene sets of a collection.

    Examples
    --------
    >>> import tosica
    >>> tosica.gs.collections().loc["human_gobp", ["source", "organism", "licence"]].to_list()
    ['Gene Ontology, biological process', 'Homo sapiens', 'CC BY 4.0']
    """
    names = collection_names()
    rows = []
    for name in names:
        metadata = read_metadata(name)
        rows.append(
            {column: metadata[column] for column in _COLUMNS}
            | {"citation": "; ".join(metadata["citation"])}
        )
    return pd.DataFrame(rows, index=pd.Index(names, name="name"), columns=_COLUMNS)
