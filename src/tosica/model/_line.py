"""Fit a line from genes to labels that follows less what differs within a label."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, svds
from scipy.special import expit, log_expit

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_ITER = 200
# Power of a gene's mean that it is divided by.
_SCALE = 0.25
# What a cell counts against the size of the weights. Where it counts less, weights follow the
# strongest genes alone, and the line errs where another batch has less of these.
_C = 10.0
# What the square of a score's change counts, beside cells that count once, if the change comes with
# a difference of batches, and if it comes with how cells of a label differ; the latter for so many
# cells, and with more cells as much more.
_SHIFT_PENALTY = 10.0
_WITHIN_PENALTY, _MANY = 0.1, 500
# A label of so many cells counts half of what very large ones do for how cells of a label differ.
_HALF = 10
# A label's score is raised by log(1 + _FEW / n), where n are its cells.
_FEW = 20
# Batches that nobody named are among the first few directions in which a label's cells differ. Of
# more directions some tell types apart that overlap.
_MOST_WITHIN = 5


def fit_line(
    x: sp.csr_matrix, labels: np.ndarray, shifts: np.ndarray | None = None, *, tol: float = 1e-4
) -> tuple[np.ndarray, np.ndarray]:
    r"""Logistic regression of each label against the rest.

    Genes are divided by the fourth root of their mean.

    Cells count so that all labels count equally. Labels do not compete for cells: a label that is
    known from one of two batches that nobody named would be found less often in the other. Of genes
    as they are the strongest decide, and of genes divided by their mean the weakest, which are
    mostly noise. Of :math:`n` cells, with weights :math:`w_k` of the divided genes :math:`z`, that
    is :math:`w_k / m` of genes as they are, the smallest is found of

    .. math:: \sum_k \Big(\sum_i b_i \ell_{ik}
        + \tfrac12 \frac{|w_k|^2}{C} + \tfrac12 \sum_j p_j \big((w_k / m)^\top s_j\big)^2\Big)

    where :math:`\ell_{ik}` is the logistic loss of whether cell :math:`i` is of label :math:`k`,
    :math:`b_i` is :math:`n` over the number of labels and of the label's cells, :math:`C = 10`, and
    the :math:`s_j` are directions that scores should not change along: what batches differ by, of
    which the square counts :math:`p_j = 10`, and the main directions in which cells of a label
    differ, of which it counts :math:`0.1 \max(1, n / 500)`. Batches that have no names are among
    the latter. scikit-learn's regression knows no such penalty.

    Parameters
    ----------
    x
        Log-normalised expression, shape ``(n_cells, n_genes)``.
    labels
        Label of each cell, from 0 on, shape ``(n_cells,)``. Each occurs.
    shifts
        What batches are known to differ by, shape ``(n_shifts, n_genes)``.
    tol
        Largest slope of the mean over the cells at which the search may end.

    Returns
    -------
    Weights, ``(n_labels, n_genes)``, for expression as it is, and biases, ``(n_labels,)``.
    """
    n_cells, n_genes = x.shape
    n_labels = int(labels.max()) + 1
    scale = gene_scale(x)
    z = sp.csr_matrix(x @ sp.diags(1 / scale))
    penalty = _WITHIN_PENALTY * max(1.0, n_cells / _MANY)
    avoid = np.sqrt(penalty) * within_labels(x, labels)
    if shifts is not None:
        avoid = np.vstack([avoid, np.sqrt(_SHIFT_PENALTY) * shifts])
    shrink = shrinkage(np.sqrt(_C) * avoid / scale)
    is_label = labels[:, None] == np.arange(n_labels)
    balance = 1 / (np.bincount(labels) * float(n_labels))[labels, None]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        free = flat.reshape(n_labels, n_genes + 1)
        scores = z @ shrink(free[:, :-1]).T + free[:, -1]
        errors = (expit(scores) - is_label) * balance
        slope = np.column_stack([shrink((z.T @ errors).T), errors.sum(0)])
        ridge = free[:, :-1] / (_C * n_cells)
        slope[:, :-1] += ridge
        fit = -(log_expit(np.where(is_label, scores, -scores)) * balance).sum()
        return float(fit + 0.5 * (ridge * free[:, :-1]).sum()), slope.ravel()

    # The optimum takes ten times as long, and is no more accurate.
    found = minimize(
        loss,
        np.zeros(n_labels * (n_genes + 1)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": _MAX_ITER, "gtol": tol, "ftol": 64 * np.finfo(float).eps, "maxls": 50},
    )
    free = found.x.reshape(n_labels, n_genes + 1)
    return shrink(free[:, :-1]) / scale, free[:, -1]


def lift(labels: np.ndarray) -> np.ndarray:
    r"""What is added to scores of labels, ``(n_labels,)``, so that rare labels are found.

    New cells of a label score less than those that taught it, and the more so the fewer these were.
    The score of a label of :math:`n` cells is raised by :math:`\log(1 + 20 / n)`.
    """
    return np.log1p(_FEW / np.bincount(labels))


def gene_scale(x: sp.csr_matrix) -> np.ndarray:
    """What each gene is divided by, ``(n_genes,)``: the fourth root of its mean."""
    mean = np.asarray(x.mean(0)).ravel()
    return np.where(mean > 0, mean, 1) ** _SCALE


def shrinkage(avoid: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    r"""Multiply by the inverse root of :math:`I + A^\top A`, where `avoid` is :math:`A`.

    Of weights that are shrunk so, the penalty is the plain ridge on what they were before: the
    search is as quick as without, and cells stay sparse.
    """
    _, lengths, directions = np.linalg.svd(avoid, full_matrices=False)
    less = 1 / np.sqrt(1 + lengths**2) - 1

    def shrink(weights: np.ndarray) -> np.ndarray:
        return weights + ((weights @ directions.T) * less) @ directions

    return shrink


def within_labels(x: sp.csr_matrix, labels: np.ndarray, most: int = _MOST_WITHIN) -> np.ndarray:
    r"""Main directions in which cells of a label differ, each as long as they typically differ.

    Shape ``(n_directions, n_genes)``, at most `most` of them: the first principal components of
    cells less their label's mean, times the root of their variance. Labels count equally, but for
    the smallest: else the directions would be those in which single cells differ.
    """
    n_cells, n_genes = x.shape
    # Sums in single precision would tell identical cells apart.
    x = x.astype(np.float64)
    sizes = np.bincount(labels)
    counts = np.where(sizes > 1, sizes / (sizes + _HALF), 0)
    if not counts.any():
        return np.zeros((0, n_genes))
    counts /= counts.sum()
    member = sp.csr_matrix((1 / sizes[labels], (labels, np.arange(n_cells))))
    means = np.asarray((member @ x).todense())
    root = np.sqrt(counts / sizes)[labels]

    def forth(gene: np.ndarray) -> np.ndarray:
        gene = gene.ravel()
        return root * (x @ gene - (means @ gene)[labels])

    def back(cell: np.ndarray) -> np.ndarray:
        cell = root * cell.ravel()
        return x.T @ cell - means.T @ np.bincount(labels, cell, len(sizes))

    whole = float(root**2 @ np.asarray(x.power(2).sum(1)).ravel())
    left = whole - float(counts @ np.square(means).sum(1))
    n = min(most, int((sizes[counts > 0] - 1).sum()), min(n_cells, n_genes) - 1)
    if n < 1 or left <= 1e-9 * whole:
        return np.zeros((0, n_genes))
    cells = LinearOperator((n_cells, n_genes), matvec=forth, rmatvec=back, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(min(n_cells, n_genes))
    _, lengths, directions = svds(cells, n, v0=start, tol=1e-4)
    return lengths[:, None] * directions
