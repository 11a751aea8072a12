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
WEIGHT = 2.0
# A line through more cells than these is hardly another line.
_MOST_CELLS = 10_000
_MAX_ITER = 200
_OUT_OF_REACH = -100.0


def fit_direct(
    rows: Rows | JointRows, cells: np.ndarray, labels: np.ndarray, n_labels: int, section: Section
) -> tuple[np.ndarray, np.ndarray]:
    """What the direct path adds to the logits: a logistic regression, counted twice.

    Parameters
    ----------
    rows
        Expression of the reference.
    cells
        Positions of the cells to fit to. Of more than 10 000, about as many are drawn, of frequent
        labels equally many.
    labels
        Label of each of them as a number, shape ``(n_cells,)``.
    n_labels
        Number of labels, some of which may not occur: they get a score that is out of reach.
    section
        How expression is normalised.

    Returns
    -------
    Weights, ``(n_labels, n_genes)``, for log-normalised expression as it is, and biases,
    ``(n_labels,)``.
    """
    drawn = draw(labels, _MOST_CELLS)
    taught, codes = np.unique(labels[drawn], return_inverse=True)
    line = fit_line(read(rows, cells[drawn], section), codes)
    weights, biases = np.zeros((n_labels, line[0].shape[1])), np.full(n_labels, _OUT_OF_REACH)
    weights[taught], biases[taught] = line
    return WEIGHT * weights, WEIGHT * biases


def read(rows: Rows | JointRows, cells: np.ndarray, section: Section) -> sp.csr_matrix:
    """Expression of some cells, normalised as the network's minibatches are, but not dense."""
    x = sp.csr_matrix(rows.take(cells))
    return x if section.how is None else log_normalize(x, section.target_sum)


def fit_line(x: sp.csr_matrix, labels: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Logistic regression of scikit-learn, on genes divided by the root of their mean.

    That is what evens out counts, whose variance is about their mean: of genes as they are the
    strongest decide, and of genes of equal variance many are noise.

    Parameters
    ----------
    x
        Log-normalised expression, shape ``(n_cells, n_genes)``.
    labels
        Label of each cell, from 0 on, shape ``(n_cells,)``. Each occurs.
    **options
        Of :class:`sklearn.linear_model.LogisticRegression`.

    Returns
    -------
    Weights, ``(n_labels, n_genes)``, for expression as it is, and biases, ``(n_labels,)``.
    """
    mean = np.asarray(x.mean(0)).ravel()
    scale = np.where(mean > 0, mean, 1) ** 0.5
    regression = LogisticRegression(max_iter=_MAX_ITER, **options)
    with warnings.catch_warnings():
        # What is not quite at the optimum is a little more regular, and as good.
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit(sp.csr_matrix(x @ sp.diags(1 / scale)), labels)
    weights, biases = regression.coef_ / scale, regression.intercept_
    if len(regression.classes_) == 2:
        # scikit-learn gives the difference of the two only.
        weights, biases = np.vstack([-weights, weights]) / 2, np.r_[-biases, biases] / 2
    return weights, biases


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
