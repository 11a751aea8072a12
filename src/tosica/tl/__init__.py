"""Tools that work on annotated data: `tosica.tl`."""

from tosica.tl._confusion import confusion
from tosica.tl._rank_gene_sets import rank_gene_sets

__all__ = ["confusion", "rank_gene_sets"]
