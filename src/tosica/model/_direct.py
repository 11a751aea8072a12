"""Fit the direct path, from genes to labels without gene sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ._line import fit_line, lift
from ._sample import MOST_CELLS, draw, read

if TYPE_CHECKING:
    from tosica.module._normalize import Section
    from tosica.pp._rows import Rows

    from ._joint_rows import JointRows

# How much the line counts beside the network.
WEIGHT = 4.0
_OUT_OF_REACH = -100.0


def fit_direct(
    rows: Rows | JointRows,
    cells: np.ndarray,
    labels: np.ndarray,
    n_labels: int,
    section: Section,
    shifts: np.ndarray | None = None,
    temperature: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """What the direct path adds to the logits: logistic regressions, counted four times.

    Of rare labels the network's logits are raised as the line's are, which is part of the biases.

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
    shifts
        What the scores should not change with, as from :func:`batch_shifts`.
    temperature
        What the regression's logits are divided by, as from :func:`line_temperature`.

    Returns
    -------
    Weights, ``(n_labels, n_genes)``, for log-normalised expression as it is, and biases,
    ``(n_labels,)``.
    """
    drawn = draw(labels, MOST_CELLS)
    taught, codes = np.unique(labels[drawn], return_inverse=True)
    of_taught, bias = fit_line(read(rows, cells[drawn], section), codes, shifts)
    factor, raised = WEIGHT / temperature, lift(codes)
    weights = np.zeros((n_labels, of_taught.shape[1]))
    biases = np.full(n_labels, factor * _OUT_OF_REACH)
    added = factor * of_taught, factor * (bias + raised) + raised
    # Softmax does not see what is the same for all labels.
    weights[taught], biases[taught] = (values - values.mean(0) for values in added)
    return weights, biases
