"""Add labels to a model: regressions beside its own logits, which stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import logsumexp
from scipy.stats import kurtosis, skew

from tosica.linear._classifier import cross_fit
from tosica.linear._logistic import fit_regressions
from tosica.linear._novelty import TINY, distances_over_genes, gene_weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tosica.linear._novelty import NoveltyStatistics


class LabeledCells(NamedTuple):
    """Expression of cells, ``(n_cells, n_genes)``, and the number of each cell's label."""

    x: sp.csr_matrix
    labels: NDArray[np.integer]


class NewLabels(NamedTuple):
    """Weights of genes, ``(n_new, n_genes)``, and biases, ``(n_new,)``.

    They give logits on the scale of the model's logits over its temperature. ``recall`` is the share of each label's
    cells that get the label from a fit without them, ``(n_new,)``; 0 for a single cell.
    """

    weights: NDArray[np.float64]
    biases: NDArray[np.float64]
    recall: NDArray[np.float64]


def fit_new_labels(
    new: LabeledCells,
    known: LabeledCells,
    shifts: NDArray[np.floating] | None,
    statistics: NoveltyStatistics,
    score: Callable[[sp.csr_matrix], NDArray[np.floating]],
    tokens: sp.csr_matrix,
    *,
    measured: NDArray[np.bool_] | None = None,
    n_replayed: int = 100,
    max_replayed: int = 10_000,
    lasso_share: float = 0.5,
) -> NewLabels:
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
    known
        Cells of the query with labels of the model, by position in ``statistics.labels``.
    shifts
        What the query's batch adds to each label's mean, ``(n_labels, n_genes)``.
    statistics
        What the model knows of its reference.
    score
        Returns the model's calibrated logits, ``(n_cells, n_labels)``.
    tokens
        Which gene is in which token, shape ``(n_tokens, n_genes)``.
    measured
        Shape ``(n_genes,)``: ``False`` for genes that the query lacks, which get no weight.
    n_replayed, max_replayed
        Cells to draw for each label of the model, and about as many at most for all of them.
    lasso_share
        Weight of the regression with group lasso in the mean of both regressions.

    Returns
    -------
    Weights, biases and recall.
    """
    n_known, n_new = len(statistics.means), int(new.labels.max()) + 1
    n_cells = max(min(n_replayed, max_replayed // n_known), 10)
    replayed, positions = replay_cells(statistics, n_cells, shifts)
    x = sp.vstack([replayed, known.x, new.x]).tocsr()
    labels = np.concatenate([positions, known.labels, n_known + new.labels])
    of_old = score(x)
    if measured is not None:
        x = sp.csr_matrix(x.multiply(measured))
    # A column of ones, which is a token of its own, has the bias as its weight.
    ones = sp.csr_matrix(np.ones((x.shape[0], 1)))
    with_bias = sp.hstack([x, ones]).tocsr()
    directions = (
        None if shifts is None else np.hstack([shifts, np.zeros((len(shifts), 1))])
    )

    def fit(of_new: NDArray[np.bool_]) -> NDArray[np.float64]:
        kept = np.append(np.ones(x.shape[0] - len(of_new), dtype=bool), of_new)
        fitted = fit_regressions(
            with_bias[kept],
            labels[kept],
            batch_directions=directions,
            gene_sets=sp.block_diag([tokens, sp.csr_matrix([[1.0]])], format="csr"),
            fitted=np.arange(n_known, n_known + n_new),
            offset=-logsumexp(of_old[kept], axis=1)[:, None],
        )
        return (1 - lasso_share) * fitted.ridge + lasso_share * fitted.lasso

    found = np.zeros(len(new.labels), dtype=bool)
    for fold, weights in cross_fit(new.labels, fit):
        own, others = (values[-len(fold) :][fold] for values in (with_bias, of_old))
        found[fold] = np.hstack([own @ weights.T, others]).argmax(1) == new.labels[fold]
    weights = fit(np.ones(len(new.labels), dtype=bool))
    recall = np.bincount(new.labels, found) / np.bincount(new.labels)
    return NewLabels(
        weights[:, :-1] * (tokens.getnnz(axis=0) > 0),
        weights[:, -1],
        recall,
    )


def split_in_two(
    x: sp.csr_matrix, statistics: NoveltyStatistics
) -> NDArray[np.bool_] | None:
    """Split cells that should be of one type, ``(n_cells, n_genes)``, if they look like two.

    They do if they vary more in one direction than noise of the variation within labels would by chance (the edge of
    Marčenko and Pastur, *Math. USSR Sb.* 1, 457, 1967), and have two modes between the centers of two clusters that
    were found in other cells: a bimodality coefficient above that of the uniform distribution, 5/9.

    Returns
    -------
    Which cells are in the second part, ``(n_cells,)``, or ``None`` if they look like one type.
    """
    from sklearn.cluster import KMeans

    n, cells = x.shape[0], x @ statistics.components.astype(np.float64)
    if n < 4:  # two in each half
        return None
    _, lengths, axes = np.linalg.svd(cells - cells.mean(0), full_matrices=False)

    def fit(kept: NDArray[np.bool_]) -> NDArray[np.float64]:
        return KMeans(2, n_init=10, random_state=0).fit(cells[kept]).cluster_centers_

    along = np.zeros(n)
    for half, centers in cross_fit(np.zeros(n, dtype=np.int64), fit, n_folds=2):
        line = centers[1] - centers[0]
        line *= np.sign(line @ axes[0]) / max(np.linalg.norm(line), TINY)
        along[half] = (cells[half] - centers.mean(0)) @ line
    tails = kurtosis(along, bias=False) + 3 * (n - 1) ** 2 / ((n - 2) * (n - 3))
    is_wide = lengths[0] ** 2 / (n - 1) > (1 + np.sqrt(cells.shape[1] / n)) ** 2
    return (
        along > 0
        if is_wide and (skew(along, bias=False) ** 2 + 1) / tails > 5 / 9
        else None
    )


# --------------------------------------------------------------------------- replay


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
    shares = np.bincount(statistics.reference_nearest, minlength=n_labels) + 1.0
    shares /= shares.sum()
    mean = shares @ means
    second_moment = statistics.variance + shares @ np.square(means)
    level = np.divide(second_moment, mean, out=np.zeros(n_genes), where=mean > TINY)
    # Components whiten the covariance within labels: a random sum of the rows of their
    # pseudoinverse has it.
    directions = np.linalg.pinv(statistics.components.astype(np.float64))
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
        probability = np.divide(
            expected, levels, out=np.zeros_like(expected), where=levels > 0
        )
        is_expressed = rng.random(expected.shape) < probability
        parts.append(sp.csr_matrix(np.where(is_expressed, levels, 0), dtype=np.float32))
    return sp.vstack(parts).tocsr(), np.repeat(np.arange(n_labels), n_cells)


# --------------------------------------------------------------------------- the batch of a query


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
    *,
    min_cells: int = 5,
    shrinkage: float = 10,
    max_iter: int = 10,
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
    min_cells
        Cells of a label in the query, without which it does not count in the shift of all labels.
    shrinkage
        A label's own shift has the weight :math:`n / (n + 10)`, for :math:`n` cells, beside the
        shift that labels share.
    max_iter
        Most iterations of the clustering.

    Returns
    -------
    Shifts and labels. Labels without a cell have the shift that labels share.
    """
    means = statistics.means.astype(np.float64)
    is_measured = np.ones(means.shape[1], dtype=bool) if measured is None else measured
    weights = gene_weights(statistics.variance, 1.0) * is_measured
    to_new = distances_over_genes(x, new_means, weights).min(1)
    shifts = np.zeros_like(means)
    assigned = np.full(len(labels), -2)
    for _ in range(max_iter):
        to_old = distances_over_genes(x, means + shifts, weights)
        is_old = is_known | (to_old[np.arange(len(labels)), labels] <= to_new)
        before, assigned = assigned, np.where(is_old, labels, -1)
        if (before == assigned).all():
            break
        shifts = _shifts(x, assigned, means, min_cells, shrinkage) * is_measured
    return LabelShifts(shifts, assigned)


def _shifts(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    means: NDArray[np.float64],
    min_cells: int,
    shrinkage: float,
) -> NDArray[np.float64]:
    """Compute the shift of each label, shrunken towards the median of labels with enough cells."""
    counts = np.bincount(labels[labels >= 0], minlength=len(means))
    own = np.zeros_like(means)
    for label in np.flatnonzero(counts):
        own[label] = np.asarray(x[labels == label].mean(0)).ravel() - means[label]
    many = counts >= min_cells
    common = np.median(own[many], axis=0) if many.any() else np.zeros(means.shape[1])
    weight = (counts / (counts + shrinkage))[:, None]
    return weight * own + (1 - weight) * common
