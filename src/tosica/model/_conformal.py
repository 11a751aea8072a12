"""Sets of labels that hold the right one as often as was promised."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def least_probability(held_out: ArrayLike, coverage: float) -> float:
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
    >>> round(least_probability(held_out, 0.95), 2)
    0.1
    >>> round(least_probability(held_out, 0.9), 2)
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
            f"{needed}; lower coverage, or train on a smaller share, e.g. train_size=0.8."
        )
    return float(scores[missed - 1])
