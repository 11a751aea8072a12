"""Tools that work on annotated data: ``tosica.tl``."""

from tosica.tl._annotate_file import annotate_file
from tosica.tl._attribute import attribute
from tosica.tl._confusion import confusion
from tosica.tl._correlate_gene_sets import correlate_gene_sets
from tosica.tl._evaluate import Evaluation, evaluate
from tosica.tl._faithfulness import faithfulness
from tosica.tl._majority_vote import majority_vote
from tosica.tl._novelty import novelty
from tosica.tl._rank_gene_sets import rank_gene_sets
from tosica.tl._refine_gene_sets import refine_gene_sets
from tosica.tl._reliability import reliability
from tosica.tl._top_genes import top_genes
from tosica.tl._weight_attention import weight_attention

__all__ = [
    "Evaluation",
    "annotate_file",
    "attribute",
    "confusion",
    "correlate_gene_sets",
    "evaluate",
    "faithfulness",
    "majority_vote",
    "novelty",
    "rank_gene_sets",
    "refine_gene_sets",
    "reliability",
    "top_genes",
    "weight_attention",
]
