"""Check the matrices of files, and recover counts from log-normalized values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica.data import TARGET_SUM
from tosica.io._errors import ReadError

if TYPE_CHECKING:
    from tosica._types import FloatArray

# The logarithm of a count: the largest one that R can hold is below it.
_LARGEST_LOG = 50.0
# Ones that a cell must have before its smallest value is taken for a count of one.
_MIN_ONES = 3


def csr_from_arrays(
    data: np.ndarray,
    indices: np.ndarray,
    indptr: np.ndarray,
    shape: tuple[int, int],
    name: str,
) -> sp.csr_matrix:
    """Make a CSR matrix of the arrays of a file, called ``name`` in messages."""
    # scipy would take memory for as many values as the largest pointer says.
    if (np.diff(indptr) < 0).any() or indptr[-1:] != indices.size:
        raise ReadError(
            f"{name} cannot be read: its sparse matrix is damaged; save it again."
        )
    matrix = sp.csr_matrix((data, indices, indptr), shape=shape)
    check_matrix(matrix, name)
    return matrix


def check_matrix(values: Any, name: str) -> None:
    """Check that a matrix holds numbers, and that its sparse indices are inside of it.

    Other indices would access memory outside of the matrix.
    """
    is_matrix = isinstance(values, np.ndarray) or sp.issparse(values)
    if not is_matrix or values.ndim != 2 or values.dtype.kind not in "biuf":
        raise ReadError(f"{name} cannot be read: it is no matrix of numbers.")
    if sp.issparse(values):
        values.check_format(full_check=True)


def to_csr(values: sp.csr_matrix | np.ndarray) -> sp.csr_matrix:
    """Convert to CSR with sorted indices and without stored zeros."""
    matrix = sp.csr_matrix(values)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    if matrix.data.size and not matrix.data.all():
        matrix = matrix.copy()
        matrix.eliminate_zeros()
    return matrix


def to_float32(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """The matrix in single precision, with the same index arrays."""
    with np.errstate(over="ignore"):
        values = matrix.data.astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise ReadError(
            "The expression holds values that are missing, infinite or too large: look "
            "at it in R."
        )
    return type(matrix)((values, matrix.indices, matrix.indptr), shape=matrix.shape)


def recover_counts(
    data: sp.csr_matrix, obs: pd.DataFrame
) -> tuple[sp.csr_matrix | None, str]:
    """Undo Seurat's ``log1p(counts / total * 10 000)`` where the result is certain.

    A cell's total is taken from an ``nCount_`` column, or computed from the cell's
    smallest value, which stands for a count of one. All values must then be whole.

    Parameters
    ----------
    data
        Log-normalized values ``(n_cells, n_genes)``.
    obs
        Table of the cells.

    Returns
    -------
    The counts, or ``None`` if they cannot be recovered; and a note for the log.
    """
    has_values = data.data.size > 0
    if has_values and (data.data.min() < 0 or not data.data.max() <= _LARGEST_LOG):
        return None, "no counts: the values are no logarithms of counts"
    normalized = np.expm1(data.data.astype(np.float64))
    n_per_cell = np.diff(data.indptr)
    # Relative rounding error of a count in single and in double precision.
    tolerance = 2e-6 if data.dtype.itemsize < 8 else 1e-9
    for name, column in obs.items():
        if not str(name).startswith("nCount_"):
            continue
        if not pd.api.types.is_numeric_dtype(column.dtype) or column.isna().any():
            continue
        factor = column.to_numpy(dtype=np.float64) / TARGET_SUM
        counts = _round(normalized * np.repeat(factor, n_per_cell), tolerance)
        if counts is not None:
            note = f"counts were recovered exactly with {name!r}"
            return _with_values(data, counts), note
    smallest = np.ones(len(n_per_cell))
    has_counts = n_per_cell > 0
    cell_starts = data.indptr[:-1][has_counts]
    smallest[has_counts] = np.minimum.reduceat(normalized, cell_starts)
    counts = _round(normalized * np.repeat(1 / smallest, n_per_cell), tolerance)
    if counts is not None:
        n_ones = np.add.reduceat(counts == 1, cell_starts)
        if (n_ones >= np.minimum(_MIN_ONES, n_per_cell[has_counts])).all():
            note = "counts were recovered exactly from each cell's smallest value"
            return _with_values(data, counts), note
    return None, "there are no counts, and they cannot be recovered from the values"


def _round(products: FloatArray, tolerance: float) -> FloatArray | None:
    """Round values to counts, if all are whole up to rounding errors."""
    rounded = np.rint(products)
    absolute = 1e-6 + (1e-3 if tolerance > 1e-8 else 0)
    is_far = np.abs(products - rounded) > absolute + tolerance * products
    if is_far.any() or (rounded < 1).any():
        return None
    return rounded


def _with_values(matrix: sp.csr_matrix, values: np.ndarray) -> sp.csr_matrix:
    """A matrix with other values and copied indices, so that the two share no memory."""
    copied = matrix.copy()
    copied.data = values
    return copied
