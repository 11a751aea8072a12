"""Learn from a query without labels: its most certain cells are fitted beside drawn cells of the reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import brentq
from scipy.special import log_softmax, softmax
from scvi import settings

from tosica.linear._classifier import CrossValidated, LinearClassifier, fit_classifier
from tosica.linear._new_labels import replay_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tosica._types import BoolArray, Float32Array, FloatArray, IntArray
    from tosica.linear._reference_statistics import ReferenceStatistics

# Least probability that a neighbor's label counts with: one cell that is sure of another label would
# otherwise decide alone.
_MIN_PROBABILITY = 1e-6
N_ROUNDS = 2
# Share of each label's cells that may teach, and cells that may in any case.
_TEACHER_SHARE = 0.65
_FEWEST_TEACHERS = 3
# Most neighbors of a cell, and principal axes; fewer axes if there are not five cells for each.
_MAX_NEIGHBORS = 15
_MAX_AXES = 20


class SelfTrained(NamedTuple):
    """Result of :func:`self_train`."""

    classifier: LinearClassifier
    """Last fit, for the genes that were measured."""
    logits: FloatArray
    """Weighted means of its logits and of the model's log-probabilities, ``(n_cells, n_labels)``."""
    teachers: IntArray
    """Positions of the query's cells in the last fit."""
    labels: IntArray
    """Their labels."""
    replayed: sp.csr_matrix
    """Cells drawn from the statistics of the reference, ``(n_replayed, n_genes)``."""
    replayed_labels: IntArray
    """Labels of the drawn cells."""


def self_train(
    x: sp.csr_matrix,
    log_probabilities: FloatArray,
    is_doubted: BoolArray,
    statistics: ReferenceStatistics,
    tokens: sp.csr_matrix,
    *,
    weight: float,
    measured: BoolArray | None,
    penalties: CrossValidated,
    levels: Sequence[IntArray] = (),
) -> SelfTrained:
    r"""Fit the regressions of the linear branch to a query, by labels that the model gives it.

    In each round the cells whose labels are most certain (:func:`choose_teachers`) are fitted beside
    cells of every label that are drawn from the statistics of the reference, so that no cell of the
    reference is needed. With the log-probabilities :math:`u` of the model before and those of the
    fit, :math:`v`, the next round labels cells by :math:`(1 - w) u + w v`. The weight :math:`w` is one
    half of the share of the query's difference from the reference that is no noise
    (:func:`~tosica.linear.common_shift`): a query of the same batch teaches nothing.

    Parameters
    ----------
    x
        Log-normalized expression of the query, clipped as the linear branch does, ``(n_cells, n_genes)``.
    log_probabilities
        Logarithms of the model's calibrated probabilities, ``(n_cells, n_labels)``.
    is_doubted
        Cells that may be of no label of the model, which never teach, ``(n_cells,)``.
    statistics
        Statistics of the model's reference.
    tokens
        Which gene is in which token, ``(n_tokens, n_genes)``.
    weight
        Weight :math:`w` of the fit.
    measured
        Shape ``(n_genes,)``: ``False`` for genes that the query lacks, which get no weight.
    penalties
        Result of :func:`~tosica.linear.cross_validate` in training.
    levels
        As in :func:`~tosica.linear.fit_classifier`.

    Returns
    -------
    The last fit, and the logits of all cells.

    References
    ----------
    Amini et al., *Self-training: a survey*, Neurocomputing 616, 128904 (2025).
    """
    n_labels = log_probabilities.shape[1]
    replayed, positions = replay_cells(statistics, seed=settings.seed or 0)
    replayed_labels = statistics.labels[positions]
    if measured is not None:
        x = sp.csr_matrix(x.multiply(measured))
        replayed = sp.csr_matrix(replayed.multiply(measured))
    neighbors = nearest_cells(x, n_labels)
    logits = np.asarray(log_probabilities, dtype=np.float64)
    for _ in range(N_ROUNDS):
        labels = logits.argmax(1)
        teachers = choose_teachers(logits, neighbors, is_doubted)
        classifier = fit_classifier(
            sp.vstack([replayed, x[teachers]]).tocsr(),
            np.concatenate([replayed_labels, labels[teachers]]),
            n_labels,
            tokens,
            penalties,
            levels=levels,
        )
        scores = x @ classifier.weights.T + classifier.biases
        logits = (1 - weight) * log_probabilities + weight * log_softmax(scores, axis=1)
    return SelfTrained(
        classifier, logits, teachers, labels[teachers], replayed, replayed_labels
    )


def nearest_cells(x: sp.csr_matrix, n_labels: int) -> IntArray:
    """Find the nearest cells of each cell of a query, in principal axes of the query itself.

    There are a quarter as many neighbors as a label has cells on average, so that most neighbors of a
    cell in a small type are of its type.

    Parameters
    ----------
    x
        Expression of the query, ``(n_cells, n_genes)``.
    n_labels
        Number of labels that the query may have.

    Returns
    -------
    Positions, the cell itself first, ``(n_cells, n_neighbors)``.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.neighbors import NearestNeighbors

    n_cells = x.shape[0]
    n_neighbors = min(max(n_cells // (4 * n_labels), 1), _MAX_NEIGHBORS)
    n_axes = min(_MAX_AXES, max(n_cells // 5, 1), x.shape[1])
    if n_neighbors == 1:
        return np.arange(n_cells)[:, None]
    axes = TruncatedSVD(n_axes, random_state=0).fit_transform(x)
    index = NearestNeighbors(n_neighbors=n_neighbors).fit(axes)
    positions: IntArray = index.kneighbors(axes, return_distance=False)
    return positions


def choose_teachers(
    logits: FloatArray,
    neighbors: IntArray,
    is_doubted: BoolArray,
) -> IntArray:
    """Choose the cells of a query whose labels are taught.

    A cell teaches its label if its neighborhood, by the mean of the log-probabilities, has the same
    label, and if the cell is among the most certain ones of its label. How certain it is, is the sum
    of its own log-probability and that of its neighborhood.

    Parameters
    ----------
    logits
        Logits of each cell, ``(n_cells, n_labels)``.
    neighbors
        Result of :func:`nearest_cells`.
    is_doubted
        Cells that never teach, ``(n_cells,)``.

    Returns
    -------
    Positions, in order.
    """
    log_probability = log_softmax(logits, axis=1)
    floored = np.maximum(log_probability, np.log(_MIN_PROBABILITY))
    neighborhood = np.zeros_like(log_probability)
    for column in neighbors.T:
        neighborhood += floored[column]
    neighborhood = log_softmax(neighborhood / neighbors.shape[1], axis=1)
    labels = log_probability.argmax(1)
    rows = np.arange(len(labels))
    certainty = (log_probability + neighborhood)[rows, labels]
    may_teach = (neighborhood.argmax(1) == labels) & ~is_doubted
    teachers = []
    for label in np.unique(labels):
        cells = np.flatnonzero(labels == label)
        n_teachers = max(_FEWEST_TEACHERS, int(np.ceil(_TEACHER_SHARE * len(cells))))
        most_certain = cells[np.argsort(-certainty[cells], kind="stable")[:n_teachers]]
        teachers.append(most_certain[may_teach[most_certain]])
    return np.sort(np.concatenate(teachers))


def limit_confidence(logits: FloatArray, highest: float) -> float:
    """Find the temperature, at least 1, at which the best labels have at most a mean probability of ``highest``.

    Labels that a model teaches itself contradict one another less than true ones do, and the model
    becomes surer than it is right where types overlap. That they overlap, the held-out cells of its
    reference show: ``highest`` is the accuracy there.

    Parameters
    ----------
    logits
        Logits of each cell, ``(n_cells, n_labels)``.
    highest
        Highest mean probability of the best label.

    Examples
    --------
    >>> import numpy as np
    >>> limit_confidence(np.array([[3.0, 0.0]]), 0.99)
    1.0
    >>> round(limit_confidence(np.array([[3.0, 0.0]]), 0.9), 3)
    1.365
    """

    def excess(log_temperature: float) -> float:
        probabilities = softmax(logits / np.exp(log_temperature), axis=1)
        return float(probabilities.max(1).mean()) - highest

    # At the highest temperature all labels are equally probable.
    highest_log = np.log(100.0)
    if excess(0.0) <= 0 or excess(highest_log) >= 0:
        return 1.0
    return float(np.exp(brentq(excess, 0.0, highest_log)))


@dataclass(frozen=True)
class Adaptation:
    """To which cells a model was adapted, and the linear branch that it had before.

    The novelty of a cell asks how sure the model was before: a type that the reference lacks gets a
    more and more certain label while the model learns from the query.

    Parameters
    ----------
    n_cells
        Number of the query's cells that were read.
    n_teachers
        Number of those whose labels were taught in the last round.
    n_rounds
        Number of rounds; 0 if there was nothing to learn from the query.
    weights, biases
        Calibrated weights of the linear branch before, ``(n_labels, n_genes)`` and ``(n_labels,)``;
        ``None`` if there were no rounds.
    """

    n_cells: int
    n_teachers: int = 0
    n_rounds: int = 0
    weights: Float32Array | None = None
    biases: Float32Array | None = None

    def __str__(self) -> str:
        cells = f"{self.n_cells:,} cell{'' if self.n_cells == 1 else 's'}"
        if not self.n_rounds:
            return f"asked to adapt to {cells}, and left as it was"
        return f"adapted to {cells}: {self.n_rounds} rounds, {self.n_teachers:,} cells taught"

    def take_labels(self, positions: Sequence[int]) -> Adaptation:
        """Keep some of the labels, by position."""
        if self.weights is None or self.biases is None:
            return self
        rows = list(positions)
        return replace(self, weights=self.weights[rows], biases=self.biases[rows])

    def forget_before(self) -> Adaptation:
        """Leave out the branch before, which does not have labels that were added."""
        return replace(self, weights=None, biases=None)

    def highest_probability(self, x: FloatArray) -> FloatArray | None:
        """Compute the probability of each cell's best label before, ``(n_cells,)``.

        ``x`` is log-normalized expression, clipped and imputed as by the linear branch,
        ``(n_cells, n_genes)``.
        """
        if self.weights is None or self.biases is None:
            return None
        probabilities: FloatArray = softmax(x @ self.weights.T + self.biases, axis=1)
        return probabilities.max(1)
