"""Read what the model and the tools wrote: `tosica.get`."""

from tosica.get._attention import attention
from tosica.get._mask_coverage import mask_coverage
from tosica.get._mean_attention import mean_attention
from tosica.get._network_weights import network_weights
from tosica.get._rank_gene_sets_df import rank_gene_sets_df

__all__ = ["attention", "mask_coverage", "mean_attention", "network_weights", "rank_gene_sets_df"]
