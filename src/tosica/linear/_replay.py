"""Draw cells like those of a reference from its statistics, without any of its cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from tosica.linear._label_distances import TINY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tosica.linear._novelty import NoveltyStatistics


def replay_cells(
    statistics: NoveltyStatistics,
    n_cells: int,
    shifts: NDArray[np.floating] | None = None,
    *,
    seed: int = 0,
) -> tuple[sp.csr_matrix, NDArray[np.int64]]:
    r"""Draw cells of each label from its mean and the variation within labels.

    The expected expression of a cell of label :math:`k` is :math:`\max(0, \mu_k + F z + u s_k)`:
    the label's mean, a random sum of the main directions of the variation within labels, and a
    random share, between 0 and 1, of the label's shift. The random sum is damped for genes that the
    label hardly expresses, which would else be raised by the maximum. A gene is then expressed at
    its typical level, or not at all, with the probability that gives this expectation. The level of
    a gene is its second moment over its mean in the reference, so that the variance agrees as well,
    and most values are zero as in real cells.

    Parameters
    ----------
    statistics
        What the model knows of its reference.
    n_cells
        Number of cells to draw for each label.
    shifts
        Shape ``(n_labels, n_genes)``. What another batch adds to the mean of each label.
    seed
        Of the draws.

    Returns
    -------
    Expression, ``(n_labels * n_cells, n_genes)``, and the position of each cell's label in
    ``statistics.labels``.
    """
    rng = np.random.default_rng(seed)
    means = statistics.means.astype(np.float64)
    n_labels, n_genes = means.shape
    shares = np.bincount(statistics.cells_labels, minlength=n_labels) + 1.0
    shares /= shares.sum()
    mean = shares @ means
    second_moment = statistics.variance + shares @ np.square(means)
    level = np.divide(second_moment, mean, out=np.zeros(n_genes), where=mean > TINY)
    directions = _within_label_directions(statistics.components)
    deviation = np.maximum(np.linalg.norm(directions, axis=0), TINY)
    parts = []
    for label in range(n_labels):
        damping = np.minimum(means[label] / deviation, 1)
        noise = rng.standard_normal((n_cells, len(directions))) @ directions
        expected = means[label] + damping * noise
        if shifts is not None:
            expected += rng.random((n_cells, 1)) * shifts[label]
        expected = np.maximum(expected, 0)
        levels = np.maximum(level, expected)
        probability = np.divide(expected, levels, out=np.zeros_like(expected), where=levels > 0)
        is_expressed = rng.random(expected.shape) < probability
        parts.append(sp.csr_matrix(np.where(is_expressed, levels, 0), dtype=np.float32))
    return sp.vstack(parts).tocsr(), np.repeat(np.arange(n_labels), n_cells)


def _within_label_directions(components: NDArray[np.floating]) -> NDArray[np.float64]:
    """Directions whose random sum has the covariance within labels, ``(n_comps, n_genes)``.

    ``components`` whiten this covariance, so the directions are their pseudoinverse.
    """
    return np.linalg.pinv(components.astype(np.float64))
