"""One-vs-rest logistic regression with a ridge, a nuisance and a group lasso penalty."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, svds
from scipy.special import expit, log_expit

from tosica._parallel import thread_map

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class RegressionConfig:
    r"""Penalties of :func:`fit_regressions`, and when its optimizer stops.

    Parameters
    ----------
    C
        Inverse strength of the ridge penalty, as in scikit-learn.
    group_penalty
        Strength of the latent overlapping group lasso. It was chosen inside references
        (benchmarks/linear.py).
    batch_penalty
        Strength of the nuisance penalty along batch directions.
    within_class_penalty
        Strength of the nuisance penalty along within-class directions, for up to
        ``within_class_cells`` cells. With more cells it grows in proportion to their number.
    within_class_cells
        See ``within_class_penalty``.
    n_within_class_directions
        Number of within-class directions. Unknown batches are among the first few. More directions
        would include some that separate similar cell types.
    gene_scale_power
        Genes are divided by their mean to this power.
    max_iter
        Most iterations of the optimizer without group lasso.
    n_reweightings
        Number of reweighted ridge regressions by which the group lasso is solved.
    max_iter_reweighted
        Most iterations of the optimizer for each of them.
    tol
        The optimizer stops when the gradient is below :math:`\sqrt{C n}` times this, or 0.3 times
        that with group lasso. The gradient is that of weights in units of their prior standard
        deviation.
    many_labels, labels_of_group
        From ``many_labels`` on, labels are fitted in groups, in single precision and on several
        threads. The loss is a sum over labels, so that its minimum is the same. The scores of a
        group fit into the cache of a processor.
    """

    C: float = 10.0
    group_penalty: float = 1e-4
    batch_penalty: float = 10.0
    within_class_penalty: float = 0.1
    within_class_cells: int = 500
    n_within_class_directions: int = 5
    gene_scale_power: float = 0.25
    max_iter: int = 200
    n_reweightings: int = 8
    max_iter_reweighted: int = 25
    tol: float = 1e-4
    many_labels: int = 64
    labels_of_group: int = 25


DEFAULT_CONFIG = RegressionConfig()


class LogisticRegression(NamedTuple):
    """A fitted one-vs-rest logistic regression without intercept.

    ``weights`` are ``(n_labels, n_genes)``, for log-normalised expression. ``relevance`` is
    ``(n_labels, n_gene_sets)``: how much each gene set contributes to each label, relative to the
    other gene sets. It is ``None`` without group lasso.
    """

    weights: NDArray[np.float64]
    relevance: NDArray[np.float64] | None = None


class Regressions(NamedTuple):
    """Regressions without and with group lasso, the same without gene sets or without group penalty."""

    ridge: LogisticRegression
    lasso: LogisticRegression

    def mean(self, lasso_share: float) -> LogisticRegression:
        """Average the weights, with the relevance of the group lasso.

        The first uses many genes, the second few gene sets. They make different errors, and their
        mean is more accurate than either (benchmarks/linear.py). ``lasso_share`` is the weight of
        the second.
        """
        weights = (1 - lasso_share) * self.ridge.weights + lasso_share * self.lasso.weights
        return LogisticRegression(weights, self.lasso.relevance)


def fit_regressions(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    *,
    batch_directions: NDArray[np.floating] | None = None,
    gene_sets: sp.csr_matrix | None = None,
    config: RegressionConfig = DEFAULT_CONFIG,
    fitted: NDArray[np.integer] | None = None,
    offset: NDArray[np.floating] | None = None,
) -> Regressions:
    r"""Fit one-vs-rest logistic regression with ridge and nuisance penalty, without and with group lasso.

    Let :math:`z` be the expression of :math:`n` cells, with each gene divided by the fourth root
    of its mean, :math:`m`. The weights :math:`w_k` of label :math:`k` minimize

    .. math:: \sum_k \Big(\sum_i b_i \ell_{ik}
        + \tfrac12 \frac{|w_k|^2}{C n} + \tfrac12 \sum_j q_j \big((w_k / m)^\top s_j\big)^2
        + \lambda \sum_p \sqrt{|p|} \, |v_{kp}|\Big), \quad w_k = \sum_p v_{kp}

    where :math:`\ell_{ik}` is the logistic loss of whether cell :math:`i` has label :math:`k`,
    :math:`b_i` is one over the number of labels times the number of the label's cells, and
    :math:`C = 10`. The :math:`s_j` are nuisance directions, along which scores should not change:
    batch directions (:math:`q_j = 10 / n`) and the main directions of the variation within labels
    (:math:`0.1 \max(1, n / 500) / n`), which include unknown batches. The last term is the latent
    overlapping group lasso: :math:`v_{kp}` is zero outside gene set :math:`p`, which has
    :math:`|p|` genes.

    There is no intercept, so that the best label of a cell is the same if its whole expression is
    larger or smaller, as in another technology. An intercept does not change the accuracy
    (benchmarks/linear.py).

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
        Directions along which known batches differ, shape ``(n_directions, n_genes)``.
    gene_sets
        Which gene is in which set, shape ``(n_gene_sets, n_genes)``. Genes in no set have weight
        zero. Without gene sets there is no group lasso, and every gene may have a weight.
    config
        Strengths of the penalties, and when the optimizer stops.

    fitted
        Labels to fit, the rows of the weights; by default all.
    offset
        Added to the scores of each cell, shape ``(n_cells, 1)``.

    Returns
    -------
    Both regressions. The fit with group lasso starts from the one without.

    References
    ----------
    Jacob, Obozinski and Vert, *Group lasso with overlap and graph lasso*, ICML (2009).
    """
    fitted = np.arange(int(labels.max()) + 1) if fitted is None else fitted
    many = len(fitted) >= config.many_labels
    n_groups = len(fitted) // config.labels_of_group if many else 1
    scale = gene_scale(x, config.gene_scale_power)
    problem = PenalizedLogisticLoss(
        sp.csr_matrix(x.astype(np.float64) @ sp.diags(1 / scale), dtype=np.float32 if many else np.float64),
        labels,
        _nuisance(x, labels, batch_directions, config) / scale,
        offset,
    )
    if gene_sets is not None:
        gene_sets = sp.csr_matrix(gene_sets, dtype=np.float64)
    fit = partial(_fit_labels, problem, x.shape, gene_sets, config)
    groups = np.array_split(fitted, n_groups)
    # A single group stays on the caller's thread, which Ctrl-C ends at once.
    parts = list(map(fit, groups) if n_groups == 1 else thread_map(fit, groups))
    first, second, relevance = (list(values) for values in zip(*parts, strict=True))
    ridge = LogisticRegression(np.concatenate(first) / scale)
    if relevance[0] is None:
        return Regressions(ridge, ridge)
    return Regressions(ridge, LogisticRegression(np.concatenate(second) / scale, np.concatenate(relevance)))


def _fit_labels(
    problem: PenalizedLogisticLoss,
    shape: tuple[int, int],
    gene_sets: sp.csr_matrix | None,
    config: RegressionConfig,
    fitted: NDArray[np.integer],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64] | None]:
    """Fit some labels: weights without and with group lasso, and the relevance of gene sets."""
    n_cells, n_genes = shape
    n_labels = len(fitted)
    ridge = 1 / (config.C * n_cells)
    tolerance = config.tol * ridge**-0.5
    n_holding = np.ones(n_genes) if gene_sets is None else np.asarray(gene_sets.sum(0)).ravel()
    deviation = np.where(n_holding > 0, ridge**-0.5, 0.0) * np.ones((n_labels, 1))
    start = np.zeros((n_labels, n_genes))
    first = weights = problem.fit(fitted, deviation, start, config.max_iter, tolerance)
    if gene_sets is None or not config.group_penalty:
        return first, first, None
    root_size = np.sqrt(np.asarray(gene_sets.sum(1)).ravel())
    relevance = _reweight(np.ones((n_labels, len(root_size))), weights, gene_sets, root_size)
    for _ in range(config.n_reweightings):
        total = relevance @ gene_sets
        with np.errstate(divide="ignore"):
            deviation = 1 / np.sqrt(ridge + config.group_penalty / total)
        weights = problem.fit(fitted, deviation, weights, config.max_iter_reweighted, 0.3 * tolerance)
        relevance = _reweight(relevance, weights, gene_sets, root_size)
    return first, weights, relevance


def _reweight(
    relevance: NDArray[np.float64],
    weights: NDArray[np.float64],
    gene_sets: sp.csr_matrix,
    root_size: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Compute the next relevance: norm of a set's part, over the root of its size."""
    total = relevance @ gene_sets
    part = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return relevance * np.sqrt(gene_sets @ (part**2).T).T / root_size


def gene_scale(x: sp.csr_matrix, power: float = 0.25) -> NDArray[np.float64]:
    """Compute the scale of each gene, ``(n_genes,)``: its mean to a power, 1 if not expressed.

    Without scaling, the strongest genes would dominate. Scaled to equal means, the weakest genes
    would, which are mostly noise.
    """
    mean = np.asarray(x.mean(0)).ravel()
    return np.where(mean > 0, mean, 1) ** power


def _nuisance(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    batch_directions: NDArray[np.floating] | None,
    config: RegressionConfig,
) -> NDArray[np.float64]:
    """Multiply nuisance directions by the roots of their penalties, ``(n_directions, n_genes)``.

    Penalties are divided by the number of cells, since the loss is a mean over cells.
    """
    n_cells, n_genes = x.shape
    nuisance = np.zeros((0, n_genes))
    if config.within_class_penalty:
        penalty = config.within_class_penalty * max(1.0, n_cells / config.within_class_cells)
        directions = within_class_directions(x, labels, config.n_within_class_directions)
        nuisance = np.sqrt(penalty) * directions
    if batch_directions is not None and config.batch_penalty:
        nuisance = np.vstack([nuisance, np.sqrt(config.batch_penalty) * batch_directions])
    return nuisance / np.sqrt(n_cells)


def within_class_directions(
    x: sp.csr_matrix, labels: NDArray[np.integer], n_directions: int = 5, *, shrinkage: float = 10
) -> NDArray[np.float64]:
    r"""Find the main directions of the variation within labels, scaled to the standard deviation.

    They are the leading principal components of cells less the mean of their label. Labels count
    equally, except small ones: otherwise the directions would be those of single cells.

    Parameters
    ----------
    x
        Log-normalised expression, shape ``(n_cells, n_genes)``.
    labels
        Label of each cell, from 0 on, shape ``(n_cells,)``.
    n_directions
        Most directions to return.
    shrinkage
        A label with :math:`n > 1` cells has the weight :math:`n / (n + \text{shrinkage})`.

    Returns
    -------
    Shape ``(n_directions, n_genes)``: unit vectors times the root of the variance along them.
    """
    n_cells, n_genes = x.shape
    # Identical cells would differ by rounding errors in single precision.
    x = x.astype(np.float64)
    sizes = np.bincount(labels)
    label_weights = np.where(sizes > 1, sizes / (sizes + shrinkage), 0)
    if not label_weights.any():
        return np.zeros((0, n_genes))
    label_weights /= label_weights.sum()
    averaging = sp.csr_matrix((1 / sizes[labels], (labels, np.arange(n_cells))))
    means = np.asarray((averaging @ x).todense())
    root_weights = np.sqrt(label_weights / sizes)[labels]

    def matvec(genes: NDArray[np.float64]) -> NDArray[np.float64]:
        genes = genes.ravel()
        return root_weights * (x @ genes - (means @ genes)[labels])

    def rmatvec(cells: NDArray[np.float64]) -> NDArray[np.float64]:
        cells = root_weights * cells.ravel()
        return x.T @ cells - means.T @ np.bincount(labels, cells, len(sizes))

    total = float(root_weights**2 @ np.asarray(x.power(2).sum(1)).ravel())
    within = total - float(label_weights @ np.square(means).sum(1))
    rank = min(int((sizes[label_weights > 0] - 1).sum()), min(n_cells, n_genes) - 1)
    n_directions = min(n_directions, rank)
    if n_directions < 1 or within <= 1e-9 * total:
        return np.zeros((0, n_genes))
    deviations = LinearOperator((n_cells, n_genes), matvec=matvec, rmatvec=rmatvec, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(min(n_cells, n_genes))
    _, lengths, directions = svds(deviations, n_directions, v0=start, tol=1e-4)
    return lengths[:, None] * directions


class PenalizedLogisticLoss:
    """Class-balanced one-vs-rest logistic loss with a ridge and a nuisance penalty.

    Parameters
    ----------
    z
        Scaled expression, ``(n_cells, n_genes)``. Its precision is that of scores.
    labels
        Label of each cell, ``(n_cells,)``.
    nuisance
        Nuisance directions times the roots of their penalties, ``(n_directions, n_genes)``.
    offset
        Added to the scores of each cell, ``(n_cells, 1)``.
    """

    def __init__(
        self,
        z: sp.csr_matrix,
        labels: NDArray[np.integer],
        nuisance: NDArray[np.float64],
        offset: NDArray[np.floating] | None = None,
    ) -> None:
        n_labels = int(labels.max()) + 1
        self._z, self._transposed = z, z.T.tocsr()
        self._nuisance = nuisance
        self._offset = 0.0 if offset is None else offset.astype(z.dtype, copy=False)
        self._labels = labels
        self._balance = 1 / (np.bincount(labels) * float(n_labels))[labels, None]

    def fit(
        self,
        fitted: NDArray[np.integer],
        deviation: NDArray[np.float64],
        weights: NDArray[np.float64],
        max_iter: int,
        tolerance: float,
    ) -> NDArray[np.float64]:
        """Minimize the loss of some labels by L-BFGS, starting from given weights.

        ``fitted``, ``(n_fitted,)``, are these labels. ``deviation``, ``(n_fitted, n_genes)``, is
        the prior standard deviation of each weight: one over the root of its ridge penalty. A
        weight is zero where it is zero. The optimizer works on whitened weights. Their penalty is
        a ridge of strength one, so that it takes equally long for all penalties.
        """
        is_label = self._labels[:, None] == fitted
        factors = [_inverse_root(self._nuisance * row) for row in deviation]

        unwhiten = partial(_multiply, factors)

        def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            free = flat.reshape(weights.shape)
            scores = self._z @ (deviation * unwhiten(free)).T.astype(self._z.dtype, copy=False)
            scores = scores + self._offset
            errors = ((expit(scores) - is_label) * self._balance).astype(scores.dtype, copy=False)
            gradient = unwhiten(deviation * (self._transposed @ errors).T) + free
            log_likelihood = log_expit(np.where(is_label, scores, -scores))
            value = -(log_likelihood * self._balance).sum() + 0.5 * (free**2).sum()
            return float(value), gradient.ravel()

        start = np.divide(weights, deviation, out=np.zeros_like(weights), where=deviation > 0)
        whiten = [(v, 1 / (1 + change) - 1) for v, change in factors]
        result = minimize(
            loss,
            _multiply(whiten, start).ravel(),
            jac=True,
            method="L-BFGS-B",
            # Full convergence takes ten times as long and is no more accurate.
            options={"maxiter": max_iter, "gtol": tolerance, "ftol": 64 * np.finfo(float).eps, "maxls": 50},
        )
        return deviation * unwhiten(result.x.reshape(weights.shape))


def _inverse_root(nuisance: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Find directions :math:`V` and factors so that :math:`(I + A^T A)^{-1/2} = I + V^T f V`."""
    _, lengths, directions = np.linalg.svd(nuisance, full_matrices=False)
    return directions, 1 / np.sqrt(1 + lengths**2) - 1


def _multiply(
    factors: list[tuple[NDArray[np.float64], NDArray[np.float64]]], rows: NDArray[np.float64]
) -> NDArray[np.float64]:
    r"""Multiply each row by its own :math:`I + V^T f V`."""
    parts = zip(rows, factors, strict=True)
    return np.stack([row + (row @ v.T * change) @ v for row, (v, change) in parts])
