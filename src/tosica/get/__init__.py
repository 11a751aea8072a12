"""Read what the model and the tools wrote: ``tosica.get``."""

from tosica.data import network_weights
from tosica.get._tables import (
    attention,
    gene_weights,
    mask_coverage,
    mean_attention,
    rank_gene_sets_df,
    top_genes_df,
)

__all__ = [
    "attention",
    "gene_weights",
    "mask_coverage",
    "mean_attention",
    "network_weights",
    "rank_gene_sets_df",
    "top_genes_df",
]
