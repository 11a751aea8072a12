"""Published cells for tutorials, and synthetic counts for tests and benchmarks."""

from tosica.datasets._public import cite_pbmc, dc_progenitors, kang, kang_unlabeled
from tosica.datasets._synthetic import synthetic

__all__ = ["cite_pbmc", "dc_progenitors", "kang", "kang_unlabeled", "synthetic"]
