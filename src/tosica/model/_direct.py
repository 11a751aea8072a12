"""Fit the direct path, from genes to labels without gene sets."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from scvi import settings
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

if TYPE_CHECKING:
    from tosica.module._normalize import Section
    from tosica.pp._rows import Rows

    from ._joint_rows import JointRows

# A line through more cells than these is hardly another line.
_MOST_CELLS = 10_000
_MAX_ITER = 200


def fit_direct(
    rows: Rows | JointRows, cells: np.ndarray, labels: np.ndarray, n_labels: int, section: Section
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logistic regression with scikit-learn's defaults, on genes after Pareto scaling.

    Each gene is divided by the square root of its standard deviation: halfway between genes as they
    are, of which the strong ones decide, and genes of equal variance, of which many are noise
    (van den Berg et al., *BMC Genomics* 7, 142, 2006).

    Parameters
    ----------
    rows
        Expression of the reference.
    cells
        Positions of the cells to fit to. Of more than 10 000, about as many are drawn, of frequent
        labels equally many.
    labels
        Label of each of them, shape ``(n_cells,)``. Each occurs.
    n_labels
        Number of labels.
    section
        How expression is normalised.

    Returns
    -------
    Weights, ``(n_labels, n_genes)``, for log-normalised expression as it is, biases,
    ``(n_labels,)``, and the mean of each gene, ``(n_genes,)``.
    """
    drawn = _draw(labels, _MOST_CELLS)
    x = log_normalized(sp.csr_matrix(rows.take(cells[drawn])), section)
    # Sparse matrices stay sparse without centring, and the bias makes up for it.
    mean = np.asarray(x.mean(0)).ravel()
    variance = StandardScaler(with_mean=False).fit(x).var_
    scale = np.where(variance > 0, variance, 1) ** 0.25
    x = sp.csr_matrix(x @ sp.diags(1 / scale))
    regression = LogisticRegression(max_iter=_MAX_ITER)
    with warnings.catch_warnings():
        # What is not quite at the optimum is a little more regular, and as good.
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit(x, labels[drawn])
    weights, biases = regression.coef_ / scale, regression.intercept_
    if n_labels == 2:
        # scikit-learn gives the difference of the two only.
        weights, biases = np.vstack([-weights, weights]) / 2, np.r_[-biases, biases] / 2
    return weights, biases, mean


def log_normalized(block: sp.csr_matrix, section: Section) -> sp.csr_matrix:
    """Normalise rows as the network's minibatches are, without making them dense."""
    if section.how is None:
        return block
    total = np.asarray(block.sum(1), dtype=np.float64).ravel()
    factor = np.divide(section.target_sum, total, out=np.zeros_like(total), where=total > 0)
    return sp.csr_matrix(sp.diags(factor) @ block).log1p()


def _draw(labels: np.ndarray, most: int) -> np.ndarray:
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
