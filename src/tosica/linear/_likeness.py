"""Whether a query is of the reference's tissue, and which labels need genes that it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tosica.linear._novelty import MIN_CELLS
from tosica.linear._reference_statistics import TINY, ReferenceStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from tosica._types import Float32Array, FloatArray, IntArray

# Fewest labels whose differences are compared: two have only one.
_MIN_LABELS = 3
# Cells to draw of each label.
_N_DRAWN = 100


def label_likeness(
    sums: FloatArray,
    n_cells: IntArray,
    statistics: ReferenceStatistics,
    weights: FloatArray,
) -> float | None:
    """Correlate what sets the labels of a query apart with what does in the reference.

    Cells of another tissue get labels, too, but by other genes. A batch moves all labels alike, so that it cancels.

    Parameters
    ----------
    sums
        Sum of the normalized expression of each label's cells, missing genes imputed, ``(n_labels, n_genes)``.
    n_cells
        Cells of each label, ``(n_labels,)``.
    statistics
        Statistics of the model's reference.
    weights
        Weight of each gene in the score of each label, ``(n_labels, n_genes)``.

    Returns
    -------
    Correlation, without subtracting means, between what genes add to the score of a label's mean cell less the mean
    over labels, in query and reference; the mean over labels with five cells, by cells. ``None`` for fewer than three
    such labels.
    """
    is_enough = n_cells[statistics.labels] >= MIN_CELLS
    if is_enough.sum() < _MIN_LABELS:
        return None
    labels = statistics.labels[is_enough]
    of_labels = weights[labels] - weights.mean(0)
    query = sums[labels] / n_cells[labels, None]
    query = (query - query.mean(0)) * of_labels
    reference = statistics.means[is_enough].astype(np.float64)
    reference = (reference - reference.mean(0)) * of_labels
    norms = np.linalg.norm(query, axis=1) * np.linalg.norm(reference, axis=1)
    correlations = (query * reference).sum(1) / np.maximum(norms, TINY)
    return float(np.average(correlations, weights=n_cells[labels]))


def label_changes(
    statistics: ReferenceStatistics,
    assign: Callable[[Float32Array, bool], IntArray],
    n_labels: int,
) -> Float32Array:
    """Estimate which share of each label's cells gets another label for the genes that a query lacks.

    Cells are drawn around the mean of each label with the variance of each gene within labels, because a model keeps
    no cells.

    Parameters
    ----------
    statistics
        Statistics of the model's reference.
    assign
        Gets the code of the best label of cells ``(n_cells, n_genes)``; the second argument says whether they lack
        the genes.
    n_labels
        Labels of the model.

    Returns
    -------
    Share of the cells with the right label that lose it, ``(n_labels,)``; NaN for labels that the statistics lack, or
    of whose cells none has it.
    """
    rng = np.random.default_rng(0)
    deviation = np.sqrt(np.maximum(statistics.variance, 0))
    changes = np.full(n_labels, np.nan, dtype=np.float32)
    for mean, code in zip(statistics.means, statistics.labels, strict=True):
        noise = rng.standard_normal((_N_DRAWN, len(mean)), dtype=np.float32)
        x = np.maximum(mean + deviation * noise, 0)
        is_right = assign(x, False) == code
        if is_right.any():
            changes[code] = (assign(x, True)[is_right] != code).mean()
    return changes
