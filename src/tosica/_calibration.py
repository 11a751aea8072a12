"""Temperature of probabilities, and the threshold of label sets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# How many times warmer or colder than expected.
_FACTOR = 5.0
# A handful of held-out cells that are all right would ask for certainty. How far the logarithm of
# the temperature lies from what is expected, in standard deviations of the normal distribution that
# is assumed for it, counts as much as what the cells say; of some thousand cells it is outweighed.
_SPREAD = 0.1


def fit_temperature(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    expected: float | None = None,
    spread: float = _SPREAD,
) -> float:
    """Find the temperature at which ``softmax(logits / temperature)`` fits held-out labels best.

    One number for all labels, so that the best label stays the best one
    (Guo et al., On calibration of modern neural networks, ICML 2017).

    Parameters
    ----------
    logits
        Shape ``(n_cells, n_labels)``, of cells that were not trained on.
    labels
        Their labels as numbers, shape ``(n_cells,)``.
    expected
        Temperature that is likely before any cell was seen, which few cells move little. By
        default none is.
    spread
        Standard deviation of its logarithm before any cell was seen.

    Returns
    -------
    Temperature between a fifth and five times what is expected (1 by default): the one with the
    least negative log-likelihood, or with ``expected`` the one of the highest posterior
    probability.

    Examples
    --------
    Right three times out of four, however large the difference of the logits:

    >>> import numpy as np
    >>> logits = np.array([[4.0, 0.0]] * 40)
    >>> labels = np.array([0, 0, 0, 1] * 10)
    >>> temperature = fit_temperature(logits, labels)
    >>> round(float(1 / (1 + np.exp(-4 / temperature))), 2)
    0.75
    """
    scores = np.asarray(logits, dtype=np.float64)
    truth = np.asarray(labels)
    each = np.arange(len(truth))

    def loss(log_temperature: float) -> float:
        found = float(-log_softmax(scores / np.exp(log_temperature), axis=1)[each, truth].sum())
        if expected is not None:
            found += ((log_temperature - np.log(expected)) / spread) ** 2 / 2
        return found

    middle, reach = np.log(expected or 1), np.log(_FACTOR)
    best = minimize_scalar(loss, bounds=(middle - reach, middle + reach), method="bounded")
    return float(np.exp(best.x))


def conformal_threshold(held_out: ArrayLike, coverage: float) -> float:
    """Find the probability from which on labels belong to a cell's set.

    Split conformal prediction with the probability of a label as its score (Sadinle et al., Least
    ambiguous set-valued classifiers with bounded error levels, JASA 2019): of a new cell like the
    held-out ones, the right label reaches the returned probability at least as often as promised.

    Parameters
    ----------
    held_out
        Shape ``(n_cells,)``. Probability that the model gave to the right label of each cell that
        it had not trained on.
    coverage
        Share of the cells whose set is to hold the right label.

    Returns
    -------
    The least probability of a label in a set.

    Raises
    ------
    ValueError
        If ``coverage`` does not lie between 0 and 1, or the cells are too few to promise it.

    Examples
    --------
    Of nineteen cells, the worst one may be missed:

    >>> import numpy as np
    >>> held_out = np.linspace(0.1, 1, 19)
    >>> round(conformal_threshold(held_out, 0.95), 2)
    0.1
    >>> round(conformal_threshold(held_out, 0.9), 2)
    0.15
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must lie between 0 and 1, not {coverage}.")
    scores = np.sort(np.asarray(held_out))
    # Rounded, since 10 * (1 - 0.9) is a little less than 1.
    missed = math.floor(round((len(scores) + 1) * (1 - coverage), 9))
    if missed == 0:
        needed = math.ceil(round(1 / (1 - coverage), 9)) - 1
        raise ValueError(
            f"coverage={coverage} cannot be promised with {len(scores)} held-out cells: that takes "
            f"{needed}; lower coverage, or hold out more cells by a smaller train_size."
        )
    return float(scores[missed - 1])
