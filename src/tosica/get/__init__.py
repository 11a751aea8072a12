"""Read what the model and the tools wrote: ``tosica.get``."""

from tosica.data import network_weights
from tosica.get._attention import attention, mean_attention
from tosica.get._gene_weights import gene_weights
from tosica.get._mask_coverage import mask_coverage
from tosica.get._tables import rank_gene_sets_df, top_genes_df

__all__ = [
    "attention",
    "gene_weights",
    "mask_coverage",
    "mean_attention",
    "network_weights",
    "rank_gene_sets_df",
    "top_genes_df",
]
