"""Fit lines to parts of a reference, so that each of its cells is new to one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from scvi import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import scipy.sparse as sp

    Line: TypeAlias = tuple[np.ndarray, np.ndarray]

_FOLDS = 5
# Lines through more cells than these would take longer than the network's training.
MOST_CELLS = 4_000


def held_out_lines(
    x: sp.csr_matrix, labels: np.ndarray, fit: Callable[[sp.csr_matrix, np.ndarray], Line]
) -> Iterator[tuple[np.ndarray, Line]]:
    """Five folds, and for each of them a line through the cells of the others.

    Parameters
    ----------
    x
        Log-normalised expression, shape ``(n_cells, n_genes)``.
    labels
        Label of each cell, from 0 on, shape ``(n_cells,)``. Each occurs twice or more, so that all
        lines know it.
    fit
        Makes the weights and biases of a line from cells and their labels.

    Yields
    ------
    Which cells are in the fold, ``(n_cells,)``, and the weights and biases of the line.
    """
    fold = _fold(labels)
    for i in range(_FOLDS):
        yield fold == i, fit(x[fold != i], labels[fold != i])


def _fold(labels: np.ndarray) -> np.ndarray:
    """Fold of each cell: the cells of a label go to all folds in turn."""
    rng = np.random.default_rng(settings.seed)
    fold = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        of_label = rng.permutation(np.flatnonzero(labels == label))
        fold[of_label] = (np.arange(len(of_label)) + rng.integers(_FOLDS)) % _FOLDS
    return fold
