"""Calibrate probabilities on held-out cells: temperature, and the threshold of label sets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from tosica._types import BoolArray, FloatArray


def fit_temperature(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    expected: float | None = None,
    spread: float = 0.1,
    max_factor: float = 5.0,
) -> float:
    """Fit the temperature at which ``softmax(logits / temperature)`` is calibrated.

    It maximizes the likelihood of held-out labels. There is one temperature for all labels, so that
    the best label of a cell stays the same (Guo et al., On calibration of modern neural networks,
    ICML 2017).

    Parameters
    ----------
    logits
        Shape ``(n_cells, n_labels)``, of cells that were not trained on.
    labels
        Their labels as numbers, shape ``(n_cells,)``.
    expected
        Median of a log-normal prior of the temperature. Without a prior, a few held-out cells that
        are all right would make the model too confident; thousands of cells outweigh it. By default
        there is no prior.
    spread
        Standard deviation of the logarithm of the temperature in the prior.
    max_factor
        The temperature is at most this many times higher or lower than expected (than 1 without
        prior).

    Returns
    -------
    The temperature of the highest likelihood, or of the highest posterior probability with a prior.

    Examples
    --------
    The first label is right in three of four cells, whatever the logits say:

    >>> import numpy as np
    >>> logits = np.array([[4.0, 0.0]] * 40)
    >>> labels = np.array([0, 0, 0, 1] * 10)
    >>> temperature = fit_temperature(logits, labels)
    >>> round(float(1 / (1 + np.exp(-4 / temperature))), 2)
    0.75
    """
    logits = np.asarray(logits, dtype=np.float64)
    codes = np.asarray(labels)
    cells = np.arange(len(codes))

    def loss(log_temperature: float) -> float:
        log_probabilities = log_softmax(logits / np.exp(log_temperature), axis=1)
        negative_log = -float(log_probabilities[cells, codes].sum())
        if expected is not None:
            deviation = (log_temperature - np.log(expected)) / spread
            negative_log += deviation**2 / 2
        return negative_log

    center = np.log(expected or 1)
    width = np.log(max_factor)
    bounds = (center - width, center + width)
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x))


def conformal_threshold(held_out: ArrayLike, coverage: float) -> float:
    """Find the least probability of labels in a cell's label set.

    This is split conformal prediction with the probability of a label as its score (Sadinle et al.,
    Least ambiguous set-valued classifiers with bounded error levels, JASA 2019): the label sets of
    new cells that are exchangeable with the held-out cells contain the right label with at least
    the given coverage.

    Parameters
    ----------
    held_out
        Probability of the right label of each held-out cell, shape ``(n_cells,)``.
    coverage
        Share of the cells whose label set is to contain the right label.

    Returns
    -------
    The threshold.

    Raises
    ------
    ValueError
        If ``coverage`` does not lie between 0 and 1, or there are too few cells for it.

    Examples
    --------
    With 19 cells, a coverage of 95 % is the lowest probability:

    >>> import numpy as np
    >>> held_out = np.linspace(0.1, 1, 19)
    >>> round(conformal_threshold(held_out, 0.95), 2)
    0.1
    >>> round(conformal_threshold(held_out, 0.9), 2)
    0.15
    """
    scores = np.sort(np.asarray(held_out))
    # Rounded, since 10 * (1 - 0.9) is slightly less than 1.
    rank = math.floor(round((len(scores) + 1) * (1 - coverage), 9))
    if rank == 0:
        needed = math.ceil(round(1 / (1 - coverage), 9)) - 1
        raise ValueError(
            f"coverage={coverage} cannot be promised with {len(scores)} cells to calibrate by: that takes {needed}; "
            "lower coverage, hold out more cells by a smaller train_size, or recalibrate by more labeled cells."
        )
    return float(scores[rank - 1])


def label_sets(
    probabilities: FloatArray, threshold: float, *, allow_empty: bool
) -> tuple[BoolArray, int]:
    """Find the labels whose probability is at least a threshold, for each cell.

    Parameters
    ----------
    probabilities
        Shape ``(n_cells, n_labels)``.
    threshold
        Result of :func:`conformal_threshold`.
    allow_empty
        Whether a set without such a label stays empty. Otherwise it gets the most probable label,
        so that the coverage can only become higher.

    Returns
    -------
    Whether a label is in the set of a cell, ``(n_cells, n_labels)``, and the number of cells without
    a label that reaches the threshold.

    Examples
    --------
    >>> import numpy as np
    >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4]])
    >>> label_sets(probabilities, 0.7, allow_empty=False)[0].tolist()
    [[True, False], [True, False]]
    >>> label_sets(probabilities, 0.7, allow_empty=True)[0].tolist()
    [[True, False], [False, False]]
    """
    inside = np.asarray(probabilities >= threshold)
    empty = np.flatnonzero(~inside.any(1))
    if not allow_empty:
        inside[empty, probabilities[empty].argmax(1)] = True
    return inside, len(empty)
