"""Fit the direct path, from genes to labels without gene sets."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from scvi import settings
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from tosica.pp._log_normalize import log_normalize

if TYPE_CHECKING:
    from tosica.module._normalize import Section
    from tosica.pp._rows import Rows

    from ._joint_rows import JointRows

# How much the line counts beside the network.
WEIGHT = 4.0
# A line through more cells than these is hardly another line.
_MOST_CELLS = 10_000
# With shifts, rows are dense.
_MOST_DENSE_CELLS = 4_000
_MAX_ITER = 200
# Power of a gene's mean that it is divided by.
_SCALE = 0.25
# Of fewer cells than these each counts more against the size of the weights, so that together they
# count as much: a line that a few cells hold back follows the strongest genes alone, and errs where
# another batch has less of these.
_COUNT_AS = 500
_OUT_OF_REACH = -100.0
# What the square of a score's change counts that comes with a difference of batches, beside cells
# that count once.
_SHIFT_PENALTY = 10.0


def fit_direct(
    rows: Rows | JointRows,
    cells: np.ndarray,
    labels: np.ndarray,
    n_labels: int,
    section: Section,
    shifts: np.ndarray | None = None,
    temperature: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """What the direct path adds to the logits: a logistic regression, counted four times.

    Parameters
    ----------
    rows
        Expression of the reference.
    cells
        Positions of the cells to fit to. Of more than 10 000, or 4 000 with `shifts`, about as many
        are drawn, of frequent labels equally many.
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
    drawn = draw(labels, _MOST_CELLS if shifts is None else _MOST_DENSE_CELLS)
    taught, codes = np.unique(labels[drawn], return_inverse=True)
    line = fit_line(read(rows, cells[drawn], section), codes, shifts)
    weights, biases = np.zeros((n_labels, line[0].shape[1])), np.full(n_labels, _OUT_OF_REACH)
    weights[taught], biases[taught] = line
    factor = WEIGHT / temperature
    return factor * weights, factor * biases


def read(rows: Rows | JointRows, cells: np.ndarray, section: Section) -> sp.csr_matrix:
    """Expression of some cells, normalised as the network's minibatches are, but not dense."""
    x = sp.csr_matrix(rows.take(cells))
    return x if section.how is None else log_normalize(x, section.target_sum)


def fit_line(
    x: sp.csr_matrix, labels: np.ndarray, shifts: np.ndarray | None = None, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Logistic regression of scikit-learn, on genes divided by the fourth root of their mean.

    Labels count equally, whatever their size, and fewer than 500 cells as much as 500. Of genes as
    they are the strongest decide, and of genes divided by their mean the weakest, which are mostly
    noise.

    Parameters
    ----------
    x
        Log-normalised expression, shape ``(n_cells, n_genes)``.
    labels
        Label of each cell, from 0 on, shape ``(n_cells,)``. Each occurs.
    shifts
        What the scores should not change with, shape ``(n_shifts, n_genes)``: the more a score
        does, the more it is penalised, as is the size of the weights.
    **options
        Of :class:`sklearn.linear_model.LogisticRegression`, such as another ``C`` than 1, or 500
        over the number of cells if there are fewer.

    Returns
    -------
    Weights, ``(n_labels, n_genes)``, for expression as it is, and biases, ``(n_labels,)``.
    """
    mean = np.asarray(x.mean(0)).ravel()
    scale = np.where(mean > 0, mean, 1) ** _SCALE
    z = sp.csr_matrix(x @ sp.diags(1 / scale))
    options = {"C": max(1.0, _COUNT_AS / len(labels))} | options
    toward = None if shifts is None else _Shrinkage(shifts / scale, options["C"])
    regression = LogisticRegression(class_weight="balanced", max_iter=_MAX_ITER, **options)
    with warnings.catch_warnings():
        # What is not quite at the optimum is a little more regular, and as good.
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit(z if toward is None else toward(z), labels)
    weights, biases = regression.coef_, regression.intercept_
    weights = (weights if toward is None else toward(weights)) / scale
    if len(regression.classes_) == 2:
        # scikit-learn gives the difference of the two only.
        weights, biases = np.vstack([-weights, weights]) / 2, np.r_[-biases, biases] / 2
    return weights, biases


class _Shrinkage:
    """Multiply by the inverse root of 1 plus the penalty on shifts.

    On rows that are shrunk so, the ridge on the weights is the penalty on both; the weights for
    rows as they are come out of another multiplication.
    """

    def __init__(self, shifts: np.ndarray, count: float) -> None:
        _, lengths, self._directions = np.linalg.svd(shifts, full_matrices=False)
        self._less = 1 / np.sqrt(1 + count * _SHIFT_PENALTY * lengths**2) - 1

    def __call__(self, rows: sp.csr_matrix | np.ndarray) -> np.ndarray:
        along = (rows @ self._directions.T) * self._less
        shrunk = along @ self._directions
        shrunk += rows if isinstance(rows, np.ndarray) else rows.toarray()
        return shrunk


def draw(labels: np.ndarray, most: int) -> np.ndarray:
    """Positions of at most `most` cells: rare labels whole, frequent ones cut to one size."""
    if len(labels) <= most:
        return np.arange(len(labels))
    rng = np.random.default_rng(settings.seed)
    sizes = np.sort(np.bincount(labels))[::-1]
    # Cut to this size, the i largest labels and all smaller ones together are `most` cells.
    below = np.append(np.cumsum(sizes[::-1])[::-1][1:], 0)
    limits = (most - below) // np.arange(1, len(sizes) + 1)
    fits = limits >= np.append(sizes[1:], 0)
    limit = max(int(limits[np.argmax(fits)]), 1)
    kept = [rng.permutation(np.flatnonzero(labels == label))[:limit] for label in np.unique(labels)]
    return np.sort(np.concatenate(kept))
