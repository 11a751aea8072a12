"""The way from labels to genes as one tidy table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anndata import AnnData

_COLUMNS = ["group", "gene_set", "gene_set_weight", "gene", "gene_weight"]


def top_genes_df(
    adata: AnnData, group: str | Iterable[str] | None = None, *, key: str = "top_genes"
) -> pd.DataFrame:
    """Result of :func:`tosica.tl.top_genes`, one row a group, gene set and gene.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.top_genes` was run. It is not changed.
    group
        Group or groups to return. ``None`` returns all.
    key
        ``key_added`` of :func:`tosica.tl.top_genes`.

    Returns
    -------
    DataFrame with the columns ``group``, ``gene_set``, ``gene_set_weight``, ``gene`` and
    ``gene_weight``, from the heaviest gene set and gene down.

    Raises
    ------
    KeyError
        If there is no such result, or no such group in it.

    Examples
    --------
    >>> import pandas as pd
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> row = ["B", "B cell activation", 1.5, "CD79A", 0.4]
    >>> columns = ["group", "gene_set", "gene_set_weight", "gene", "gene_weight"]
    >>> adata.uns["top_genes"] = {"table": pd.DataFrame([row], columns=columns)}
    >>> tosica.get.top_genes_df(adata, "B")["gene"].to_list()
    ['CD79A']
    """
    if key not in adata.uns:
        msg = (
            f"adata.uns[{key!r}] does not exist: "
            f"run tosica.tl.top_genes(adata, model, key_added={key!r}) first."
        )
        raise KeyError(msg)
    result = adata.uns[key]
    table = result.get("table") if isinstance(result, Mapping) else None
    if not isinstance(table, pd.DataFrame) or not set(_COLUMNS) <= set(table.columns):
        msg = f"adata.uns[{key!r}] is not a result of tosica.tl.top_genes: run it again."
        raise KeyError(msg)
    table = table[_COLUMNS].reset_index(drop=True)
    if group is None:
        return table
    wanted = [group] if isinstance(group, str) else [str(name) for name in group]
    available = list(dict.fromkeys(table["group"].astype(str)))
    unknown = [name for name in wanted if name not in available]
    if unknown:
        msg = (
            f"adata.uns[{key!r}] has no group {unknown[0]!r}: it holds "
            f"{', '.join(map(repr, available))}."
        )
        raise KeyError(msg)
    return table[table["group"].astype(str).isin(wanted)].reset_index(drop=True)
