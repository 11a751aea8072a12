"""Plots of annotated data: `tosica.pl`."""

from tosica.pl._bars import gene_weights, rank_gene_sets
from tosica.pl._confusion import confusion
from tosica.pl._curves import faithfulness, mask_coverage, novelty, reliability, training
from tosica.pl._flow import flow, label_flow
from tosica.pl._gene_sets import (
    gene_set_dotplot,
    gene_set_matrixplot,
    gene_set_violin,
    umap,
)
from tosica.pl._heatmap import gene_set_heatmap

__all__ = [
    "confusion",
    "faithfulness",
    "flow",
    "gene_set_dotplot",
    "gene_set_heatmap",
    "gene_set_matrixplot",
    "gene_set_violin",
    "gene_weights",
    "label_flow",
    "mask_coverage",
    "novelty",
    "rank_gene_sets",
    "reliability",
    "training",
    "umap",
]
