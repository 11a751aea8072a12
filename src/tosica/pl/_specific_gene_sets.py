"""The gene sets that show what a group of cells is, without a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tosica._annotated import kind_of, read_attention
from tosica._groups import read_groups
from tosica._statistics import group_moments

if TYPE_CHECKING:
    from anndata import AnnData


def specific_gene_sets(
    adata: AnnData, groupby: str, n_gene_sets: int, *, key: str = "tosica"
) -> list[str]:
    """Each group's most important gene sets, in the order of the groups, each name once.

    Of contributions to a label's score, those with the highest mean in the group: contributions are
    differences already, from the mean cell of the reference.

    Of attention, those that are most specific. Specificity is the group's mean attention minus the
    mean of the other groups' means, in units of the standard deviation within groups (Cohen's d
    with a pooled deviation). Other than a test it does not grow with the number of cells, it weighs
    a rare type as much as a common one, and it is defined for a group with a single cell. With one
    group in all, the gene sets with the highest mean are taken.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated.
    groupby
        Column of ``adata.obs`` with the groups.
    n_gene_sets
        How many to take for each group; fewer if fewer contribute to it or lie above the other
        groups, but one at least.
    key
        Which values to read.

    Returns
    -------
    Names of gene sets.
    """
    values, gene_sets = read_attention(adata, key)
    moments = group_moments(values, read_groups(adata, groupby))
    n_groups = len(moments.n_cells)
    if n_groups == 1 or kind_of(adata, key) in ("presence", "attribution"):
        importance = moments.mean
    else:
        others = (moments.mean.sum(axis=0) - moments.mean) / (n_groups - 1)
        deviation = np.sqrt(moments.variance_within)
        # Nothing varies within groups if each has a single cell: the difference itself decides.
        floor = deviation[deviation > 0].min(initial=np.inf)
        deviation = np.maximum(deviation, floor) if np.isfinite(floor) else np.ones_like(deviation)
        importance = (moments.mean - others) / deviation
    chosen: dict[str, None] = {}
    for row in importance:
        best = np.argsort(-row, kind="stable")[:n_gene_sets]
        above = best[row[best] > 0]
        chosen.update(dict.fromkeys(gene_sets[i] for i in (above if above.size else best[:1])))
    return list(chosen)
