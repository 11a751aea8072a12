"""Novelty of cells, and what a query's labels share in difference from the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtri

from tosica.linear._reference_statistics import MIN_CELLS, gene_weights

if TYPE_CHECKING:
    import scipy.sparse as sp

    from tosica._types import BoolArray, FloatArray, IntArray
    from tosica.linear._reference_statistics import ReferenceStatistics

# Fewest labels whose median is the shift that a query's labels share.
_MIN_LABELS = 3


def add_doubt(distance: FloatArray, probability: FloatArray) -> FloatArray:
    """Combine standardized distances with the normal scores of 1 - probability (Stouffer)."""
    # A probability of 1 in single precision is one of at most 1 - eps.
    largest = 1 - float(np.finfo(np.float32).eps)
    probability = np.minimum(np.asarray(probability, dtype=np.float64), largest)
    return np.asarray((distance - ndtri(probability)) / np.sqrt(2))


class CommonShift(NamedTuple):
    """Difference of a query from the reference that all labels share."""

    shift: FloatArray
    """Shape ``(n_genes,)``."""
    signal: float
    """Share of its variance that two samples of the same cells would not have, between 0 and 1.

    If it is 0, the query is of the reference's batch, and to subtract the shift would add noise.
    """


def common_shift(
    x: sp.csr_matrix,
    positions: IntArray,
    statistics: ReferenceStatistics,
    measured: BoolArray | None = None,
) -> CommonShift:
    """Compute the median over labels of the difference between query and reference.

    Parameters
    ----------
    x
        Normalized expression of the query, ``(n_cells, n_genes)``.
    positions
        Position of each cell's label in ``statistics.labels``, -1 for none, ``(n_cells,)``.
    statistics
        Statistics of the model's reference.
    measured
        Shape ``(n_genes,)``: ``False`` for genes that the query lacks.

    Returns
    -------
    The difference, and its share that is a difference of batches.
    """
    differences = []
    variances = []
    n_reference = np.bincount(
        statistics.reference_nearest, minlength=len(statistics.means)
    )
    for label, mean in enumerate(statistics.means):
        of_label = positions == label
        n_query = of_label.sum()
        if n_query >= MIN_CELLS:
            differences.append(np.asarray(x[of_label].mean(0)).ravel() - mean)
            variances.append(1 / n_query + 1 / max(n_reference[label], 1))
    # Missing labels vote for no difference, so that one label alone decides nothing.
    while len(differences) < _MIN_LABELS:
        differences.append(np.zeros(x.shape[1]))
    shift = np.median(differences, axis=0)
    weights = gene_weights(statistics.variance, 1.0)
    if measured is not None:
        shift = shift * measured
        weights = weights * measured
    if not variances:
        return CommonShift(shift, 0.0)
    # Variance of a median, as a share of the variance of a cell.
    median_variance = np.pi / 2 * np.mean(variances) / len(differences)
    expected = float(median_variance * (weights @ statistics.variance))
    observed = float(weights @ np.square(shift))
    if observed <= expected:
        return CommonShift(shift, 0.0)
    return CommonShift(shift, 1 - expected / observed)
