"""How expression differs between the batches of a reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from scvi import settings

from ._direct import draw, read

if TYPE_CHECKING:
    from tosica.module._normalize import Section
    from tosica.pp._rows import Rows

# A mean over fewer cells is that of a cell rather than that of a batch.
_FEWEST = 3
# What the mean of so many cells says counts half of what that of very many does.
_HALF = 10
_MOST_CELLS = 10_000
# Chance is what remains when batches are shuffled, the largest of so many times.
_N_SHUFFLES = 9


def batch_shifts(
    rows: Rows, cells: np.ndarray, labels: np.ndarray, batches: np.ndarray, section: Section
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
        pairs of label and batch equally many.
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
    _, pair = np.unique(np.stack([labels, batches], 1), axis=0, return_inverse=True)
    drawn = draw(pair.ravel(), _MOST_CELLS)
    labels, batches = labels[drawn], batches[drawn]
    x = read(rows, cells[drawn], section)
    shifts = _shifts(x, labels, batches)
    if shifts is None:
        return None
    _, lengths, directions = np.linalg.svd(shifts, full_matrices=False)
    rng = np.random.default_rng(settings.seed)
    chance = 0.0
    for _ in range(_N_SHUFFLES):
        shuffled = batches.copy()
        for label in np.unique(labels):
            of_label = np.flatnonzero(labels == label)
            shuffled[of_label] = rng.permutation(batches[of_label])
        by_chance = _shifts(x, labels, shuffled)
        assert by_chance is not None
        chance = max(chance, float(np.linalg.norm(by_chance, 2)))
    # Of cells that are all equal, there is only rounding.
    certain = lengths > max(chance, 1e-6)
    return lengths[certain, None] * directions[certain]


def _shifts(x: sp.csr_matrix, labels: np.ndarray, batches: np.ndarray) -> np.ndarray | None:
    """Each label's mean in a batch less that in all, over the root of the number of such means."""
    pairs, pair = np.unique(np.stack([labels, batches], 1), axis=0, return_inverse=True)
    pair = pair.ravel()
    sizes = np.bincount(pair)
    sums = sp.csr_matrix((np.ones(len(pair)), (pair, np.arange(len(pair))))) @ x
    found = []
    for label in np.unique(labels):
        of_label = np.flatnonzero((pairs[:, 0] == label) & (sizes >= _FEWEST))
        if len(of_label) > 1:
            n = sizes[of_label, None]
            means = sums[of_label].toarray() / n
            found.append((means - means.mean(0)) * np.sqrt(n / (n + _HALF)))
    if not found:
        return None
    shifts = np.concatenate(found)
    return shifts / len(shifts) ** 0.5
