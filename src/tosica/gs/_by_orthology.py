"""The gene sets of one organism in the genes of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def map_by_orthology(
    gene_sets: Mapping[str, tuple[str, ...]], ortholog_of: Mapping[str, str], *, min_genes: int
) -> dict[str, tuple[str, ...]]:
    """Replace each gene by its one-to-one ortholog and sort them; genes without one are left out.

    Sets with fewer than ``min_genes`` genes left are dropped. Of sets that have become the same,
    the one with the fewest genes before stays, as the most specific one, then the first one.
    """
    mapped = {
        name: tuple(sorted(ortholog_of[gene] for gene in genes if gene in ortholog_of))
        for name, genes in gene_sets.items()
    }
    fitting = {name: genes for name, genes in mapped.items() if len(genes) >= min_genes}
    best: dict[tuple[str, ...], str] = {}
    for name in sorted(fitting, key=lambda name: len(gene_sets[name])):
        best.setdefault(fitting[name], name)
    kept = set(best.values())
    return {name: genes for name, genes in fitting.items() if name in kept}
