"""Synthetic counts for tests and benchmarks."""

from tosica.datasets._synthetic import synthetic
from tosica.datasets._write_synthetic import write_synthetic

__all__ = ["synthetic", "write_synthetic"]
