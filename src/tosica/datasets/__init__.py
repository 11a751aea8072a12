"""Published cells for tutorials."""

from tosica.datasets._public import cite_pbmc, dc_progenitors, kang, kang_unlabeled

__all__ = ["cite_pbmc", "dc_progenitors", "kang", "kang_unlabeled"]
