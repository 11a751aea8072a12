"""Read what the model and the tools wrote: ``tosica.get``."""

from tosica.get._tables import (
    contributions,
    explain,
    gene_sets_df,
    gene_weights,
    genes_df,
    mask_coverage,
    rank_gene_sets_df,
)
from tosica.model._network_weights import network_weights

__all__ = [
    "contributions",
    "explain",
    "gene_sets_df",
    "gene_weights",
    "genes_df",
    "mask_coverage",
    "network_weights",
    "rank_gene_sets_df",
]
