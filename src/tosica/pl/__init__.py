"""Plots of annotated data: `tosica.pl`."""

from tosica.pl._bars import composition, rank_gene_sets, top_genes, waterfall
from tosica.pl._cells import gene_set_violin, novelty, umap
from tosica.pl._confusion import confusion
from tosica.pl._curves import faithfulness, mask_coverage, reliability, training
from tosica.pl._flow import flow, label_flow
from tosica.pl._heatmaps import gene_set_dotplot, gene_set_heatmap

__all__ = [
    "composition",
    "confusion",
    "faithfulness",
    "flow",
    "gene_set_dotplot",
    "gene_set_heatmap",
    "gene_set_violin",
    "label_flow",
    "mask_coverage",
    "novelty",
    "rank_gene_sets",
    "reliability",
    "top_genes",
    "training",
    "umap",
    "waterfall",
]
