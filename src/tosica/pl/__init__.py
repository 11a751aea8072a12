"""Plots of annotated data: `tosica.pl`."""

from tosica.pl._bars import gene_weights, rank_gene_sets
from tosica.pl._confusion import confusion
from tosica.pl._diagnostics import novelty, reliability
from tosica.pl._faithfulness import faithfulness
from tosica.pl._flow import flow, label_flow
from tosica.pl._gene_set_heatmap import gene_set_heatmap
from tosica.pl._gene_set_plots import gene_set_dotplot, gene_set_matrixplot, gene_set_violin
from tosica.pl._mask_coverage import mask_coverage
from tosica.pl._training import training
from tosica.pl._umap import umap

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
