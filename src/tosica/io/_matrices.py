"""Tell which of an object's matrices are counts, which are log-normalised, and which are scaled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp

from tosica.data._scale import kind_of

if TYPE_CHECKING:
    import pandas as pd


class Matrix(NamedTuple):
    """A matrix of cells × genes, its name for a sentence, and the table of its genes."""

    name: str
    values: sp.csr_matrix | np.ndarray
    var: pd.DataFrame


class Chosen(NamedTuple):
    """Counts and log-normalised values over the same genes; either may be missing."""

    counts: sp.csr_matrix | None
    data: sp.csr_matrix | None
    var: pd.DataFrame


def choose(matrices: list[Matrix], notes: list[str], caller: str) -> Chosen:
    """Choose the matrices that scanpy would work on: unscaled, over as many genes as there are.

    Raises
    ------
    ValueError
        If all of them are scaled or otherwise of no use.
    """
    usable: list[tuple[str, Matrix]] = []
    reasons = []
    for matrix in matrices:
        try:
            kind = kind_of(as_csr(matrix.values), matrix.name)
        except ValueError as error:
            reasons.append(str(error))
            notes.append(f"{matrix.name} was left out: it is scaled, or no expression")
            continue
        if kind is not None:
            usable.append((kind, matrix))
    if not usable:
        raise ValueError(
            f"{caller}: there are neither counts nor log-normalised values in it. "
            + " ".join(reasons)
        )
    widest = max(len(matrix.var) for _, matrix in usable)
    usable = [(kind, matrix) for kind, matrix in usable if len(matrix.var) == widest]
    found = dict(reversed(usable))
    first = usable[0][1]
    genes = first.var.index
    for kind, matrix in list(found.items()):
        if not matrix.var.index.equals(genes):
            del found[kind]
    counts, data = (
        as_csr(found[kind].values) if kind in found else None for kind in ("counts", "log1p")
    )
    return Chosen(counts, data, first.var)


def rows_from_file(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> sp.csr_matrix:
    """Sparse rows from a file's parts, each of whose indices is checked.

    Raises
    ------
    ValueError
        If the parts do not make a matrix of this shape.
    """
    try:
        rows = sp.csr_matrix((data, indices, indptr), shape=shape)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise _damaged(error) from error
    check_indices(rows)
    return rows


def check_indices(values: sp.spmatrix | np.ndarray) -> None:
    """Look whether all indices of a sparse matrix lie inside of it.

    Others would be read from, or written to, somebody else's memory.

    Raises
    ------
    ValueError
        If some do not.
    """
    if isinstance(values, np.ndarray):
        return
    try:
        values.check_format(full_check=True)
    except (ValueError, IndexError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> ValueError:
    return ValueError(f"the indices of its sparse matrix are damaged ({str(error).rstrip('.')})")


def as_csr(values: sp.csr_matrix | np.ndarray) -> sp.csr_matrix:
    """The same numbers in sparse rows, in order and without stored zeros."""
    rows = sp.csr_matrix(values)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    if rows.data.size and not rows.data.all():
        rows = rows.copy()
        rows.eliminate_zeros()
    return rows
