"""Add labels to a model: regressions beside its own logits, which stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import logsumexp

from tosica.linear._classifier import split_among_tokens
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
    """Weights of pairs of gene and token, ``(n_new, n_pairs)``, and biases, ``(n_new,)``.

    They give logits on the scale of the model's logits over its temperature.
    """

    weights: NDArray[np.float64]
    biases: NDArray[np.float64]


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
    Weights and biases.
    """
    n_known, n_new = len(statistics.means), int(new.labels.max()) + 1
    n_cells = max(min(n_replayed, max_replayed // n_known), 10)
    replayed, positions = replay_cells(statistics, n_cells, shifts)
    x = sp.vstack([replayed, known.x, new.x]).tocsr()
    labels = np.concatenate([positions, known.labels, n_known + new.labels])
    offset = -logsumexp(score(x), axis=1)[:, None]
    if measured is not None:
        x = sp.csr_matrix(x.multiply(measured))
    # A column of ones, which is a token of its own, has the bias as its weight.
    ones = sp.csr_matrix(np.ones((x.shape[0], 1)))
    with_bias = sp.hstack([x, ones]).tocsr()
    directions = None if shifts is None else np.hstack([shifts, np.zeros((len(shifts), 1))])
    fitted = fit_regressions(
        with_bias,
        labels,
        batch_directions=directions,
        gene_sets=sp.block_diag([tokens, sp.csr_matrix([[1.0]])], format="csr"),
        fitted=np.arange(n_known, n_known + n_new),
        offset=offset,
    )
    weights = (1 - lasso_share) * fitted.ridge + lasso_share * fitted.lasso
    return NewLabels(split_among_tokens(weights[:, :-1], fitted.relevance[:, :-1], tokens)[0], weights[:, -1])


# --------------------------------------------------------------------------- replay


def replay_cells(
    statistics: NoveltyStatistics, n_cells: int, shifts: NDArray[np.floating] | None = None, *, seed: int = 0
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
        probability = np.divide(expected, levels, out=np.zeros_like(expected), where=levels > 0)
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
    x: sp.csr_matrix, labels: NDArray[np.integer], means: NDArray[np.float64], min_cells: int, shrinkage: float
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
