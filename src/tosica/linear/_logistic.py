"""One-vs-rest logistic regression with a ridge, a nuisance and a group lasso penalty."""

from __future__ import annotations

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

    from numpy.typing import NDArray

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
    """Logistic regressions without intercept, for log-normalised expression.

    ``ridge`` and ``lasso`` are the weights without and with group lasso, ``(n_labels, n_genes)``, the
    same without gene sets or without group penalty. The first uses many genes, the second few gene
    sets. They make different errors, and their mean is more accurate than either. ``relevance`` is
    ``(n_labels, n_gene_sets)``: how much each gene set contributes to each label, relative to the
    other gene sets. It has no columns without group lasso.
    """

    ridge: NDArray[np.float64]
    lasso: NDArray[np.float64]
    relevance: NDArray[np.float64]


def fit_regressions(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    *,
    batch_directions: NDArray[np.floating] | None = None,
    gene_sets: sp.csr_matrix | None = None,
    slices: Sequence[ModalitySlice] = (),
    config: RegressionConfig = DEFAULT_CONFIG,
    fitted: NDArray[np.integer] | None = None,
    offset: NDArray[np.floating] | None = None,
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
        Log-normalised expression, shape ``(n_cells, n_genes)``.
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
    n_genes = x.shape[1]
    is_held = x.getnnz(axis=0) > 0
    if gene_sets is not None:
        is_held &= np.asarray(gene_sets.sum(0)).ravel() > 0
    # All other genes have weight zero.
    held = np.flatnonzero(is_held)
    x = x[:, held]
    # Without scaling, the strongest genes would dominate. Scaled to equal means, the weakest genes
    # would, which are mostly noise.
    mean = np.asarray(abs(x).mean(0)).ravel()
    scale = np.where(mean > 0, mean, 1) ** config.gene_scale_power
    if len(slices) > 1:
        modality = np.repeat(
            np.arange(len(slices)), [part.stop - part.start for part in slices]
        )[held]
        spread = (
            np.asarray(x.power(2).mean(0) - np.square(x.mean(0))).ravel() / scale**2
        )
        totals = np.bincount(modality, spread)
        scale *= np.sqrt(totals / totals.mean())[modality]
    # Nuisance directions times the roots of their penalties, which are divided by the number of
    # cells, since the loss is a mean over cells.
    nuisance = np.zeros((0, len(held)))
    if config.within_class_penalty:
        penalty = config.within_class_penalty * max(
            1.0, x.shape[0] / config.within_class_cells
        )
        nuisance = np.sqrt(penalty) * within_class_directions(
            x, labels, config.n_within_class_directions
        )
    if batch_directions is not None and config.batch_penalty:
        nuisance = np.vstack(
            [nuisance, np.sqrt(config.batch_penalty) * batch_directions[:, held]]
        )
    nuisance = nuisance / np.sqrt(x.shape[0]) / scale
    z = sp.csr_matrix(x @ sp.diags(1 / scale), dtype=np.float32)
    # Fits of many labels take turns: the scores of a few stay in the cache, and threads share the turns.
    turns = np.array_split(
        fitted, 1 if config.multinomial else -(-len(fitted) // _LABELS_AT_ONCE)
    )
    losses = (
        PenalizedLogisticLoss(z, labels, some, nuisance, offset, config)
        for some in turns
    )
    done = thread_map(
        partial(_fit_both, gene_sets=gene_sets, held=held, config=config), losses
    )
    ridge, lasso, relevance = map(np.concatenate, zip(*done, strict=True))
    unscaled = np.zeros((2, len(fitted), n_genes))
    unscaled[:, :, held] = ridge / scale, lasso / scale
    return Regressions(unscaled[0], unscaled[1], relevance)


def _fit_both(
    loss: PenalizedLogisticLoss,
    gene_sets: sp.csr_matrix | None,
    held: NDArray[np.intp],
    config: RegressionConfig,
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float64]]:
    """Fit the ridge and the group lasso: both weights, and the relevance, which has no columns without gene sets."""
    n_fitted, (n_cells, n_genes) = loss.n_fitted, loss.shape
    ridge = 1 / (config.C * n_cells)
    tolerance = config.tol * ridge**-0.5
    first = weights = loss.fit(
        np.full((n_fitted, n_genes), 1 / ridge, dtype=np.float32),
        config.max_iter,
        tolerance,
    )
    if gene_sets is None or not config.group_penalty:
        return first, first, np.empty((n_fitted, 0))
    root_size = np.sqrt(np.asarray(gene_sets.sum(1)).ravel()).astype(np.float32)
    gene_sets = sp.csr_matrix(gene_sets, dtype=np.float32)[:, held]
    relevance = np.ones((n_fitted, len(root_size)), dtype=np.float32)
    for i in range(config.n_reweightings + 1):
        total = relevance @ gene_sets
        if i > 0:
            variance = total / (
                np.float32(ridge) * total + np.float32(config.group_penalty)
            )
            weights = loss.fit(variance, config.max_iter_reweighted, 0.3 * tolerance)
        # The next relevance: norm of a set's part, over the root of its size.
        part = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
        relevance = relevance * np.sqrt(gene_sets @ (part**2).T).T / root_size
    return first, weights, relevance.astype(np.float64)


def within_class_directions(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    n_directions: int = 5,
    *,
    shrinkage: float = 10,
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
    scaled: NDArray[np.float64] = (directions * lengths).T[:n_directions]
    return scaled


class PenalizedLogisticLoss:
    r"""Class-balanced logistic loss of some labels, with a ridge and a nuisance penalty.

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
    fitted
        Labels to fit, ``(n_fitted,)``.
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
        labels: NDArray[np.integer],
        fitted: NDArray[np.integer],
        nuisance: NDArray[np.float64],
        offset: NDArray[np.floating] | None = None,
        config: RegressionConfig = DEFAULT_CONFIG,
    ) -> None:
        self.shape, self.n_fitted = z.shape, len(fitted)
        # From here on, dense products of many labels are faster.
        is_dense = z.nnz > 0.2 * z.shape[0] * z.shape[1]
        factors: list[Any] = [z.toarray(), z.toarray().T] if is_dense else [z, z.T]
        if not is_dense and torch.backends.mkl.is_available():
            # MKL is twice as fast as scipy.
            for i, rows in enumerate(map(sp.csr_matrix, factors)):
                indptr, indices, data = map(
                    torch.from_numpy, (rows.indptr, rows.indices, rows.data)
                )
                factors[i] = torch.sparse_csr_tensor(indptr, indices, data, rows.shape)
        self._z, self._transposed = factors
        self._nuisance = nuisance.astype(np.float32)
        self._offset = np.float32(0) if offset is None else offset.T.astype(np.float32)
        self._is_label = (fitted[:, None] == labels).astype(np.float32)
        counts = np.bincount(labels)
        of_label = (
            1 / (counts * float(len(counts)))
            if config.balanced
            else np.full(len(counts), 1 / len(labels))
        )
        self._balance = of_label[labels].astype(np.float32)
        self._multinomial = config.multinomial
        self._probability = partial(softmax, axis=0) if config.multinomial else expit
        self._dual = np.zeros_like(self._is_label)

    def fit(
        self, variance: NDArray[np.float32], max_iter: int, tolerance: float
    ) -> NDArray[np.float32]:
        """Minimize the loss, starting from the last minimum, and return the weights.

        ``variance``, ``(n_fitted, n_genes)``, is the prior variance of each weight: one over its
        ridge penalty. A weight is zero where it is zero.
        """
        single = np.finfo(np.float32)
        inner = [
            (self._nuisance * row) @ self._nuisance.T + np.eye(len(self._nuisance))
            for row in variance
        ]
        inverse = np.stack([np.linalg.inv(matrix) for matrix in inner]).astype(
            np.float32
        )
        # As the products are.
        variance = np.asfortranarray(variance)

        def weights_of(dual: NDArray[np.float32]) -> NDArray[np.float32]:
            weights = variance * self._times(self._transposed, dual)
            along = np.einsum("kq,kqr->kr", weights @ self._nuisance.T, inverse)
            weights -= variance * (self._nuisance.T @ along.T).T
            return weights

        dual = self._dual
        scores = (
            np.ascontiguousarray(self._times(self._z, weights_of(dual))) + self._offset
        )
        probability = self._probability(scores)
        step = change = np.zeros_like(dual)
        before, square_before = np.zeros_like(dual), np.ones((1, 1), dtype=np.float32)
        for _ in range(max_iter):
            gradient = dual + self._balance * (probability - self._is_label)
            in_scores = np.ascontiguousarray(self._times(self._z, weights_of(gradient)))
            square = self._dot(gradient, in_scores)
            # Below the second number, gradients are rounding errors of single precision.
            least = np.maximum(
                tolerance**2,
                (10 * single.eps) ** 2 * self._dot(dual, scores - self._offset),
            )
            if not (is_active := square > least).any():
                break
            # Polak and Ribière's formula, which starts anew where it would be negative.
            momentum = np.maximum(square - self._dot(before, in_scores), 0) / np.where(
                is_active, square_before, 1
            )
            step, change = momentum * step - gradient, momentum * change - in_scores
            descends = self._dot(gradient, change) < 0
            step, change = (
                np.where(descends, step, -gradient),
                np.where(descends, change, -in_scores),
            )
            penalty = (
                self._dot(dual, change),
                np.maximum(self._dot(step, change), single.tiny),
            )
            length, scores, probability = self._line_search(
                is_active, scores, probability, change, *penalty
            )
            dual = dual + length * step
            before, square_before = gradient, square
        self._dual = dual
        return weights_of(dual)

    def _line_search(
        self,
        is_active: NDArray[np.bool_],
        scores: NDArray[np.float32],
        probability: NDArray[np.float32],
        change: NDArray[np.float32],
        slope: NDArray[np.float32],
        curvature: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Find how far to go, by Newton steps and bisection, with slope and curvature of the penalty.

        Returns the length, and scores and probabilities there. The slope has fallen to a tenth: a step of
        Newton's from where a label is certain may be far too long.
        """
        length = low = np.zeros_like(curvature)
        high = np.full_like(curvature, np.inf)
        moved, enough = scores, np.zeros_like(curvature)
        for i in range(12):
            first = (
                self._dot(self._balance * (probability - self._is_label), change)
                + slope
                + length * curvature
            )
            enough = 0.1 * abs(first) if i == 0 else enough
            is_found = (abs(first) <= enough) | ~is_active
            if is_found.all():
                break
            low, high = (
                np.where(first < 0, length, low),
                np.where(first < 0, high, length),
            )
            mean = (
                (probability * change).sum(0)
                if self._multinomial
                else probability * change
            )
            second = self._dot(self._balance * probability * (change - mean), change)
            newton = length - first / (second + curvature)
            bisected = np.where(np.isinf(high), 2 * low, (low + high) / 2)
            following = np.where(
                (newton > low) & (newton < high) | (i == 0), newton, bisected
            )
            length = np.where(is_found, length, following).astype(np.float32)
            moved = scores + length * change
            probability = self._probability(moved)
        return length, moved, probability

    def _times(self, matrix: Any, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Multiply rows by the expression or its transpose."""
        if isinstance(matrix, torch.Tensor):
            return (matrix @ torch.from_numpy(np.ascontiguousarray(rows.T))).numpy().T
        return (matrix @ rows.T).T

    def _dot(
        self, left: NDArray[np.float32], right: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Multiply the rows of each label, ``(n_fitted, 1)``, or all rows."""
        products = np.einsum("kn,kn->k", left, right)
        return (
            products.sum(keepdims=True)[:, None]
            if self._multinomial
            else products[:, None]
        )
