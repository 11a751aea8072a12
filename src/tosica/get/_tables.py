"""Results of tests and rankings as data frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica._validation import check_data, check_names, check_string, list_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anndata import AnnData

# Names of the record arrays, which are scanpy's, and of the columns of the tidy table.
_RANKING_COLUMNS = {
    "names": "gene_set",
    "scores": "score",
    "logfoldchanges": "logfoldchange",
    "pvals": "pval",
    "pvals_adj": "pval_adj",
    "effect_sizes": "effect_size",
}


def rank_gene_sets_df(
    adata: AnnData,
    group: str | Iterable[str] | None = None,
    *,
    key: str = "rank_gene_sets",
) -> pd.DataFrame:
    """Result of :func:`tosica.tl.rank_gene_sets` as a tidy table, one row a group and gene set.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.rank_gene_sets` was run. It is not changed.
    group
        Group or groups to return, in this order. ``None`` returns all.
    key
        ``key_added`` of :func:`tosica.tl.rank_gene_sets`.

    Returns
    -------
    DataFrame whose rows are sorted by group and, within a group, from the highest score down:

    ``group``
        Group of cells (categorical).
    ``gene_set``
        Name of the gene set.
    ``score``
        Statistic of the test, z for ``"wilcoxon"`` and t for the other methods. Positive where the
        gene set contributes more in the group, or gets more attention.
    ``logfoldchange``
        log2 of the mean in the group over the mean in the reference: 1 means twice as much. NaN
        where a mean is negative.
    ``pval``, ``pval_adj``
        P-value, and the same adjusted for the number of gene sets (Benjamini and Hochberg).
    ``effect_size``
        Difference of the means in standard deviations of cells within the two sides.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If there is no such result, or no such group in it.

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
    >>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> tosica.tl.rank_gene_sets(adata, "bulk_labels")
    >>> table = tosica.get.rank_gene_sets_df(adata, group="CD19+ B")
    >>> list(table.columns)
    ['group', 'gene_set', 'score', 'logfoldchange', 'pval', 'pval_adj', 'effect_size']
    >>> len(table)
    2
    """
    check_data(adata, mudata=True)
    check_string("key", key)
    if key not in adata.uns:
        raise KeyError(
            f"adata.uns[{key!r}] does not exist: "
            f"run tosica.tl.rank_gene_sets(adata, groupby, key_added={key!r}) first."
        )
    result = adata.uns[key]
    missing = (
        [name for name in _RANKING_COLUMNS if name not in result]
        if isinstance(result, Mapping)
        else list(_RANKING_COLUMNS)
    )
    if missing:
        raise KeyError(
            f"adata.uns[{key!r}] is not a result of tosica.tl.rank_gene_sets: "
            f"it holds no {missing[0]!r}."
        )

    available = list(result["names"].dtype.names)
    groups = available if group is None else check_names("group", group)
    groups = list(dict.fromkeys(groups))
    unknown = [name for name in groups if name not in available]
    if unknown:
        raise KeyError(
            f"adata.uns[{key!r}] has no group {unknown[0]!r}: it holds {list_names(available)}."
        )

    n_rows = len(result["names"])
    table: dict[str, object] = {
        "group": pd.Categorical.from_codes(
            np.repeat(np.arange(len(groups)), n_rows), pd.Index(groups)
        )
    }
    for source, target in _RANKING_COLUMNS.items():
        columns = [np.asarray(result[source][name]) for name in groups]
        table[target] = np.concatenate(columns) if columns else []
    return pd.DataFrame(table)


_GENE_COLUMNS = ["group", "gene_set", "gene_set_weight", "gene", "gene_weight"]


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
    ``gene_weight``, from the largest weight of a gene set and gene down.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
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
    check_data(adata, mudata=True)
    check_string("key", key)
    if key not in adata.uns:
        raise KeyError(
            f"adata.uns[{key!r}] does not exist: "
            f"run tosica.tl.top_genes(adata, model, key_added={key!r}) first."
        )
    result = adata.uns[key]
    table = result.get("table") if isinstance(result, Mapping) else None
    if not isinstance(table, pd.DataFrame) or not set(_GENE_COLUMNS) <= set(table.columns):
        raise KeyError(f"adata.uns[{key!r}] is not a result of tosica.tl.top_genes: run it again.")
    table = table[_GENE_COLUMNS].reset_index(drop=True)
    if group is None:
        return table
    wanted = check_names("group", group)
    available = list(dict.fromkeys(table["group"].astype(str)))
    unknown = [name for name in wanted if name not in available]
    if unknown:
        raise KeyError(
            f"adata.uns[{key!r}] has no group {unknown[0]!r}: it holds {list_names(available)}."
        )
    return table[table["group"].astype(str).isin(wanted)].reset_index(drop=True)
