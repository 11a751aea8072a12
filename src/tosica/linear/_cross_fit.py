"""Fit linear classifiers to parts of a reference, so that each of its cells is new to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from scvi import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import scipy.sparse as sp
    from numpy.typing import NDArray

Fitted = TypeVar("Fitted")

_FOLDS = 5
# Classifiers of more cells than these would take longer than the network's training.
MOST_CELLS = 4_000


def cross_fit(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    fit: Callable[[sp.csr_matrix, NDArray[np.integer]], Fitted],
) -> Iterator[tuple[NDArray[np.bool_], Fitted]]:
    """Five folds, and for each of them a classifier of the cells of the others.

    Parameters
    ----------
    x
        Log-normalised expression, shape ``(n_cells, n_genes)``.
    labels
        Label of each cell, from 0 on, shape ``(n_cells,)``. Each occurs. The cell of a label with a
        single one is in no fold, so that every classifier knows every label.
    fit
        Makes a classifier from cells and their labels.

    Yields
    ------
    Which cells are in the fold, ``(n_cells,)``, and the classifier.
    """
    fold = _fold(labels)
    for i in range(_FOLDS):
        if (fold == i).any():
            yield fold == i, fit(x[fold != i], labels[fold != i])


def _fold(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Fold of each cell: the cells of a label go to all folds in turn; -1 for single cells."""
    rng = np.random.default_rng(settings.seed)
    fold = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        of_label = rng.permutation(np.flatnonzero(labels == label))
        dealt = (np.arange(len(of_label)) + rng.integers(_FOLDS)) % _FOLDS
        fold[of_label] = dealt if len(of_label) > 1 else -1
    return fold
