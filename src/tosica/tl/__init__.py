"""Tools that work on annotated data: ``tosica.tl``."""

from tosica.tl._annotate_file import annotate, annotate_file
from tosica.tl._attribute import attribute
from tosica.tl._doubts import check
from tosica.tl._evaluate import Evaluation, confusion, evaluate, reliability
from tosica.tl._faithfulness import faithfulness
from tosica.tl._majority_vote import majority_vote
from tosica.tl._novelty import novelty
from tosica.tl._rank_gene_sets import correlate_gene_sets, rank_gene_sets
from tosica.tl._refine import refine_gene_sets

__all__ = [
    "Evaluation",
    "annotate",
    "annotate_file",
    "attribute",
    "check",
    "confusion",
    "correlate_gene_sets",
    "evaluate",
    "faithfulness",
    "majority_vote",
    "novelty",
    "rank_gene_sets",
    "refine_gene_sets",
    "reliability",
]
