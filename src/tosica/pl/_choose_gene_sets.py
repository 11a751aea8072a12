"""Gene sets that a plot shows, and groups that set the scale of its colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tosica._annotated import find_gene_sets, read_attention, result_type
from tosica._groups import read_groups
from tosica._statistics import group_moments, standardized_difference
from tosica._validation import check_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData
    from numpy.typing import NDArray


# Means of fewer cells are too noisy to set the scale for all others.
_MIN_CELLS = 3


def scale_groups(adata: AnnData, groupby: str) -> NDArray[np.bool_]:
    """Which groups set the scale of the colours: those of at least three cells, if there are any.

    The mean of one or two cells may lie far out. If it set the scale, the differences between the
    other groups would be invisible.
    """
    n_cells = np.bincount(read_groups(adata, groupby).codes)
    is_large = n_cells >= _MIN_CELLS
    return is_large if is_large.any() else np.ones_like(is_large)


def choose_gene_sets(
    adata: AnnData,
    groupby: str,
    gene_sets: Sequence[str] | None,
    n_gene_sets: int | None,
    *,
    key: str,
    n_total: int,
    max_per_group: int,
) -> list[str]:
    """Names of the gene sets to show.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated.
    groupby
        Column of ``adata.obs`` with the groups.
    gene_sets
        Gene sets that the user asks for, if any.
    n_gene_sets
        Gene sets for each group; ``None``: as many as make about ``n_total`` in all.
    key
        Key of the values.
    n_total
        Default number of gene sets of all groups together.
    max_per_group
        Largest default number for each group.

    Raises
    ------
    KeyError
        If a gene set is missing.
    ValueError
        If ``n_gene_sets`` is below 1, or given together with ``gene_sets``.
    """
    check_count("n_gene_sets", n_gene_sets, optional=True)
    if gene_sets is not None:
        if n_gene_sets is not None:
            raise ValueError("gene_sets says which gene sets to show: leave n_gene_sets out.")
        _, known = read_attention(adata, key)
        return find_gene_sets(gene_sets, known, f"adata.uns[{key!r}]['gene_sets']")
    if n_gene_sets is None:
        n_groups = len(read_groups(adata, groupby).categories)
        n_gene_sets = min(max_per_group, max(1, n_total // n_groups))
    return specific_gene_sets(adata, groupby, n_gene_sets, key=key)


def specific_gene_sets(
    adata: AnnData, groupby: str, n_gene_sets: int, *, key: str = "tosica"
) -> list[str]:
    """Most important gene sets of each group, in the order of the groups, each name once.

    For contributions to a label's score, these are the gene sets with the highest mean in the
    group: contributions are already differences from the mean cell of the reference.

    For attention, these are the most specific gene sets, by
    :func:`~tosica._statistics.standardized_difference` from the mean of the means of the other
    groups. Unlike a test statistic it does not depend on the number of cells, rare types count as
    much as common ones, and a group may have a single cell.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated.
    groupby
        Column of ``adata.obs`` with the groups.
    n_gene_sets
        Gene sets for each group; fewer, but at least one, if fewer are above zero.
    key
        Key of the values.

    Returns
    -------
    Names of gene sets.
    """
    values, gene_sets = read_attention(adata, key)
    moments = group_moments(values, read_groups(adata, groupby))
    if result_type(adata, key) in ("presence", "attribution"):
        importance = moments.mean
    else:
        importance = np.stack(
            [
                standardized_difference(moments, group, "other groups", within="all groups")
                for group in range(len(moments.n_cells))
            ]
        )
    chosen: dict[str, None] = {}
    for row in importance:
        best = np.argsort(-row, kind="stable")[:n_gene_sets]
        positive = best[row[best] > 0]
        chosen.update(
            dict.fromkeys(gene_sets[i] for i in (positive if positive.size else best[:1]))
        )
    return list(chosen)
