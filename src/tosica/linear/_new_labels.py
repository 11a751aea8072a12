"""Regressions for labels that a model lacks, beside its own logits, which stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import logsumexp

from tosica.linear._classifier import split_among_tokens
from tosica.linear._logistic_regression import (
    DEFAULT_CONFIG,
    LogisticRegression,
    RegressionConfig,
    fit_ridge_and_group_lasso,
)
from tosica.linear._replay import replay_cells

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tosica.linear._novelty import NoveltyStatistics

# Cells that are drawn for each label of the model, and at most for all of them.
_N_REPLAYED, _MAX_REPLAYED, _MIN_REPLAYED = 100, 10_000, 10
# Weight of the regression with group lasso in the mean of both regressions.
_LASSO_SHARE = 0.5


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
    seed: int = 0,
    config: RegressionConfig = DEFAULT_CONFIG,
) -> NewLabels:
    r"""Fit a logit for each new label, for which the model's own logits stay as they are.

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
    seed
        Of the cells that are drawn.
    config
        Penalties of the regression.

    Returns
    -------
    Weights and biases.
    """
    n_known, n_new = len(statistics.means), int(new.labels.max()) + 1
    n_cells = max(min(_N_REPLAYED, _MAX_REPLAYED // n_known), _MIN_REPLAYED)
    replayed, positions = replay_cells(statistics, n_cells, shifts, seed=seed)
    x = sp.vstack([replayed, known.x, new.x]).tocsr()
    labels = np.concatenate([positions, known.labels, n_known + new.labels])
    offset = -logsumexp(score(x), axis=1)[:, None]
    if measured is not None:
        x = sp.csr_matrix(x.multiply(measured))
    # A column of ones, which is a token of its own, has the bias as its weight.
    ones = sp.csr_matrix(np.ones((x.shape[0], 1)))
    with_bias = sp.hstack([x, ones]).tocsr()
    directions = None if shifts is None else np.hstack([shifts, np.zeros((len(shifts), 1))])
    ridge, lasso = fit_ridge_and_group_lasso(
        with_bias,
        labels,
        batch_directions=directions,
        gene_sets=sp.block_diag([tokens, sp.csr_matrix([[1.0]])], format="csr"),
        config=config,
        fitted=np.arange(n_known, n_known + n_new),
        offset=offset,
    )
    assert lasso is not None
    assert lasso.relevance is not None
    mean = (1 - _LASSO_SHARE) * ridge.weights + _LASSO_SHARE * lasso.weights
    regression = LogisticRegression(mean[:, :-1], lasso.relevance[:, :-1])
    return NewLabels(split_among_tokens(regression, tokens), mean[:, -1])
