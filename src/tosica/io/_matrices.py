"""Find counts and log-normalised values among an object's matrices, and recover lost counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica.data import TARGET_SUM, detect_values
from tosica.io._refused import RefusedValue

if TYPE_CHECKING:
    from collections.abc import Sequence

# Cells on which a recovery of counts is tried before it is computed for all of them.
_N_TRIED = 200
# Values that are compared at a time.
_CHUNK_SIZE = 2**20
# The logarithm of a count: the largest one that R can hold is below it.
_LARGEST_LOG = 50.0
# Ones that a cell must have before its smallest value is taken for a count of one.
_MIN_ONES = 3


class Matrix(NamedTuple):
    """A matrix ``(n_cells, n_genes)``, its name for messages, and the table of its genes."""

    name: str
    values: sp.csr_matrix | np.ndarray
    var: pd.DataFrame


class Expression(NamedTuple):
    """Counts and log-normalised values over the same genes; either may be missing."""

    counts: sp.csr_matrix | None
    data: sp.csr_matrix | None
    var: pd.DataFrame


def select_expression(matrices: Sequence[Matrix], notes: list[str]) -> Expression:
    """Select counts and log-normalised values over as many genes as possible.

    Parameters
    ----------
    matrices
        All matrices of an object.
    notes
        Gets a sentence for each matrix that is left out because of its values.

    Raises
    ------
    ValueError
        If no matrix holds counts or log-normalised values.
    """
    usable: list[tuple[str, Matrix]] = []
    reasons = []
    for matrix in matrices:
        try:
            values = to_csr(matrix.values)
            kind = detect_values(values, matrix.name)
        except ValueError as error:
            reasons.append(str(error))
            notes.append(f"{matrix.name} was left out: it is scaled, or not expression")
            continue
        if kind is not None:
            usable.append(("counts" if kind == "counts" else "log1p", matrix))
    if not usable:
        why = " ".join(["", *reasons])
        raise RefusedValue(
            f"There are neither counts nor log-normalised values in the object.{why}"
        )
    n_genes = max(len(matrix.var) for _, matrix in usable)
    usable = [(kind, matrix) for kind, matrix in usable if len(matrix.var) == n_genes]
    var = usable[0][1].var
    # Reversed, because the first matrix of a kind is preferred.
    by_kind = {
        kind: matrix for kind, matrix in reversed(usable) if matrix.var.index.equals(var.index)
    }
    counts, data = (
        to_csr(by_kind[kind].values) if kind in by_kind else None for kind in ("counts", "log1p")
    )
    return Expression(counts, data, var)


def csr_from_arrays(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int], name: str
) -> sp.csr_matrix:
    """Make a CSR matrix of the arrays of a file, and check every index.

    Raises
    ------
    ValueError
        If the arrays do not make a matrix of this shape; the message begins with ``name``.
    """
    if indices.dtype.kind not in "iu" or indptr.dtype.kind not in "iu":
        raise RefusedValue(
            f"{name} cannot be read: the indices of its sparse matrix are {indices.dtype} and "
            f"{indptr.dtype} values instead of integers."
        )
    # scipy would take memory for as many values as the largest one says.
    if (indptr[:-1] > indptr[1:]).any() or indptr[-1:] != indices.size:
        raise _damaged(ValueError("the starts of its rows do not rise to its size"), name)
    try:
        matrix = sp.csr_matrix((data, indices, indptr), shape=shape)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise _damaged(error, name) from error
    check_matrix(matrix, name)
    return matrix


def check_matrix(values: object, name: str) -> None:
    """Check that a matrix holds numbers, and that all indices of a sparse one are inside its shape.

    Other indices would read or write memory that is not the matrix's.

    Raises
    ------
    ValueError
        If it is not so; the message begins with ``name``.
    """
    is_matrix = isinstance(values, np.ndarray) or sp.issparse(values)
    if not is_matrix or values.ndim != 2 or values.dtype.kind not in "biuf":  # type: ignore[attr-defined]
        kind = getattr(values, "dtype", type(values).__name__)
        raise RefusedValue(f"{name} cannot be read: it is no matrix of numbers ({kind}).")
    if isinstance(values, np.ndarray):
        return
    try:
        values.check_format(full_check=True)  # type: ignore[attr-defined]
    except (ValueError, IndexError) as error:
        raise _damaged(error, name) from error


def _damaged(error: Exception, name: str) -> ValueError:
    return RefusedValue(
        f"{name} cannot be read: the indices of its sparse matrix are damaged "
        f"({str(error).rstrip('.')})."
    )


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


def is_integral(matrix: sp.csr_matrix) -> bool:
    """Whether all values are whole and none is negative."""
    # In chunks, because the result of a comparison takes memory beside the matrix.
    chunks = (matrix.data[i : i + _CHUNK_SIZE] for i in range(0, matrix.nnz, _CHUNK_SIZE))
    return all(bool(((v >= 0) & (v == np.rint(v))).all()) for v in chunks)


def recover_counts(data: sp.csr_matrix, obs: pd.DataFrame) -> tuple[sp.csr_matrix | None, str]:
    """Undo Seurat's ``log1p(counts / total * 10 000)`` where the result is certain.

    A cell's total is taken from an ``nCount_`` column, or computed from the cell's smallest value,
    which stands for a count of one. All values must then be whole.

    Parameters
    ----------
    data
        Log-normalised values ``(n_cells, n_genes)``.
    obs
        Table of the cells.

    Returns
    -------
    The counts, or ``None`` if they cannot be recovered; and a note for the log.
    """
    if data.data.size and data.data.min() < 0:
        return None, "no counts: the values are negative"
    if data.data.size and data.data.max() > _LARGEST_LOG:
        return None, "no counts: the values are too large for logarithms"
    unlogged = np.expm1(data.data.astype(np.float64))
    n_per_cell = np.diff(data.indptr)
    # Relative rounding error of a count in single and in double precision.
    tolerance = 2e-6 if data.dtype.itemsize < 8 else 1e-9
    for column in [name for name in obs if str(name).startswith("nCount_")]:
        if not pd.api.types.is_numeric_dtype(obs[column].dtype) or obs[column].isna().any():
            continue
        factor = obs[column].to_numpy(dtype=np.float64) / TARGET_SUM
        counts = _whole(unlogged, np.repeat(factor, n_per_cell), data.indptr, tolerance)
        if counts is not None:
            return _with_values(data, counts), f"counts were recovered exactly with {column!r}"
    smallest = np.ones(len(n_per_cell))
    filled = n_per_cell > 0
    smallest[filled] = np.minimum.reduceat(unlogged, data.indptr[:-1][filled])
    counts = _whole(unlogged, np.repeat(1 / smallest, n_per_cell), data.indptr, tolerance)
    if counts is not None:
        ones = np.add.reduceat(counts == 1, data.indptr[:-1][filled])
        if (ones >= np.minimum(_MIN_ONES, n_per_cell[filled])).all():
            note = "counts were recovered exactly from each cell's smallest value"
            return _with_values(data, counts), note
    return None, "there are no counts, and they cannot be recovered from the values"


def _whole(
    values: np.ndarray, factor: np.ndarray, indptr: np.ndarray, tolerance: float
) -> np.ndarray | None:
    """Values times factors, rounded, if all are whole up to rounding errors."""
    first_cells = slice(0, int(indptr[min(_N_TRIED, len(indptr) - 1)]))
    absolute = 1e-6 + (1e-3 if tolerance > 1e-8 else 0)
    for part in (first_cells, slice(None)):
        products = values[part] * factor[part]
        whole = np.rint(products)
        if (np.abs(products - whole) > absolute + tolerance * products).any():
            return None
        if (whole < 1).any():
            return None
    return whole


def _with_values(matrix: sp.csr_matrix, values: np.ndarray) -> sp.csr_matrix:
    """A matrix with other values and a copy of the indices, so that the two share no memory."""
    indices, indptr = matrix.indices.copy(), matrix.indptr.copy()
    return type(matrix)((values, indices, indptr), shape=matrix.shape)
