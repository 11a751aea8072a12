"""Published cells: for tutorials, and references by the name of a tissue."""

from tosica.datasets._census import census
from tosica.datasets._public import cite_pbmc, dc_progenitors, kang, kang_unlabeled
from tosica.datasets._tissue_model import tissue_model

__all__ = [
    "census",
    "cite_pbmc",
    "dc_progenitors",
    "kang",
    "kang_unlabeled",
    "tissue_model",
]
