"""Published cells for tutorials, and synthetic counts for tests and benchmarks."""

from tosica.datasets._cite_pbmc import cite_pbmc
from tosica.datasets._dc_progenitors import dc_progenitors
from tosica.datasets._kang import kang
from tosica.datasets._kang_unlabeled import kang_unlabeled
from tosica.datasets._synthetic import synthetic
from tosica.datasets._write_synthetic import write_synthetic

__all__ = ["cite_pbmc", "dc_progenitors", "kang", "kang_unlabeled", "synthetic", "write_synthetic"]
