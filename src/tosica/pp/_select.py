"""Select the gene sets of a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tosica._types import IntArray
    from tosica.gs._gene_sets import GeneSets


def select_largest(gene_sets: GeneSets, n: int) -> IntArray:
    """Positions of the ``n`` largest gene sets, ascending; the earlier one in case of ties."""
    return np.sort(np.argsort(-gene_sets.sizes, kind="stable")[:n])


def drop_similar(
    gene_sets: GeneSets, n_listed: IntArray, max_jaccard: float
) -> IntArray:
    """Leave out each gene set that is nearly the same as one that lists fewer genes.

    The smaller of such sets says more: "T cell receptor signaling pathway" is kept, and "antigen
    receptor-mediated signaling pathway", which holds it, is not.

    Parameters
    ----------
    gene_sets
        Gene sets on the genes of the data.
    n_listed
        Number of genes that each set lists, in the data or not, ``(n_sets,)``.
    max_jaccard
        Largest Jaccard index of a set with one that is kept.

    Returns
    -------
    numpy.ndarray
        Positions of the sets that are kept, ascending.
    """
    sizes = gene_sets.sizes
    if max_jaccard >= 1:
        return np.arange(len(sizes))
    selected: list[int] = []
    # For each gene, the sets among the selected ones that have it.
    sets_of_gene: list[list[int]] = [[] for _ in range(len(gene_sets.gene_names))]
    for candidate in np.lexsort((sizes, n_listed)):
        genes = gene_sets.genes_of(candidate)
        n_shared = np.zeros(len(selected), dtype=np.intp)
        for gene in genes:
            n_shared[sets_of_gene[gene]] += 1
        n_union = len(genes) + sizes[selected] - n_shared
        if (n_shared <= max_jaccard * n_union).all():
            for gene in genes:
                sets_of_gene[gene].append(len(selected))
            selected.append(int(candidate))
    return np.sort(np.array(selected, dtype=np.intp))
