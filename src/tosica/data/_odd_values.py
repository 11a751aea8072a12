"""Refuse ranks, standardized genes and other values that no logarithm of counts can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tosica.data._scale import fractions_error

if TYPE_CHECKING:
    import scipy.sparse as sp

# log1p of counts per million stays below 13.9.
_LARGEST_NATURAL = 15.0
# A cell with fewer different values may look like ranks by accident.
_FEWEST_RANKS = 10
# Genes that are expressed in a smaller or a larger share of the cells say little.
_SHARES = 0.05, 0.95
_FEWEST_GENES = 20
# Of so many genes none is zero, and so many share the smallest value or differ from all others.
_FEWEST_IN_PANEL, _SHARE_SMALLEST, _SHARE_CELLS = 30, 0.2, 0.9
# Ranks are spread evenly, counts and their logarithms are not.
_MEDIAN_OF_RANKS = 0.15
# Mean square of a standardized gene, as a sample of cells gives it: the middle half of the genes.
_MEAN_SQUARE, _SPREAD = (0.6, 1.5), 2.0


def refuse_odd_values(cells: sp.csr_matrix, where: str, noun: str, *, recognized: bool) -> None:
    """Refuse values above zero that are neither counts nor the logarithm of normalized counts.

    Parameters
    ----------
    cells
        Cells that express something, as :func:`~tosica.data._transforms.sample_cells` gives them.
    where
        Name of the matrix in messages.
    noun
        What the values are called in messages.
    recognized
        Whether they are counts, or :func:`~tosica.data._transforms.recognize` knows what they are.

    Raises
    ------
    ValueError
        If all values are equal, or ranks within a cell, or if what are zeros elsewhere is another
        value; and unless they were recognized, if genes are standardized or scaled to at most 1.
    """
    give = f"give counts or log-normalised {noun}"
    if not cells.shape[0]:
        return
    n_cells, n_genes = cells.shape
    if n_cells > 1 and cells.nnz == n_cells * n_genes and cells.data.min() == cells.data.max():
        raise ValueError(
            f"{where} holds the same value, {cells.data[0]:.4g}, for all genes of all cells that "
            f"were looked at: {give}."
        )
    if _are_ranks(cells):
        raise ValueError(f"{where} holds ranks of genes within each cell: {give}.")
    if n_genes >= _FEWEST_IN_PANEL and cells.nnz == n_cells * n_genes and _is_shifted(cells):
        raise ValueError(
            f"{where} holds no zero, but ranks or values that a constant was added to: {give}."
        )
    if recognized:
        return
    if _are_standardized(cells):
        raise ValueError(
            f"{where} holds genes that were scaled to a variance of 1, with negative values set "
            f"to zero: {give}."
        )
    if cells.data.max() > _LARGEST_NATURAL:
        raise fractions_error(where, cells.data.max(), noun)
    if cells.data.max() <= 1:
        raise ValueError(
            f"{where} holds values of at most {cells.data.max():.4g} that are no logarithm of "
            f"normalised counts, as if each gene had been scaled to its maximum: {give}."
        )


def are_odd(cells: sp.csr_matrix) -> bool:
    """Whether values above zero are ranks, shifted values or standardized genes."""
    n_cells, n_genes = cells.shape
    is_dense = n_genes >= _FEWEST_IN_PANEL and cells.nnz == n_cells * n_genes
    return _are_ranks(cells) or (is_dense and _is_shifted(cells)) or _are_standardized(cells)


def _are_ranks(cells: sp.csr_matrix) -> bool:
    """Whether the values of each cell rise with their ranks, however ties are ranked."""
    n_looked_at = 0
    for start, stop in zip(cells.indptr[:-1], cells.indptr[1:], strict=True):
        values, n_equal = np.unique(cells.data[start:stop], return_counts=True)
        if len(values) < _FEWEST_RANKS:
            continue
        last = np.cumsum(n_equal)
        first = last - n_equal + 1
        ways = (first, last, (first + last) / 2)
        if not any(_is_linear(values, ranks) for ranks in ways):
            return False
        n_looked_at += 1
    return n_looked_at > 0


def _is_shifted(cells: sp.csr_matrix) -> bool:
    """Whether cells without a zero have as many equal values as zeros, or ranks of more genes."""
    values = np.sort(cells.data.reshape(cells.shape), axis=1)
    smallest = (values == values[:, :1]).mean(1) > _SHARE_SMALLEST
    middle = values[:, values.shape[1] // 2] > _MEDIAN_OF_RANKS * values[:, -1]
    distinct = (np.diff(values, axis=1) > 0).all(1) & (values == np.rint(values)).all(1)
    return bool((smallest | (distinct & middle)).mean() > _SHARE_CELLS)


def _is_linear(values: np.ndarray, ranks: np.ndarray) -> bool:
    """Whether the values are equal to the ranks but for a factor and an offset."""
    slope = (values[-1] - values[0]) / (ranks[-1] - ranks[0])
    off = np.abs(values - values[0] - slope * (ranks - ranks[0]))
    return bool(off.max() < 1e-3 * slope)


def _are_standardized(cells: sp.csr_matrix) -> bool:
    """Whether genes have a variance of 1 if all zeros of a gene are put back to one value below.

    The mean of a standardized gene is zero, so its zeros were all at minus the sum of its other
    values over their own number.
    """
    n = cells.shape[0]
    n_above = np.bincount(cells.indices, minlength=cells.shape[1])
    told = (n_above > _SHARES[0] * n) & (n_above < _SHARES[1] * n) & (n_above > 1)
    if told.sum() < _FEWEST_GENES:
        return False
    sums = np.bincount(cells.indices, cells.data, cells.shape[1])[told]
    squares = np.bincount(cells.indices, cells.data**2, cells.shape[1])[told]
    mean_square = (squares + sums**2 / (n - n_above[told])) / n
    low, middle, high = np.quantile(mean_square, [0.25, 0.5, 0.75])
    return bool(_MEAN_SQUARE[0] < middle < _MEAN_SQUARE[1] and high < _SPREAD * low)
