"""One-vs-rest logistic regression whose weights are a sum over gene sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, svds
from scipy.special import expit, log_expit

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Power of a gene's mean that the gene is divided by.
_SCALE = 0.25
# Inverse strength of the ridge penalty, for one cell.
_C = 10.0
# Strength of the nuisance penalty along differences of batches, beside cells that count once, and
# along what cells of a label differ by; the latter for up to so many cells, and in proportion to
# their number above.
_BATCH_PENALTY = 10.0
_WITHIN_PENALTY, _MANY = 0.1, 500
# A label of so many cells counts half of what very large ones do for how cells of a label differ.
_HALF = 10
# Batches that nobody named are among the first few directions in which a label's cells differ. Of
# more directions some tell types apart that overlap.
_MOST_WITHIN = 5
# Iterations of the search without gene sets, and of each of the reweighted ones with them.
_MAX_ITER, _REWEIGHTED_ITER, _N_REWEIGHTED = 200, 25, 8


class LogisticRegression(NamedTuple):
    """Weights ``(n_labels, n_genes)``, for expression as it is.

    ``relevance``, ``(n_labels, n_sets)``, is how much each gene set may contribute to each label,
    relative to the others; ``None`` where gene sets had no part in the fit.
    """

    weights: NDArray[np.float64]
    relevance: NDArray[np.float64] | None = None


def fit_logistic_regression(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    *,
    batch_directions: NDArray[np.floating] | None = None,
    gene_sets: sp.csr_matrix | None = None,
    penalty: float = 0.0,
    nuisance: bool = True,
    tol: float = 1e-4,
) -> LogisticRegression:
    r"""Fit one-vs-rest logistic regression with a ridge, nuisance and group lasso penalty.

    Of :math:`n` cells, with :math:`z` the expression of genes divided by the fourth root of their
    mean, :math:`m`, and with weights :math:`w_k` of these, the smallest is found of

    .. math:: \sum_k \Big(\sum_i b_i \ell_{ik}
        + \tfrac12 \frac{|w_k|^2}{C n} + \tfrac12 \sum_j q_j \big((w_k / m)^\top s_j\big)^2
        + \lambda \sum_p \sqrt{|p|} \, |v_{kp}|\Big), \quad w_k = \sum_p v_{kp}

    where :math:`\ell_{ik}` is the logistic loss of whether cell :math:`i` is of label :math:`k`,
    :math:`b_i` is one over the number of labels times the number of the label's cells, and
    :math:`C = 10`. The :math:`s_j` are nuisance directions that scores should not change along:
    what batches differ by (:math:`q_j = 10 / n`) and the main directions in which cells of a label
    differ (:math:`0.1 \max(1, n / 500) / n`), among which are batches without a name. The
    last term is the latent overlapping group lasso: :math:`v_{kp}` is zero outside of gene set
    :math:`p`, which has :math:`|p|` genes.

    There is no intercept, so that the label of the highest score is the same for a cell whose
    expression is larger or smaller as a whole, as in another technology. With an intercept,
    accuracy is the same (benchmarks/linear.py).

    The group lasso is solved by iteratively reweighted ridge regression. Since :math:`2 |v| =
    \min_\eta |v|^2 / \eta + \eta`, the penalty for given relevances :math:`\eta_{kp}` is a ridge on
    :math:`w_k` whose strength for gene :math:`g` is one over :math:`\sum_{p \ni g} \eta_{kp}`, and
    the gene's weight is divided among its sets in proportion to :math:`\eta_{kp}`.

    Parameters
    ----------
    x
        Log-normalised expression, shape ``(n_cells, n_genes)``.
    labels
        Label of each cell, from 0 on, shape ``(n_cells,)``. Each occurs.
    batch_directions
        What batches are known to differ by, shape ``(n_directions, n_genes)``.
    gene_sets
        Which gene is in which set, shape ``(n_sets, n_genes)``. Genes in no set get no weight. By
        default there are no sets, and every gene may have a weight.
    penalty
        :math:`\lambda`. Without a penalty sets only say which genes may have a weight.
    nuisance
        Whether to penalise nuisance directions. Without, all :math:`q_j` are zero.
    tol
        Largest slope at which the search may end, for weights in units of their prior's deviation,
        over :math:`\sqrt{C n}`; with a penalty, three tenths of it.

    Returns
    -------
    The regression.

    References
    ----------
    Jacob, Obozinski and Vert, *Group lasso with overlap and graph lasso*, ICML (2009).
    """
    n_cells, n_genes = x.shape
    n_labels = int(labels.max()) + 1
    scale = gene_scale(x)
    problem = _Problem(
        sp.csr_matrix(x.astype(np.float64) @ sp.diags(1 / scale)),
        labels,
        (_nuisance(x, labels, batch_directions) if nuisance else np.zeros((0, n_genes))) / scale,
    )
    ridge = 1 / (_C * n_cells)
    weights = np.zeros((n_labels, n_genes))
    slope = tol * ridge**-0.5
    if gene_sets is None:
        holders = np.ones(n_genes)
    else:
        gene_sets = sp.csr_matrix(gene_sets, dtype=np.float64)
        holders = np.asarray(gene_sets.sum(0)).ravel()
    deviation = np.where(holders > 0, ridge**-0.5, 0.0) * np.ones((n_labels, 1))
    weights = problem.solve(deviation, weights, _MAX_ITER, slope)
    if gene_sets is None or not penalty:
        return LogisticRegression(weights / scale)
    root = np.sqrt(np.asarray(gene_sets.sum(1)).ravel())
    relevance = _reweight(np.ones((n_labels, len(root))), weights, gene_sets, root)
    for _ in range(_N_REWEIGHTED):
        total = relevance @ gene_sets
        with np.errstate(divide="ignore"):
            deviation = 1 / np.sqrt(ridge + penalty / total)
        weights = problem.solve(deviation, weights, _REWEIGHTED_ITER, 0.3 * slope)
        relevance = _reweight(relevance, weights, gene_sets, root)
    return LogisticRegression(weights / scale, relevance)


class _Problem:
    """Weighted logistic losses of scaled expression, and the nuisance directions."""

    def __init__(self, z: sp.csr_matrix, labels: np.ndarray, nuisance: np.ndarray) -> None:
        n_labels = int(labels.max()) + 1
        self._z, self._transposed = z, z.T.tocsr()
        self._nuisance = nuisance
        self._is_label = labels[:, None] == np.arange(n_labels)
        self._balance = 1 / (np.bincount(labels) * float(n_labels))[labels, None]

    def solve(
        self, deviation: np.ndarray, weights: np.ndarray, max_iter: int, slope: float
    ) -> np.ndarray:
        """Minimise the losses plus the ridge of each weight, from given weights.

        `deviation`, ``(n_labels, n_genes)``, is one over the root of the ridge's strength; a weight
        is zero where it is zero. The search is for weights that are divided by it, of which the
        penalty is the plain ridge, so that it is as quick for any deviation.
        """
        factors = [_low_rank_root(self._nuisance * row) for row in deviation]

        def shrink(free: np.ndarray) -> np.ndarray:
            return np.stack(
                [row + (row @ v.T * less) @ v for row, (v, less) in zip(free, factors, strict=True)]
            )

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            free = flat.reshape(weights.shape)
            scores = self._z @ (deviation * shrink(free)).T
            errors = (expit(scores) - self._is_label) * self._balance
            gradient = shrink(deviation * (self._transposed @ errors).T) + free
            right = log_expit(np.where(self._is_label, scores, -scores))
            value = -(right * self._balance).sum() + 0.5 * (free**2).sum()
            return float(value), gradient.ravel()

        start = np.divide(weights, deviation, out=np.zeros_like(weights), where=deviation > 0)
        start = np.stack(
            [
                row + (row @ v.T * (1 / (1 + less) - 1)) @ v
                for row, (v, less) in zip(start, factors, strict=True)
            ]
        )
        found = minimize(
            loss,
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            # The optimum takes ten times as long, and is no more accurate.
            options={
                "maxiter": max_iter,
                "gtol": slope,
                "ftol": 64 * np.finfo(float).eps,
                "maxls": 50,
            },
        )
        return deviation * shrink(found.x.reshape(weights.shape))


def _low_rank_root(nuisance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Directions :math:`V` and factors for which :math:`(I + A^T A)^{-1/2} = I + V^T f V`."""
    _, lengths, directions = np.linalg.svd(nuisance, full_matrices=False)
    return directions, 1 / np.sqrt(1 + lengths**2) - 1


def _reweight(
    relevance: np.ndarray, weights: np.ndarray, gene_sets: sp.csr_matrix, root: np.ndarray
) -> np.ndarray:
    """Norm of each set's part of the weights over the root of its size, ``(n_labels, n_sets)``."""
    total = relevance @ gene_sets
    part = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return relevance * np.sqrt(gene_sets @ (part**2).T).T / root


def gene_scale(x: sp.csr_matrix) -> NDArray[np.float64]:
    """What each gene is divided by, ``(n_genes,)``: the fourth root of its mean.

    Without it the strongest genes would decide; of genes divided by their mean it would be the
    weakest ones, which are mostly noise.
    """
    mean = np.asarray(x.mean(0)).ravel()
    return np.where(mean > 0, mean, 1) ** _SCALE


def _nuisance(
    x: sp.csr_matrix, labels: np.ndarray, batch_directions: np.ndarray | None
) -> np.ndarray:
    """Directions times the roots of their penalties, ``(n_directions, n_genes)``.

    The penalty is that beside cells that count once, and cells count :math:`1 / n` here.
    """
    n_cells = x.shape[0]
    penalty = _WITHIN_PENALTY * max(1.0, n_cells / _MANY)
    nuisance = np.sqrt(penalty) * within_class_directions(x, labels)
    if batch_directions is not None:
        nuisance = np.vstack([nuisance, np.sqrt(_BATCH_PENALTY) * batch_directions])
    return nuisance / np.sqrt(n_cells)


def within_class_directions(
    x: sp.csr_matrix, labels: NDArray[np.integer], most: int = _MOST_WITHIN
) -> NDArray[np.float64]:
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
