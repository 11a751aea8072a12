"""Gene sets of a plot: those that are asked for, or the first of each group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosica._obs import find_gene_sets
from tosica.get import gene_sets_df

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tosica._types import AnnOrMuData

# What violins and dots show.
SET_CONTRIBUTION = "added by genes that\ncells express more\n(logits)"


def choose_gene_sets(
    adata: AnnOrMuData,
    key: str,
    gene_sets: Sequence[str] | None,
    n_gene_sets: int | None,
    *,
    available: list[str],
    where: str,
    default_total: int,
    default_most: int,
) -> list[str]:
    """Name the gene sets to show: those that the user asks for, or the first of each group.

    Parameters
    ----------
    adata, key
        Data that were explained, and where.
    gene_sets, n_gene_sets
        Names of gene sets, or how many of each group; ``None`` for the default.
    available, where
        Gene sets that can be shown, and where these are from.
    default_total, default_most
        By default, the number of gene sets of all groups together, and at most for each.

    Raises
    ------
    KeyError
        If a gene set is not available.
    ValueError
        If both are given, or no gene set has evidence.
    """
    if gene_sets is not None:
        if n_gene_sets is not None:
            raise ValueError(
                "gene_sets says which gene sets to show: leave n_gene_sets out."
            )
        return find_gene_sets(gene_sets, available, where)
    table = gene_sets_df(adata, key=key)
    if table.empty:
        raise ValueError(
            f"No gene set has evidence in any group of adata.uns[{key!r}]: these are told by their genes, "
            "which tosica.pl.top_genes draws."
        )
    if n_gene_sets is None:
        n_groups = len(table["group"].cat.categories)
        n_gene_sets = min(default_most, max(1, default_total // n_groups))
    strongest = table.groupby("group", observed=True).head(n_gene_sets)
    return list(dict.fromkeys(strongest["gene_set"]))
