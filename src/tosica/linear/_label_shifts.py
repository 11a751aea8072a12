"""How a query differs from the reference, label by label, while new labels are among its cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tosica.linear._label_distances import distances_over_genes, gene_weights

if TYPE_CHECKING:
    import scipy.sparse as sp
    from numpy.typing import NDArray

    from tosica.linear._novelty import NoveltyStatistics

# Cells of a label that the query must have for the label to count in what all labels share.
_MIN_CELLS = 5
# A label's own shift has the weight n / (n + 10), for n cells, beside the shift that labels share.
_SHRINKAGE = 10
_MAX_ITER = 10
# Added to each gene's variance, as a share of the mean variance.
_FLOOR = 1.0


class LabelShifts(NamedTuple):
    """Shift of each label, ``(n_labels, n_genes)``, and the label of each cell, ``(n_cells,)``.

    A cell that is like a new label has the label -1.
    """

    shifts: NDArray[np.float64]
    labels: NDArray[np.int64]


def find_label_shifts(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    is_known: NDArray[np.bool_],
    new_means: NDArray[np.floating],
    statistics: NoveltyStatistics,
    measured: NDArray[np.bool_] | None = None,
) -> LabelShifts:
    """Find what the batch of a query adds to each label, and which cells have these labels.

    Some of the cells may be of new labels. So cells are clustered as in k-means, with one center
    for each label, which starts at the label's mean in the reference, and one for each new label,
    which stays at the mean of the cells that have the new label. A cell belongs to the label that
    the model gives it, or to a new label. All centers are of the query's batch in the end.

    Parameters
    ----------
    x
        Normalized expression of the query's cells without a new label, ``(n_cells, n_genes)``.
    labels
        Position, in ``statistics.labels``, of the label that each cell has or that the model gives
        it, ``(n_cells,)``.
    is_known
        Whether the cell has this label for sure, ``(n_cells,)``.
    new_means
        Mean expression of each new label in the query, ``(n_new, n_genes)``.
    statistics
        What the model knows of its reference.
    measured
        Shape ``(n_genes,)``: ``False`` for genes that the query lacks, which are not compared.

    Returns
    -------
    Shifts and labels. Labels without a cell have the shift that labels share.
    """
    means = statistics.means.astype(np.float64)
    is_measured = np.ones(means.shape[1], dtype=bool) if measured is None else measured
    weights = gene_weights(statistics.variance, _FLOOR) * is_measured
    to_new = distances_over_genes(x, new_means, weights).min(1)
    shifts = np.zeros_like(means)
    assigned = np.full(len(labels), -2)
    for _ in range(_MAX_ITER):
        to_old = distances_over_genes(x, means + shifts, weights)
        is_old = is_known | (to_old[np.arange(len(labels)), labels] <= to_new)
        before, assigned = assigned, np.where(is_old, labels, -1)
        if (before == assigned).all():
            break
        shifts = _shifts(x, assigned, means) * is_measured
    return LabelShifts(shifts, assigned)


def _shifts(
    x: sp.csr_matrix, labels: NDArray[np.integer], means: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Shift of each label, shrunken towards the median of all labels with enough cells."""
    counts = np.bincount(labels[labels >= 0], minlength=len(means))
    own = np.zeros_like(means)
    for label in np.flatnonzero(counts):
        own[label] = np.asarray(x[labels == label].mean(0)).ravel() - means[label]
    many = counts >= _MIN_CELLS
    common = np.median(own[many], axis=0) if many.any() else np.zeros(means.shape[1])
    weight = (counts / (counts + _SHRINKAGE))[:, None]
    return weight * own + (1 - weight) * common
