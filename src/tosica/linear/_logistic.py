"""One-vs-rest logistic regression with a ridge, a nuisance and a group lasso penalty."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from scipy.special import expit, softmax

from tosica._parallel import thread_map

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tosica._types import BoolArray, Float32Array, FloatArray, IntArray
    from tosica.data import ModalitySlice


@dataclass(frozen=True, kw_only=True)
class RegressionConfig:
    r"""Penalties of :func:`fit_regressions`, and when its optimizer stops.

    Parameters
    ----------
    C
        Inverse strength of the ridge penalty, as in scikit-learn.
    group_penalty
        Strength of the latent overlapping group lasso. It was chosen inside references.
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
    multinomial
        Minimize the cross-entropy of all labels, in place of a logistic loss for each.
    balanced
        Weight cells so that labels count equally, in place of cells.
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
    """

    C: float = 10.0
    group_penalty: float = 1e-4
    batch_penalty: float = 10.0
    within_class_penalty: float = 0.1
    within_class_cells: int = 500
    n_within_class_directions: int = 5
    gene_scale_power: float = 0.25
    multinomial: bool = False
    balanced: bool = True
    max_iter: int = 200
    n_reweightings: int = 5
    max_iter_reweighted: int = 8
    tol: float = 1e-4


DEFAULT_CONFIG = RegressionConfig()
_LABELS_AT_ONCE = 64
with warnings.catch_warnings(action="ignore"):
    # The first one says that its interface may change.
    torch.sparse_csr_tensor([0, 1], [0], [1.0])


class Regressions(NamedTuple):
    """Logistic regressions without intercept, for log-normalized expression.

    The ridge uses many genes, the group lasso few gene sets. They make different errors, and their
    mean is more accurate than either. Without gene sets or group penalty both are the same.
    """

    ridge: FloatArray
    """Weights without group lasso, ``(n_fitted, n_genes)``: of the labels, then of groups of them."""
    lasso: FloatArray
    """Weights with group lasso, ``(n_fitted, n_genes)``."""
    relevance: FloatArray
    """Contribution of each gene set to each score, ``(n_fitted, n_gene_sets)``; no columns without group lasso."""


def fit_regressions(
    x: sp.csr_matrix,
    labels: IntArray,
    *,
    batch_directions: FloatArray | None = None,
    gene_sets: sp.csr_matrix | None = None,
    slices: Sequence[ModalitySlice] = (),
    config: RegressionConfig = DEFAULT_CONFIG,
    fitted: IntArray | None = None,
    groups: BoolArray | None = None,
    offset: FloatArray | None = None,
) -> Regressions:
    r"""Fit one-vs-rest logistic regression with ridge and nuisance penalty, without and with group lasso.

    Let :math:`z` be the expression of :math:`n` cells, with each gene divided by :math:`m`, by default
    the fourth root of its mean. The weights :math:`w_k` of label :math:`k` minimize

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
    larger or smaller, as in another technology. An intercept does not change the accuracy.

    The group lasso is solved by iteratively reweighted ridge regression. Since :math:`2 |v| =
    \min_\eta |v|^2 / \eta + \eta`, the penalty for given relevances :math:`\eta_{kp}` is a ridge on
    :math:`w_k` whose strength for gene :math:`g` is one over :math:`\sum_{p \ni g} \eta_{kp}`, and
    the gene's weight is divided among its sets in proportion to :math:`\eta_{kp}`.

    Parameters
    ----------
    x
        Log-normalized expression, shape ``(n_cells, n_genes)``.
    labels
        Label of each cell, from 0 on, shape ``(n_cells,)``. Each occurs.
    batch_directions
        Directions along which known batches differ, shape ``(n_directions, n_genes)``.
    gene_sets
        Which gene is in which set, shape ``(n_gene_sets, n_genes)``. Genes in no set have weight
        zero. Without gene sets there is no group lasso, and every gene may have a weight.
    slices
        Genes of each modality. Each gets the same variance, so that one with many genes does not
        drown one with few. By default there is one.
    config
        Strengths of the penalties, and when the optimizer stops.
    fitted
        Labels to fit, the first rows of the weights; by default all.
    groups
        Whether a label is in a group of labels, ``(n_groups, n_labels)``. A group is fitted as a label is,
        by the cells of all its labels, which count equally. Not with ``config.multinomial``.
    offset
        Added to the scores of each cell, shape ``(n_cells, 1)``.

    Returns
    -------
    Both regressions. The fit with group lasso starts from the one without.

    References
    ----------
    Jacob, Obozinski and Vert, *Group lasso with overlap and graph lasso*, ICML (2009).
    """
    targets = np.eye(int(labels.max()) + 1, dtype=bool)
    if fitted is not None:
        targets = targets[fitted]
    if groups is not None:
        targets = np.vstack([targets, groups])
    n_cells, n_genes = x.shape
    has_weight = x.getnnz(axis=0) > 0
    if gene_sets is not None:
        has_weight &= np.asarray(gene_sets.sum(0)).ravel() > 0
    genes = np.flatnonzero(has_weight)
    x = x[:, genes]
    scale = _gene_scale(x, genes, slices, config.gene_scale_power)
    # Nuisance directions times the roots of their penalties, which are divided by the number of
    # cells, since the loss is a mean over cells.
    nuisance = np.zeros((0, len(genes)))
    if config.within_class_penalty:
        factor = max(1.0, n_cells / config.within_class_cells)
        nuisance = np.sqrt(config.within_class_penalty * factor) * (
            within_class_directions(x, labels, config.n_within_class_directions)
        )
    if batch_directions is not None and config.batch_penalty:
        penalized = np.sqrt(config.batch_penalty) * batch_directions[:, genes]
        nuisance = np.vstack([nuisance, penalized])
    nuisance = nuisance / np.sqrt(n_cells) / scale
    z = sp.csr_matrix(x @ sp.diags(1 / scale), dtype=np.float32)
    # Labels are fitted in blocks, whose scores stay in the cache, and which threads share.
    n_blocks = 1
    if not config.multinomial:
        n_blocks = math.ceil(len(targets) / _LABELS_AT_ONCE)
    solvers = (
        LogisticSolver(z, labels, block, nuisance, offset, config)
        for block in np.array_split(targets, n_blocks)
    )
    fits = thread_map(
        partial(_fit_both, gene_sets=gene_sets, genes=genes, config=config), solvers
    )
    scaled_ridge, scaled_lasso, relevance = map(np.concatenate, zip(*fits, strict=True))
    # All other genes have weight zero.
    ridge = np.zeros((len(targets), n_genes))
    ridge[:, genes] = scaled_ridge / scale
    lasso = np.zeros((len(targets), n_genes))
    lasso[:, genes] = scaled_lasso / scale
    return Regressions(ridge, lasso, relevance)


def _gene_scale(
    x: sp.csr_matrix,
    genes: IntArray,
    slices: Sequence[ModalitySlice],
    power: float,
) -> FloatArray:
    """Compute a divisor of each gene, ``(n_genes,)``: its mean to a power, equal variance of modalities.

    Without scaling, the strongest genes would dominate. Scaled to equal means, the weakest genes
    would, which are mostly noise.
    """
    mean = np.asarray(abs(x).mean(0)).ravel()
    scale: FloatArray = np.where(mean > 0, mean, 1) ** power
    if len(slices) > 1:
        sizes = [modality.stop - modality.start for modality in slices]
        modality_of_gene = np.repeat(np.arange(len(slices)), sizes)[genes]
        variance = np.asarray(x.power(2).mean(0) - np.square(x.mean(0))).ravel()
        totals = np.bincount(modality_of_gene, variance / scale**2)
        scale *= np.sqrt(totals / totals.mean())[modality_of_gene]
    return scale


def _fit_both(
    solver: LogisticSolver,
    gene_sets: sp.csr_matrix | None,
    genes: IntArray,
    config: RegressionConfig,
) -> tuple[Float32Array, Float32Array, FloatArray]:
    """Fit the ridge and the group lasso: both weights, and the relevance, which has no columns without gene sets."""
    n_fitted = solver.n_fitted
    n_cells, n_genes = solver.shape
    penalty = 1 / (config.C * n_cells)
    tolerance = config.tol * penalty**-0.5
    variance = np.full((n_fitted, n_genes), 1 / penalty, dtype=np.float32)
    ridge = solver.fit(variance, config.max_iter, tolerance)
    if gene_sets is None or not config.group_penalty:
        return ridge, ridge, np.empty((n_fitted, 0))
    root_size = np.sqrt(np.asarray(gene_sets.sum(1)).ravel()).astype(np.float32)
    gene_sets = sp.csr_matrix(gene_sets, dtype=np.float32)[:, genes]
    relevance = np.ones((n_fitted, len(root_size)), dtype=np.float32)
    weights = ridge
    for iteration in range(config.n_reweightings + 1):
        total = relevance @ gene_sets
        if iteration > 0:
            group_penalty = np.float32(config.group_penalty)
            variance = total / (np.float32(penalty) * total + group_penalty)
            weights = solver.fit(variance, config.max_iter_reweighted, 0.3 * tolerance)
        # The next relevance: norm of the weights that a set gets, over the root of its size.
        ratio = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
        relevance = relevance * np.sqrt(gene_sets @ (ratio**2).T).T / root_size
    return ridge, weights, relevance.astype(np.float64)


def within_class_directions(
    x: sp.csr_matrix,
    labels: IntArray,
    n_directions: int,
) -> FloatArray:
    r"""Find the main directions of the variation within labels, scaled to the standard deviation.

    They are the leading principal components of cells less the mean of their label. Labels count
    equally, except small ones: otherwise the directions would be those of single cells. A label with
    :math:`n > 1` cells has the weight :math:`n / (n + 10)`.

    Parameters
    ----------
    x
        Log-normalized expression, shape ``(n_cells, n_genes)``.
    labels
        Label of each cell, from 0 on, shape ``(n_cells,)``.
    n_directions
        Most directions to return.

    Returns
    -------
    Shape ``(n_directions, n_genes)``: unit vectors times the root of the variance along them.
    """
    n_cells, n_genes = x.shape
    # Identical cells would differ by rounding errors in single precision.
    x = x.astype(np.float64)
    sizes = np.bincount(labels)
    label_weights = np.where(sizes > 1, sizes / (sizes + 10), 0)
    if not label_weights.any():
        return np.zeros((0, n_genes))
    label_weights /= label_weights.sum()
    averaging = sp.csr_matrix((1 / sizes[labels], (labels, np.arange(n_cells))))
    means = np.asarray((averaging @ x).todense())
    root_weights = np.sqrt(label_weights / sizes)[labels, None]

    total = float(root_weights[:, 0] ** 2 @ np.asarray(x.power(2).sum(1)).ravel())
    within = total - float(label_weights @ np.square(means).sum(1))
    rank = min(int((sizes[label_weights > 0] - 1).sum()), min(n_cells, n_genes) - 1)
    n_directions = min(n_directions, rank)
    if n_directions < 1 or within <= 1e-9 * total:
        return np.zeros((0, n_genes))
    # Subspace iteration: all directions share the products with the expression.
    subspace = np.random.default_rng(0).standard_normal(
        (n_genes, min(n_directions + 10, n_cells, n_genes))
    )
    for _ in range(8):
        cells = root_weights * (x @ subspace - (means @ subspace)[labels])
        cells = root_weights * np.linalg.qr(cells)[0]
        subspace = x.T @ cells - means.T @ (sizes[:, None] * (averaging @ cells))
    directions, lengths, _ = np.linalg.svd(subspace, full_matrices=False)
    scaled: FloatArray = (directions * lengths).T[:n_directions]
    return scaled


class LogisticSolver:
    r"""Minimize the class-balanced logistic loss of some labels, with a ridge and a nuisance penalty.

    The minimum is a sum of cells: with expression :math:`Z` and the inverse :math:`S` of the
    penalties, the weights are :math:`S Z^\top a` for a number :math:`a` of each cell. The optimizer
    finds these numbers, which are fewer than the weights, by conjugate gradients in the metric
    :math:`Z S Z^\top`. That is the same as whitening the weights, so that it takes equally long for
    all penalties. Labels share the products with the expression, and have steps of their own.

    Parameters
    ----------
    z
        Scaled expression, ``(n_cells, n_genes)``.
    labels
        Label of each cell, ``(n_cells,)``.
    targets
        Whether a label is among those that a fitted score stands for, ``(n_fitted, n_labels)``.
    nuisance
        Nuisance directions times the roots of their penalties, ``(n_directions, n_genes)``.
    offset
        Added to the scores of each cell, ``(n_cells, 1)``.
    config
        Its ``multinomial``, with which labels share their steps as well, and ``balanced``.
    """

    def __init__(
        self,
        z: sp.csr_matrix,
        labels: IntArray,
        targets: BoolArray,
        nuisance: FloatArray,
        offset: FloatArray | None,
        config: RegressionConfig,
    ) -> None:
        self.shape = z.shape
        self.n_fitted = len(targets)
        self._z: Any = z
        self._transposed: Any = z.T
        # From here on, dense products of many labels are faster.
        if z.nnz > 0.2 * z.shape[0] * z.shape[1]:
            self._z = z.toarray()
            self._transposed = self._z.T
        elif torch.backends.mkl.is_available():
            # MKL is twice as fast as scipy.
            self._z = _to_torch(z)
            self._transposed = _to_torch(sp.csr_matrix(z.T))
        self._nuisance = nuisance.astype(np.float32)
        self._offset = np.float32(0) if offset is None else offset.T.astype(np.float32)
        self._is_label = targets[:, labels].astype(np.float32)
        cell_weights = np.full(len(labels), 1 / len(labels))
        if config.balanced:
            counts = np.bincount(labels)
            cell_weights = (1 / (counts * float(len(counts))))[labels]
        self._cell_weights = cell_weights.astype(np.float32)
        self._multinomial = config.multinomial
        self._probability = partial(softmax, axis=0) if config.multinomial else expit
        self._dual = np.zeros_like(self._is_label)

    def fit(
        self, variance: Float32Array, max_iter: int, tolerance: float
    ) -> Float32Array:
        """Minimize the loss, starting from the last minimum, and return the weights.

        ``variance``, ``(n_fitted, n_genes)``, is the prior variance of each weight: one over its
        ridge penalty. A weight is zero where it is zero.
        """
        single = np.finfo(np.float32)
        identity = np.eye(len(self._nuisance))
        inverses = [
            np.linalg.inv((self._nuisance * row) @ self._nuisance.T + identity)
            for row in variance
        ]
        inverse = np.stack(inverses).astype(np.float32)
        # In the memory order of the products.
        variance = np.asfortranarray(variance)

        def to_weights(dual: Float32Array) -> Float32Array:
            weights = variance * self._times(self._transposed, dual)
            projected = np.einsum("kq,kqr->kr", weights @ self._nuisance.T, inverse)
            weights -= variance * (self._nuisance.T @ projected.T).T
            return weights

        def to_scores(dual: Float32Array) -> Float32Array:
            return np.ascontiguousarray(self._times(self._z, to_weights(dual)))

        dual = self._dual
        scores = to_scores(dual) + self._offset
        probability = self._probability(scores)
        step = np.zeros_like(dual)
        change = np.zeros_like(dual)
        previous_gradient = np.zeros_like(dual)
        previous_square = np.ones((1, 1), dtype=np.float32)
        for _ in range(max_iter):
            gradient = dual + self._cell_weights * (probability - self._is_label)
            gradient_scores = to_scores(gradient)
            square = self._dot(gradient, gradient_scores)
            # Gradients below it are rounding errors of single precision.
            rounding = self._dot(dual, scores - self._offset) * (10 * single.eps) ** 2
            is_active = square > np.maximum(tolerance**2, rounding)
            if not is_active.any():
                break
            # Polak and Ribière's formula, which starts anew where it would be negative.
            increase = square - self._dot(previous_gradient, gradient_scores)
            momentum = np.maximum(increase, 0) / np.where(is_active, previous_square, 1)
            step = momentum * step - gradient
            change = momentum * change - gradient_scores
            descends = self._dot(gradient, change) < 0
            step = np.where(descends, step, -gradient)
            change = np.where(descends, change, -gradient_scores)
            length, scores, probability = self._line_search(
                is_active,
                scores,
                probability,
                change,
                slope=self._dot(dual, change),
                curvature=np.maximum(self._dot(step, change), single.tiny),
            )
            dual = dual + length * step
            previous_gradient = gradient
            previous_square = square
        self._dual = dual
        return to_weights(dual)

    def _line_search(
        self,
        is_active: BoolArray,
        scores: Float32Array,
        probability: Float32Array,
        change: Float32Array,
        slope: Float32Array,
        curvature: Float32Array,
    ) -> tuple[Float32Array, Float32Array, Float32Array]:
        """Find the length of a step by Newton's method and bisection.

        ``slope`` and ``curvature`` are those of the penalty. The slope of the loss has fallen to a
        tenth at the end: a step of Newton's from where a label is certain may be far too long.

        Returns
        -------
        The length, and scores and probabilities there.
        """
        length = np.zeros_like(curvature)
        low = np.zeros_like(curvature)
        high = np.full_like(curvature, np.inf)
        moved = scores
        for iteration in range(12):
            residual = self._cell_weights * (probability - self._is_label)
            first_derivative = self._dot(residual, change) + slope + length * curvature
            if iteration == 0:
                tolerance = 0.1 * abs(first_derivative)
            is_converged = (abs(first_derivative) <= tolerance) | ~is_active
            if is_converged.all():
                break
            is_descent = first_derivative < 0
            low = np.where(is_descent, length, low)
            high = np.where(is_descent, high, length)
            mean = probability * change
            if self._multinomial:
                mean = mean.sum(0)
            weight = self._cell_weights * probability
            second_derivative = self._dot(weight * (change - mean), change) + curvature
            newton = length - first_derivative / second_derivative
            bisected = np.where(np.isinf(high), 2 * low, (low + high) / 2)
            is_inside = (newton > low) & (newton < high) | (iteration == 0)
            step = np.where(is_inside, newton, bisected)
            length = np.where(is_converged, length, step).astype(np.float32)
            moved = scores + length * change
            probability = self._probability(moved)
        return length, moved, probability

    def _times(self, matrix: Any, rows: Float32Array) -> Float32Array:
        """Multiply rows by the expression or its transpose."""
        if isinstance(matrix, torch.Tensor):
            return (matrix @ torch.from_numpy(np.ascontiguousarray(rows.T))).numpy().T
        return (matrix @ rows.T).T

    def _dot(self, left: Float32Array, right: Float32Array) -> Float32Array:
        """Multiply the rows of each label, ``(n_fitted, 1)``, or all rows."""
        products = np.einsum("kn,kn->k", left, right)[:, None]
        return products.sum(keepdims=True) if self._multinomial else products


def _to_torch(matrix: sp.csr_matrix) -> torch.Tensor:
    """Share the memory of a sparse matrix with torch."""
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr),
        torch.from_numpy(matrix.indices),
        torch.from_numpy(matrix.data),
        matrix.shape,
    )
