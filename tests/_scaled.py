"""Small matrices of known scale, for tests of what a matrix holds."""

from __future__ import annotations

from typing import Any

import anndata as ad
import numpy as np
import pytest
from _strategies import CONTAINERS

from tosica.data import CellMatrix
from tosica.data._scale import Scale

N_CELLS, N_GENES = 60, 40
COUNTS_SCALE = Scale("counts", 1e4, "genes")

# A block of rows is never kept by columns.
FORMATS = {name: make for name, make in CONTAINERS.items() if not name.startswith("csc")}
each_format = pytest.mark.parametrize("format_", FORMATS.values(), ids=FORMATS)


def normalised(counts: np.ndarray, target_sum: float | None = 1e4, log: bool = True) -> np.ndarray:
    """As ``sc.pp.normalize_total`` and ``sc.pp.log1p`` do, but empty cells pass in silence."""
    total = counts.sum(1, keepdims=True)
    target = np.median(total[total > 0]) if target_sum is None else target_sum
    scaled = counts * np.divide(target, total, out=np.zeros_like(total), where=total > 0)
    return (np.log1p(scaled) if log else scaled).astype(np.float32)


def rows(matrix: Any) -> CellMatrix:
    return CellMatrix(ad.AnnData(matrix))
