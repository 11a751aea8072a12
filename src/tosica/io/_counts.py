"""Get counts back from log-normalised expression, where that is possible without a guess."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica.data._scale import TARGET_SUM

if TYPE_CHECKING:
    import scipy.sparse as sp

# Cells by which a way is tried before it is carried out for all of them.
_GLANCE = 200
# Values that are looked at together.
_PIECE = 2**20
# Ones in a cell that vouch for its smallest value being one.
_ENOUGH_ONES = 3


def is_integral(matrix: sp.csr_matrix) -> bool:
    """Whether all values are whole and none is negative."""
    # In pieces: what is compared would otherwise be in memory beside the matrix.
    pieces = (matrix.data[i : i + _PIECE] for i in range(0, matrix.nnz, _PIECE))
    return all(bool(((v >= 0) & (v == np.rint(v))).all()) for v in pieces)


def recover_counts(data: sp.csr_matrix, obs: pd.DataFrame) -> tuple[sp.csr_matrix | None, str]:
    """Undo Seurat's ``log1p(counts / total * 10 000)``.

    The totals are those of an ``nCount_`` column, or else follow from each cell's smallest value,
    which stands for a count of one. Either way every value must come out whole.

    Parameters
    ----------
    data
        Log-normalised, shape ``(n_cells, n_genes)``.
    obs
        Table of the cells.

    Returns
    -------
    Counts, or ``None`` if they cannot be had for sure; and a few words on how they were had.
    """
    if data.data.size and data.data.min() < 0:
        return None, "no counts: the values are negative"
    plain = np.expm1(data.data.astype(np.float64))
    per_cell = np.diff(data.indptr)
    # Single precision leaves this much of a count uncertain.
    slack = 2e-6 if data.dtype.itemsize < 8 else 1e-9
    for column in [name for name in obs if str(name).startswith("nCount_")]:
        if not pd.api.types.is_numeric_dtype(obs[column].dtype) or obs[column].isna().any():
            continue
        factor = obs[column].to_numpy(dtype=np.float64) / TARGET_SUM
        found = _whole(plain, np.repeat(factor, per_cell), data.indptr, slack)
        if found is not None:
            return _like(data, found), f"counts were recovered exactly with {column!r}"
    smallest = np.ones(len(per_cell))
    filled = per_cell > 0
    smallest[filled] = np.minimum.reduceat(plain, data.indptr[:-1][filled])
    found = _whole(plain, np.repeat(1 / smallest, per_cell), data.indptr, slack)
    if found is not None:
        ones = np.add.reduceat(found == 1, data.indptr[:-1][filled])
        if (ones >= np.minimum(_ENOUGH_ONES, per_cell[filled])).all():
            return _like(
                data, found
            ), "counts were recovered exactly from each cell's smallest value"
    return None, "there are no counts, and they cannot be recovered from the values"


def _whole(
    plain: np.ndarray, factor: np.ndarray, indptr: np.ndarray, slack: float
) -> np.ndarray | None:
    """The products if they are all whole up to rounding errors."""
    few = slice(0, int(indptr[min(_GLANCE, len(indptr) - 1)]))
    for part in (few, slice(None)):
        values = plain[part] * factor[part]
        whole = np.rint(values)
        if (np.abs(values - whole) > 1e-6 + (1e-3 if slack > 1e-8 else 0) + slack * values).any():
            return None
        if (whole < 1).any():
            return None
    return whole


def _like(data: sp.csr_matrix, values: np.ndarray) -> sp.csr_matrix:
    # Not the same index twice: who changes one matrix in place must not change the other.
    return type(data)((values, data.indices.copy(), data.indptr.copy()), shape=data.shape)
