"""How expression differs between the batches of a reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from scvi import settings

from tosica.linear._subsample import MOST_CELLS, draw, read

if TYPE_CHECKING:
    from tosica.data._cell_matrix import CellMatrix
    from tosica.data._normalize import ModalitySlice

# A mean over fewer cells is that of a cell rather than that of a batch.
_FEWEST = 3
# What the mean of so many cells says counts half of what that of very many does.
_HALF = 10
# Chance is what remains when batches are shuffled, the largest of so many times.
_N_SHUFFLES = 9


def batch_directions(
    rows: CellMatrix,
    cells: np.ndarray,
    labels: np.ndarray,
    batches: np.ndarray,
    section: ModalitySlice,
) -> np.ndarray | None:
    r"""Directions in which batches differ within a label, each as long as they typically differ.

    In every batch with three or more of its cells, a label has a mean; its shift is how far it lies
    from the label's mean over these batches. Of all shifts, the principal directions are returned
    that are stronger than the strongest one of cells whose batches were shuffled within their label
    (Horn, *Psychometrika* 30, 1965).

    Parameters
    ----------
    rows
        Expression of the reference.
    cells
        Positions of the cells to look at. Of more than 10 000, about as many are drawn, of frequent
        pairs of label and batch equally many, and ten or more.
    labels, batches
        Label and batch of each of them as a number, shape ``(n_cells,)``.
    section
        How expression is normalised.

    Returns
    -------
    Shape ``(n_shifts, n_genes)``, in units of log-normalised expression: of directions :math:`s_i`,
    :math:`\sum_i s_i s_i^\top` is the mean of the shifts' products with themselves, as far as it is
    not chance. There may be none. ``None`` if no label has cells enough in two batches.
    """
    usable = _usable(labels, batches)
    if not usable.any():
        return None
    cells, labels, batches = cells[usable], labels[usable], batches[usable]
    pairs, pair = np.unique(np.stack([labels, batches], 1), axis=0, return_inverse=True)
    # Or more, so that each pair of label and batch has ten.
    drawn = draw(pair.ravel(), max(MOST_CELLS, _HALF * len(pairs)))
    labels, batches = labels[drawn], batches[drawn]
    x = read(rows, cells[drawn], section)
    shifts = _shifts(x, labels, batches)
    squares, axes = np.linalg.eigh(_products(shifts))
    lengths = np.sqrt(np.maximum(squares, 0))
    rng = np.random.default_rng(settings.seed)
    chance = 0.0
    for _ in range(_N_SHUFFLES):
        shuffled = batches.copy()
        for label in np.unique(labels):
            of_label = np.flatnonzero(labels == label)
            shuffled[of_label] = rng.permutation(batches[of_label])
        squares = np.linalg.eigvalsh(_products(_shifts(x, labels, shuffled)))
        chance = max(chance, float(squares[-1]) ** 0.5)
    # Of cells that are all equal, there is only rounding.
    certain = lengths > max(chance, 1e-6)
    if len(axes) == len(shifts):
        return axes[:, certain].T @ shifts
    return (axes[:, certain] * lengths[certain]).T


def _products(shifts: np.ndarray) -> np.ndarray:
    """Products of the rows with each other, or of the columns if these are fewer."""
    n_rows, n_columns = shifts.shape
    return shifts @ shifts.T if n_rows <= n_columns else shifts.T @ shifts


def _usable(labels: np.ndarray, batches: np.ndarray) -> np.ndarray:
    """Which cells have enough others of their label and batch, and of their label elsewhere."""
    pairs = np.stack([labels, batches], 1)
    _, pair, sizes = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    enough = sizes[pair.ravel()] >= _FEWEST
    known = np.unique(pairs[enough], axis=0)[:, 0]
    several, n_batches = np.unique(known, return_counts=True)
    return enough & np.isin(labels, several[n_batches > 1])


def _shifts(x: sp.csr_matrix, labels: np.ndarray, batches: np.ndarray) -> np.ndarray:
    """Each label's mean in a batch less that in all, over the root of the number of such means."""
    pairs, pair = np.unique(np.stack([labels, batches], 1), axis=0, return_inverse=True)
    pair = pair.ravel()
    sizes = np.bincount(pair)[:, None]
    sums = sp.csr_matrix((np.ones(len(pair)), (pair, np.arange(len(pair))))) @ x
    shifts = sums.toarray() / sizes
    for label in np.unique(labels):
        of_label = pairs[:, 0] == label
        shifts[of_label] -= shifts[of_label].mean(0)
    return shifts * np.sqrt(sizes / (sizes + _HALF) / len(shifts))
