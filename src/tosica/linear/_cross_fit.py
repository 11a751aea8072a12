"""Cross-fitting: score each cell by a classifier that was not fitted to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from scvi import settings

from tosica._progress import noted
from tosica._threads import thread_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import scipy.sparse as sp
    from numpy.typing import NDArray

Fitted = TypeVar("Fitted")

# With more cells, cross-fitting would take longer than training the network.
MAX_CELLS_CROSS_FIT = 4_000


def cross_fit(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    fit: Callable[[sp.csr_matrix, NDArray[np.integer]], Fitted],
    *,
    n_folds: int = 5,
) -> Iterator[tuple[NDArray[np.bool_], Fitted]]:
    """Fit one classifier for each fold, to the cells of all other folds.

    Folds are stratified by label.

    Parameters
    ----------
    x
        Log-normalised expression, shape ``(n_cells, n_genes)``.
    labels
        Label of each cell, from 0 on, shape ``(n_cells,)``. Each occurs. A cell that is the only
        one of its label is in no fold, so that every classifier has every label.
    fit
        Fits a classifier to cells and their labels.
    n_folds
        Number of folds.

    Yields
    ------
    Which cells are in the fold, ``(n_cells,)``, and the classifier that was fitted without them.
    """
    fold = _assign_folds(labels, n_folds)
    folds = [fold == i for i in range(n_folds) if (fold == i).any()]

    def fit_others(held_out: NDArray[np.bool_]) -> Fitted:
        return fit(x[~held_out], labels[~held_out])

    fitted = thread_map(fit_others, folds)
    for i, held_out in enumerate(folds):
        with noted(f"fold {i + 1} of {len(folds)}"):
            classifier = next(fitted)
        yield held_out, classifier


def _assign_folds(labels: NDArray[np.integer], n_folds: int) -> NDArray[np.int64]:
    """Fold of each cell, stratified by label; -1 for the only cell of a label."""
    rng = np.random.default_rng(settings.seed)
    fold = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        of_label = rng.permutation(np.flatnonzero(labels == label))
        assigned = (np.arange(len(of_label)) + rng.integers(n_folds)) % n_folds
        fold[of_label] = assigned if len(of_label) > 1 else -1
    return fold
