"""Add labels to a model: regressions beside its own logits, which stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import logsumexp
from scipy.stats import kurtosis, skew

from tosica.linear._classifier import cross_fit
from tosica.linear._logistic import fit_regressions
from tosica.linear._reference_statistics import (
    MIN_CELLS,
    TINY,
    distances_over_genes,
    gene_weights,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tosica._types import BoolArray, FloatArray, IntArray
    from tosica.linear._reference_statistics import ReferenceStatistics


# Cells to draw for each label of a model, and about as many at most for all of them.
_N_REPLAYED = 100
_MAX_REPLAYED = 10_000
# The shift of a label with n cells has the weight n / (n + 10) beside the shift that labels share.
_SHRINKAGE = 10
_MAX_ITERATIONS = 10


class LabeledCells(NamedTuple):
    """Expression of cells, ``(n_cells, n_genes)``, and the number of each cell's label."""

    x: sp.csr_matrix
    labels: IntArray


class NewLabelFit(NamedTuple):
    """Logits of new labels, on the scale of the model's logits over its temperature."""

    weights: FloatArray
    """Shape ``(n_new, n_genes)``."""
    biases: FloatArray
    """Shape ``(n_new,)``."""
    recall: FloatArray
    """Share of each label's cells that get the label from a fit without them; 0 for a single cell."""


def fit_new_labels(
    new: LabeledCells,
    labeled: LabeledCells,
    shifts: FloatArray | None,
    statistics: ReferenceStatistics,
    score: Callable[[sp.csr_matrix], FloatArray],
    tokens: sp.csr_matrix,
    measured: BoolArray | None = None,
) -> NewLabelFit:
    r"""Fit a logit for each new label, beside the model's own logits, which stay as they are.

    Let :math:`u_j(x)` be the calibrated logits of the model. With a new logit :math:`w^\top x + b`
    the probability of the new label is

    .. math:: \sigma\Big(w^\top x + b - \log \sum_j e^{u_j(x)}\Big)

    which is a logistic regression with an offset. Cells of the model's labels are drawn from its
    statistics, at the reference and shifted to the query's batch, so that no cell of the reference
    is needed. Weights are penalized as those of the linear branch are, and the shifts are batch
    directions, along which the new logit should not change.

    Parameters
    ----------
    new
        Cells with new labels, numbered from 0 on; each occurs.
    labeled
        Cells of the query with labels of the model, by position in ``statistics.labels``.
    shifts
        Difference that the query's batch adds to each label's mean, ``(n_labels, n_genes)``.
    statistics
        Statistics of the model's reference.
    score
        Returns the model's calibrated logits, ``(n_cells, n_labels)``.
    tokens
        Which gene is in which token, shape ``(n_tokens, n_genes)``.
    measured
        Shape ``(n_genes,)``: ``False`` for genes that the query lacks, which get no weight.

    Returns
    -------
    Weights, biases and recall.
    """
    n_old = len(statistics.means)
    n_new = int(new.labels.max()) + 1
    replayed, positions = replay_cells(statistics, shifts)
    x = sp.vstack([replayed, labeled.x, new.x]).tocsr()
    labels = np.concatenate([positions, labeled.labels, n_old + new.labels])
    old_logits = score(x)
    if measured is not None:
        x = sp.csr_matrix(x.multiply(measured))
    # The bias is the weight of a column of ones, which is a token of its own.
    ones = sp.csr_matrix(np.ones((x.shape[0], 1)))
    with_bias = sp.hstack([x, ones]).tocsr()
    tokens_with_bias = sp.block_diag([tokens, sp.csr_matrix([[1.0]])], format="csr")
    directions = None
    if shifts is not None:
        directions = np.hstack([shifts, np.zeros((len(shifts), 1))])

    def fit(new_cells: BoolArray) -> FloatArray:
        n_others = x.shape[0] - len(new_cells)
        cells = np.append(np.ones(n_others, dtype=bool), new_cells)
        fitted = fit_regressions(
            with_bias[cells],
            labels[cells],
            batch_directions=directions,
            gene_sets=tokens_with_bias,
            fitted=np.arange(n_old, n_old + n_new),
            offset=-logsumexp(old_logits[cells], axis=1)[:, None],
        )
        return (fitted.ridge + fitted.lasso) / 2

    is_right = np.zeros(len(new.labels), dtype=bool)
    new_x = with_bias[-len(new.labels) :]
    new_cells_old_logits = old_logits[-len(new.labels) :]
    for fold, weights in cross_fit(new.labels, fit):
        logits = np.hstack([new_x[fold] @ weights.T, new_cells_old_logits[fold]])
        is_right[fold] = logits.argmax(1) == new.labels[fold]
    weights = fit(np.ones(len(new.labels), dtype=bool))
    recall = np.bincount(new.labels, is_right) / np.bincount(new.labels)
    return NewLabelFit(
        weights[:, :-1] * (tokens.getnnz(axis=0) > 0),
        weights[:, -1],
        recall,
    )


def split_in_two(x: sp.csr_matrix, statistics: ReferenceStatistics) -> BoolArray | None:
    """Split cells that should be of one type, ``(n_cells, n_genes)``, if they look like two.

    They do if they vary more in one direction than noise of the variation within labels
    would by chance (the edge of Marčenko and Pastur, *Math. USSR Sb.* 1, 457, 1967), and
    have two modes between the centers of two clusters that were found in other cells: a
    bimodality coefficient above that of the uniform distribution, 5/9.

    Returns
    -------
    Mask of the second type's cells, ``(n_cells,)``, or ``None`` if they look like one type.
    """
    from sklearn.cluster import KMeans

    n = x.shape[0]
    if n < 4:  # two in each half
        return None
    scores = x @ statistics.components.astype(np.float64)
    _, lengths, axes = np.linalg.svd(scores - scores.mean(0), full_matrices=False)
    if lengths[0] ** 2 / (n - 1) <= (1 + np.sqrt(scores.shape[1] / n)) ** 2:
        return None

    def fit(cells: BoolArray) -> FloatArray:
        return KMeans(2, n_init=10, random_state=0).fit(scores[cells]).cluster_centers_

    position = np.zeros(n)
    for half, centers in cross_fit(np.zeros(n, dtype=np.int64), fit, n_folds=2):
        line = centers[1] - centers[0]
        line *= np.sign(line @ axes[0]) / max(np.linalg.norm(line), TINY)
        position[half] = (scores[half] - centers.mean(0)) @ line
    normal_kurtosis = 3 * (n - 1) ** 2 / ((n - 2) * (n - 3))
    denominator = kurtosis(position, bias=False) + normal_kurtosis
    bimodality = (skew(position, bias=False) ** 2 + 1) / denominator
    return position > 0 if bimodality > 5 / 9 else None


# --------------------------------------------------------------------------- replay


def replay_cells(
    statistics: ReferenceStatistics,
    shifts: FloatArray | None = None,
    seed: int = 0,
) -> tuple[sp.csr_matrix, IntArray]:
    r"""Draw a hundred cells of each label from its mean and the variation within labels.

    Of more than a hundred labels, fewer are drawn, about 10 000 in all.

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
        Statistics of the model's reference.
    shifts
        Shape ``(n_labels, n_genes)``. Difference that another batch adds to the mean of each label.
    seed
        Seed of the draws.

    Returns
    -------
    Expression, ``(n_labels * n_cells, n_genes)``, and the position of each cell's label in
    ``statistics.labels``.
    """
    rng = np.random.default_rng(seed)
    means = statistics.means.astype(np.float64)
    n_labels, n_genes = means.shape
    n_cells = max(min(_N_REPLAYED, _MAX_REPLAYED // n_labels), 10)
    shares = np.bincount(statistics.reference_nearest, minlength=n_labels) + 1.0
    shares /= shares.sum()
    mean = shares @ means
    second_moment = statistics.variance + shares @ np.square(means)
    level = np.divide(second_moment, mean, out=np.zeros(n_genes), where=mean > TINY)
    # Components whiten the covariance within labels: a random sum of the rows of their
    # pseudoinverse has it.
    directions = np.linalg.pinv(statistics.components.astype(np.float64))
    deviation = np.maximum(np.linalg.norm(directions, axis=0), TINY)
    replayed = []
    for label in range(n_labels):
        damping = np.minimum(means[label] / deviation, 1)
        noise = rng.standard_normal((n_cells, len(directions))) @ directions
        expected = means[label] + damping * noise
        if shifts is not None:
            expected += rng.random((n_cells, 1)) * shifts[label]
        expected = np.maximum(expected, 0)
        levels = np.maximum(level, expected)
        probability = np.divide(
            expected, levels, out=np.zeros_like(expected), where=levels > 0
        )
        is_expressed = rng.random(expected.shape) < probability
        x = np.where(is_expressed, levels, 0)
        replayed.append(sp.csr_matrix(x, dtype=np.float32))
    return sp.vstack(replayed).tocsr(), np.repeat(np.arange(n_labels), n_cells)


# --------------------------------------------------------------------------- the batch of a query


class LabelShifts(NamedTuple):
    """Result of :func:`find_label_shifts`."""

    shifts: FloatArray
    """Shift of each label, ``(n_labels, n_genes)``."""
    labels: IntArray
    """Label of each cell, -1 if it is like a new label, ``(n_cells,)``."""


def find_label_shifts(
    x: sp.csr_matrix,
    labels: IntArray,
    is_known: BoolArray,
    new_means: FloatArray,
    statistics: ReferenceStatistics,
    measured: BoolArray | None = None,
) -> LabelShifts:
    """Find the shift of each label in the batch of a query, and the cells that have these labels.

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
        Statistics of the model's reference.
    measured
        Shape ``(n_genes,)``: ``False`` for genes that the query lacks, which are not compared.

    Returns
    -------
    Shifts and labels. Labels without a cell have the shift that labels share.
    """
    means = statistics.means.astype(np.float64)
    if measured is None:
        measured = np.ones(means.shape[1], dtype=bool)
    weights = gene_weights(statistics.variance, 1.0) * measured
    new_distance = distances_over_genes(x, new_means, weights).min(1)
    cells = np.arange(len(labels))
    shifts: FloatArray = np.zeros_like(means)
    assigned = np.full(len(labels), -2)
    for _ in range(_MAX_ITERATIONS):
        distances = distances_over_genes(x, means + shifts, weights)
        is_old = is_known | (distances[cells, labels] <= new_distance)
        previous = assigned
        assigned = np.where(is_old, labels, -1)
        if (previous == assigned).all():
            break
        shifts = _shifts(x, assigned, means) * measured
    return LabelShifts(shifts, assigned)


def _shifts(
    x: sp.csr_matrix,
    labels: IntArray,
    means: FloatArray,
) -> FloatArray:
    """Compute the shift of each label, shrunken towards the median of labels with enough cells."""
    counts = np.bincount(labels[labels >= 0], minlength=len(means))
    shifts = np.zeros_like(means)
    for label in np.flatnonzero(counts):
        shifts[label] = np.asarray(x[labels == label].mean(0)).ravel() - means[label]
    is_frequent = counts >= MIN_CELLS
    common = np.zeros(means.shape[1])
    if is_frequent.any():
        common = np.median(shifts[is_frequent], axis=0)
    weight = (counts / (counts + _SHRINKAGE))[:, None]
    return weight * shifts + (1 - weight) * common
