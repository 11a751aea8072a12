"""Fit the linear branch: logistic regressions whose weights are shared among the tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import log_softmax

from tosica._calibration import fit_temperature
from tosica.linear._cross_fit import MOST_CELLS as MOST_CROSS_FITTED
from tosica.linear._cross_fit import cross_fit
from tosica.linear._logistic_regression import LogisticRegression, fit_logistic_regression
from tosica.linear._subsample import MOST_CELLS, draw, read

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tosica.data._cell_matrix import CellMatrix
    from tosica.data._mudata import JointMatrix
    from tosica.data._normalize import ModalitySlice

# Strength of the group lasso. Chosen inside references (benchmarks/linear.py).
PENALTY = 1e-4
# Weights that the regression with the group lasso may have in the mean. Cross-validation decides;
# more than half loses in other batches, which it cannot see.
SPARSE_SHARES = (0.0, 0.25, 0.5)
# A smaller weight is taken if it raises the mean log-likelihood of cells by more than so many
# standard errors.
_LEAST_GAIN = 2.0
# A set that the group lasso leaves out gets this share of the most relevant set's relevance, for
# genes that no other set holds.
_LEAST_RELEVANCE = 0.01
# Beside the most relevant set of any label, one of this relevance says nothing.
_NO_RELEVANCE = 1e-6
# A label's logit is raised by log(1 + _FEW / n), where n are its cells.
_FEW = 20
# One-vs-rest regressions ask for temperatures between one and three, by the reference: their scores
# were not made to be compared. What a handful of cells asks for is chance.
_EXPECTED, _SPREAD = 2.0, 0.4
# How much the regression counts beside the network: this much, and more for few cells, from which
# a network learns less than a regression does.
_WEIGHT, _HALF = 4.0, 100
_OUT_OF_REACH = -100.0


class LinearClassifier(NamedTuple):
    """What the linear branch adds to the logits.

    ``weights`` are ``(n_labels, n_pairs)``, for the pairs of gene and token in the order of a CSC
    matrix's columns; ``biases`` are ``(n_labels,)``; ``upper`` is the largest expression of each
    gene, ``(n_genes,)``; ``inactive`` are the labels to which no gene set contributes in the group
    lasso.
    """

    weights: NDArray[np.float64]
    biases: NDArray[np.float64]
    upper: NDArray[np.float64]
    inactive: NDArray[np.integer]


def fit_linear_classifier(
    rows: CellMatrix | JointMatrix,
    cells: NDArray[np.integer],
    labels: NDArray[np.integer],
    n_labels: int,
    section: ModalitySlice,
    tokens: sp.csr_matrix,
    *,
    batch_directions: NDArray[np.floating] | None = None,
    weight: float | None = None,
    temperature: float = 1.0,
    sparse_share: float = SPARSE_SHARES[-1],
) -> LinearClassifier:
    """Fit the regressions of :func:`fit_regression`, and weight them against the network.

    Parameters
    ----------
    rows
        Expression of the reference.
    cells
        Positions of the cells to fit to. Of more than 10 000 about as many are drawn, of frequent
        labels equally many.
    labels
        Label of each of them as a number, shape ``(n_cells,)``.
    n_labels
        Number of labels, some of which may not occur: they get a score that is out of reach.
    section
        How expression is normalised.
    tokens
        Which gene is in which token, shape ``(n_tokens, n_genes)``.
    batch_directions
        What the scores should not change along, as from
        :func:`~tosica.linear._batch_directions.batch_directions`.
    weight
        How much the regression's logits count beside the network's, by default as
        :func:`linear_weight` has it for so many cells.
    temperature, sparse_share
        What the regression's logits are divided by, and the weight of the group lasso, as from
        :func:`cross_validate`.
    """
    drawn = draw(labels, MOST_CELLS)
    taught, codes = np.unique(labels[drawn], return_inverse=True)
    x = read(rows, cells[drawn], section)
    found = fit_regression(x, codes, tokens, batch_directions, sparse_share=sparse_share)
    weight = linear_weight(len(cells)) if weight is None else weight
    factor, raised = weight / temperature, logit_adjustment(codes)
    by_pair = to_tokens(found, tokens)
    weights = np.zeros((n_labels, by_pair.shape[1]))
    biases = np.full(n_labels, factor * _OUT_OF_REACH)
    # The network's logits of rare labels are raised by as much as the regression's.
    added = factor * by_pair, factor * raised + raised
    # Softmax does not see what is the same for all labels.
    weights[taught], biases[taught] = (values - values.mean(0) for values in added)
    upper = x.max(0).toarray().ravel().astype(np.float64)
    return LinearClassifier(weights, biases, upper, taught[_inactive(found)])


def _inactive(regression: LogisticRegression) -> NDArray[np.bool_]:
    """Labels whose gene sets all have next to no relevance, ``(n_labels,)``."""
    assert regression.relevance is not None
    largest = regression.relevance.max(1)
    return largest <= _NO_RELEVANCE * max(float(largest.max()), 1e-300)


def fit_regression(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    tokens: sp.csr_matrix,
    batch_directions: NDArray[np.floating] | None = None,
    *,
    sparse_share: float = SPARSE_SHARES[-1],
    penalty: float = PENALTY,
    nuisance: bool = True,
) -> LogisticRegression:
    """Mean of two logistic regressions: one with a ridge alone, one with the group lasso as well.

    The first rests on many genes, the second on a few gene sets. They err in different cells, and
    their mean is more accurate than either (benchmarks/linear.py).

    Parameters
    ----------
    x, labels, tokens, batch_directions
        As in :func:`~tosica.linear._logistic_regression.fit_logistic_regression`.
    sparse_share
        Weight of the one with the group lasso in the mean, as from :func:`cross_validate`.
    penalty
        Strength of the group lasso.
    nuisance
        Whether to penalise nuisance directions.
    """
    plain, sparse = _fit_both(x, labels, tokens, batch_directions, penalty, nuisance)
    weights = (1 - sparse_share) * plain.weights + sparse_share * sparse.weights
    return LogisticRegression(weights, sparse.relevance)


def _fit_both(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    tokens: sp.csr_matrix,
    batch_directions: NDArray[np.floating] | None,
    penalty: float = PENALTY,
    nuisance: bool = True,
) -> tuple[LogisticRegression, LogisticRegression]:
    """Regressions without and with the group lasso."""
    plain, sparse = (
        fit_logistic_regression(
            x,
            labels,
            batch_directions=batch_directions,
            gene_sets=tokens,
            penalty=strength,
            nuisance=nuisance,
        )
        for strength in (0.0, penalty)
    )
    return plain, sparse


def to_tokens(regression: LogisticRegression, tokens: sp.csr_matrix) -> NDArray[np.float64]:
    """Divide each gene's weight among the tokens that hold it, in proportion to their relevance.

    Returns
    -------
    Shape ``(n_labels, n_pairs)``, by tokens and in a token by genes. Over the tokens that hold a
    gene they sum to its weight.
    """
    relevance = regression.relevance
    if relevance is None:
        raise ValueError("The regression was fitted without gene sets.")
    largest = relevance.max(1, keepdims=True)
    # A label without any relevant set is shared out equally.
    has_sets = ~_inactive(regression)[:, None]
    relevance = np.where(has_sets, np.maximum(relevance, _LEAST_RELEVANCE * largest), 1.0)
    tokens = sp.csr_matrix(tokens, dtype=np.float64)
    tokens.sort_indices()
    total = relevance @ tokens
    of_gene = np.divide(regression.weights, total, out=np.zeros_like(total), where=total > 0)
    token = np.repeat(np.arange(tokens.shape[0]), np.diff(tokens.indptr))
    return of_gene[:, tokens.indices] * relevance[:, token]


class CrossValidated(NamedTuple):
    """Temperature of the regression's logits, and weight of the group lasso in its mean."""

    temperature: float = _EXPECTED
    sparse_share: float = SPARSE_SHARES[-1]


def cross_validate(
    rows: CellMatrix | JointMatrix,
    cells: NDArray[np.integer],
    labels: NDArray[np.integer],
    section: ModalitySlice,
    tokens: sp.csr_matrix,
    batch_directions: NDArray[np.floating] | None = None,
) -> CrossValidated:
    """Choose temperature and weight of the group lasso by five-fold cross-validation.

    The temperature depends on the reference, and is higher where its types overlap. The network,
    which was taught smoothed labels, is about right as it is, so that neither drowns the other once
    the regression's logits are divided by it. The weight of the group lasso is that of the highest
    likelihood; it is less than a half where types differ by genes that few gene sets hold together.

    Parameters
    ----------
    rows, section, tokens, batch_directions
        As in :func:`fit_linear_classifier`.
    cells
        Positions of the cells that train or validate the model. Of more than 4 000, about as many
        are drawn.
    labels
        Label of each of them as a number, shape ``(n_cells,)``.

    Returns
    -------
    The temperature, near 2 if there are few cells, and the weight.
    """
    drawn = draw(labels, MOST_CROSS_FITTED)
    _, codes = np.unique(labels[drawn], return_inverse=True)
    x = read(rows, cells[drawn], section)
    shape = (len(codes), codes.max() + 1)
    plain, sparse = np.full(shape, np.nan), np.full(shape, np.nan)

    def fit(
        part: sp.csr_matrix, of_part: NDArray[np.integer]
    ) -> tuple[LogisticRegression, LogisticRegression]:
        return _fit_both(part, of_part, tokens, batch_directions)

    for held, both in cross_fit(x, codes, fit):
        for logits, found in zip((plain, sparse), both, strict=True):
            logits[held] = x[held] @ found.weights.T
    known = np.flatnonzero(np.isfinite(plain).all(1))
    if not len(known):
        return CrossValidated()
    truth = codes[known]
    # By the cells of the whole: a fold lacks more of a rare label, and would raise just its cells.
    raised = logit_adjustment(codes)
    best: CrossValidated | None = None
    highest = np.zeros(len(truth))
    # The largest share first: it stays unless the cells speak against it beyond chance.
    for share in SPARSE_SHARES[::-1]:
        logits = (1 - share) * plain[known] + share * sparse[known] + raised
        temperature = fit_temperature(logits, truth, expected=_EXPECTED, spread=_SPREAD)
        likelihood = log_softmax(logits / temperature, axis=1)[np.arange(len(truth)), truth]
        gain = likelihood - highest
        if best is None or gain.mean() > _LEAST_GAIN * gain.std() / np.sqrt(len(gain)):
            best, highest = CrossValidated(temperature, share), likelihood
    assert best is not None
    return best


def logit_adjustment(labels: NDArray[np.integer]) -> NDArray[np.float64]:
    r"""What is added to logits of labels, ``(n_labels,)``, so that rare labels are found.

    New cells of a label score less than those that taught it, and the more so the fewer these were.
    The logit of a label of :math:`n` cells is raised by :math:`\log(1 + 20 / n)`.
    """
    return np.log1p(_FEW / np.bincount(labels))


def linear_weight(n_cells: int) -> float:
    """How much the regression's logits count beside the network's: 4, and more of few cells."""
    return _WEIGHT * (1 + _HALF / n_cells)
