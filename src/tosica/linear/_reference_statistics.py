"""Statistics of the reference's cells, and distances of other cells from its labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh

from tosica.linear._classifier import MAX_CELLS_CROSS_FIT, cross_fit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from tosica._types import BoolArray, Float32Array, FloatArray, IntArray

    Matrix: TypeAlias = FloatArray | sp.csr_matrix

# Least distance and variance.
TINY = float(np.finfo(np.float32).tiny)
# Cells to fit to. More hardly change the distances.
MAX_CELLS_NOVELTY = MAX_CELLS_CROSS_FIT
# Cells of a label from which what they have in common is told from chance.
MIN_CELLS = 5
# Added to each gene's variance, as a share of the mean variance, so that genes which the reference
# hardly expresses do not outweigh all others.
_FLOOR_CELL = 0.3
# Most components of the Mahalanobis distance, and fewest cells for each.
_MAX_COMPONENTS = 30
_CELLS_PER_COMPONENT = 12
# Genes that are multiplied densely at once.
_GENES_AT_ONCE = 2048


@dataclass(frozen=True)
class ReferenceStatistics:
    """Score cells that may be of a new type, by statistics of the reference.

    The score of a cell is the mean of two standardized distances from the nearest label's mean: one
    over genes, each in units of its variance within labels, and the Mahalanobis distance in
    principal components. Cells in which fewer genes are detected are further from every mean, so
    the first is compared with the distance that is expected of a cell with as many detected genes.
    """

    means: Float32Array
    """Mean expression of each label, ``(n_labels, n_genes)``."""
    labels: IntArray
    """Codes of these labels in the model, ``(n_labels,)``."""
    variance: Float32Array
    """Variance of each gene within labels, ``(n_genes,)``."""
    components: Float32Array
    """Principal components, whitened by the covariance within labels, ``(n_genes, n_comps)``."""
    expected: FloatArray
    """Intercept and slopes of the distance over genes: share of genes detected, mean expression."""
    scales: FloatArray
    """Standard deviation of the first distance; mean and standard deviation of the second's log."""
    reference_scores: Float32Array
    """Scores of the reference's cells, by statistics that were fitted without them."""
    reference_nearest: IntArray
    """Position of each reference cell's nearest label in ``labels``."""

    def positions(self, codes: IntArray) -> IntArray:
        """Find codes of the model in ``labels``: positions, -1 for absent labels, ``(n_cells,)``."""
        n_codes = max(int(self.labels.max()), int(codes.max())) + 1
        position_of_code = np.full(n_codes, -1)
        position_of_code[self.labels] = np.arange(len(self.labels))
        return position_of_code[codes]

    def take_labels(self, codes: Sequence[int]) -> Self | None:
        """Keep some of the labels, and the cells of the reference that are nearest to them.

        Parameters
        ----------
        codes
            Codes of the labels, ascending. In the result, they are numbered from 0.

        Returns
        -------
        The statistics; ``None`` if they have none of these labels, or no cell near them.
        """
        is_taken = np.isin(self.labels, codes)
        is_near = is_taken[self.reference_nearest]
        if not is_near.any():
            return None
        position = np.cumsum(is_taken) - 1
        return replace(
            self,
            means=self.means[is_taken],
            labels=np.searchsorted(codes, self.labels[is_taken]),
            reference_scores=self.reference_scores[is_near],
            reference_nearest=position[self.reference_nearest[is_near]],
        )

    def score_cells(
        self,
        x: Matrix,
        measured: BoolArray | None = None,
        shift: FloatArray | None = None,
    ) -> tuple[FloatArray, IntArray]:
        """Score single cells.

        Parameters
        ----------
        x
            Normalized expression, shape ``(n_cells, n_genes)``.
        measured
            Shape ``(n_genes,)``: ``False`` for genes that the query lacks, which are left out.
        shift
            Shape ``(n_genes,)``. It is subtracted from the expression of all cells.

        Returns
        -------
        Score of each cell, about standard normal for cells like those of the reference, and the
        position of its nearest label in ``labels``, shape ``(n_cells,)`` each.
        """
        centers = np.asarray(self.means, dtype=np.float64)
        if shift is not None:
            centers = centers + shift
        distances = distances_over_genes(x, centers, self._weights(measured))
        nearest = distances.argmin(1)
        over_genes = distances.min(1) - covariates(x, measured) @ self.expected
        filled = x
        if measured is not None:
            # A gene that was not measured is taken to be as in the nearest label.
            dense = x.toarray() if isinstance(x, sp.csr_matrix) else x
            filled = np.where(measured, dense, centers[nearest])
        in_components = distance_in_components(filled, centers, self.components)
        standardized = (np.log(in_components) - self.scales[1]) / self.scales[2]
        return (over_genes / self.scales[0] + standardized) / 2, nearest

    def _weights(self, measured: BoolArray | None) -> FloatArray:
        weights = gene_weights(self.variance, _FLOOR_CELL)
        if measured is not None:
            # Rescaled to the expected distance of a reference cell over all genes.
            expected = weights * self.variance
            weights = weights * measured
            weights *= expected.sum() / max(float(expected[measured].sum()), TINY)
        return weights


def fit_statistics(x: sp.csr_matrix, labels: IntArray) -> ReferenceStatistics | None:
    """Fit the statistics of novelty to labeled cells.

    Each cell is scored once by statistics that were fitted without it (cross-fitting), because a
    cell that was fitted to is nearer than a new one.

    Parameters
    ----------
    x
        Normalized expression, shape ``(n_cells, n_genes)``.
    labels
        Label of each cell as a number, shape ``(n_cells,)``.

    Returns
    -------
    The statistics, or ``None`` if the cells are too few or too alike for any.
    """
    label_codes, codes = np.unique(labels, return_inverse=True)
    # As many for all folds, since distances grow with the number of components.
    n_components = min(
        _MAX_COMPONENTS, len(codes) // _CELLS_PER_COMPONENT, x.shape[1] - 1
    )
    products = _products(x)

    def fit(cells: BoolArray) -> DistanceFit | None:
        return fit_distances(
            x[cells], codes[cells], products[np.ix_(cells, cells)], max(n_components, 1)
        )

    fitted = fit(np.ones(len(codes), dtype=bool))
    if fitted is None or np.bincount(codes).max() < 2:
        return None
    held_out = _distances_of_held_out(x, codes, fit, n_folds=5)
    if held_out is None:
        return None
    nearest_distance = held_out.over_genes.min(1)
    log_distance = held_out.log_in_components
    halves = _distances_of_held_out(x, codes, fit, n_folds=2)
    if halves is not None:
        # Components vary most along the noise of the cells that they were fitted to, so that the
        # distance of other cells increases with the number n of these cells, about as -1 / n.
        # From 1/2 and 4/5 of the cells it is extrapolated to all of them.
        increase = log_distance.mean() - halves.log_in_components.mean()
        log_distance = log_distance + increase / 3
    depth = covariates(x[held_out.cells], None)
    expected = np.linalg.lstsq(depth, nearest_distance, rcond=None)[0]
    residual = nearest_distance - depth @ expected
    scales = np.array([residual.std(), log_distance.mean(), log_distance.std()])
    scales[[0, 2]] = np.maximum(scales[[0, 2]], 1e-6)
    standardized = (log_distance - scales[1]) / scales[2]
    scores = (residual / scales[0] + standardized) / 2
    return ReferenceStatistics(
        means=fitted.means.astype(np.float32),
        labels=label_codes.astype(np.int64),
        variance=fitted.variance.astype(np.float32),
        components=fitted.components.astype(np.float32),
        expected=expected,
        scales=scales,
        reference_scores=scores.astype(np.float32),
        reference_nearest=held_out.over_genes.argmin(1),
    )


class _Distances(NamedTuple):
    cells: IntArray
    """Positions of the cells, ``(n_cells,)``."""
    over_genes: FloatArray
    """Distances from each label, ``(n_cells, n_labels)``."""
    log_in_components: FloatArray
    """Logarithm of the distance from the nearest label, ``(n_cells,)``."""


def _distances_of_held_out(
    x: sp.csr_matrix,
    codes: IntArray,
    fit: Callable[[BoolArray], DistanceFit | None],
    n_folds: int,
) -> _Distances | None:
    """Compute distances of cells by fits without them; ``None`` if all folds are too small to fit."""
    folds = []
    for fold, fitted in cross_fit(codes, fit, n_folds=n_folds):
        if fitted is None:
            continue
        weights = gene_weights(fitted.variance, _FLOOR_CELL)
        over_genes = distances_over_genes(x[fold], fitted.means, weights)
        in_components = distance_in_components(x[fold], fitted.means, fitted.components)
        folds.append((np.flatnonzero(fold), over_genes, np.log(in_components)))
    if not folds:
        return None
    cells, distances, log_distances = zip(*folds, strict=True)
    return _Distances(
        np.concatenate(cells), np.vstack(distances), np.concatenate(log_distances)
    )


# --------------------------------------------------------------------------- distances


def _products(x: sp.csr_matrix) -> Float32Array:
    """Multiply all pairs of cells, less the mean cell, ``(n_cells, n_cells)``."""
    by_gene = sp.csc_matrix(x, dtype=np.float32)
    mean = np.asarray(x.mean(0), dtype=np.float32)
    n_cells, n_genes = x.shape
    products = np.zeros((n_cells, n_cells), dtype=np.float32)
    for first_gene in range(0, n_genes, _GENES_AT_ONCE):
        genes = slice(first_gene, first_gene + _GENES_AT_ONCE)
        block = by_gene[:, genes].toarray() - mean[:, genes]
        products += block @ block.T
    return products


def _principal_axes(
    x: sp.csr_matrix, products: Float32Array, n_components: int
) -> FloatArray:
    """Find the principal axes of some cells, ``(n_genes, n_components)``, from their products."""
    centered = (
        products - products.mean(0) - products.mean(1, keepdims=True) + products.mean()
    )
    rng = np.random.default_rng(0)
    v0 = rng.standard_normal(len(products)).astype(np.float32)
    leading = eigsh(centered, n_components, v0=v0, tol=1e-3)[1].astype(np.float64)
    axes: FloatArray = x.T @ leading - np.asarray(x.mean(0)).T * leading.sum(0)
    return axes / np.linalg.norm(axes, axis=0)


class DistanceFit(NamedTuple):
    """Result of :func:`fit_distances`."""

    means: FloatArray
    """Mean of each label, ``(n_labels, n_genes)``."""
    variance: FloatArray
    """Variance of each gene within labels, ``(n_genes,)``."""
    components: FloatArray
    """Principal components, whitened by the covariance within labels, ``(n_genes, n_comps)``."""


def fit_distances(
    x: sp.csr_matrix,
    codes: IntArray,
    products: Float32Array,
    n_components: int,
) -> DistanceFit | None:
    """Fit means of labels, variances of genes and whitened components.

    Parameters
    ----------
    x
        Normalized expression, shape ``(n_cells, n_genes)``.
    codes
        Label of each cell, from 0 on, shape ``(n_cells,)``. Each occurs.
    products
        Product of each pair of cells, less any cell, shape ``(n_cells, n_cells)``.
    n_components
        Number of principal components.

    Returns
    -------
    The fit, or ``None`` if the cells are too few or all alike.
    """
    from sklearn.covariance import ledoit_wolf

    n_cells = x.shape[0]
    counts = np.bincount(codes)
    averaging = sp.csr_matrix(
        (1 / counts[codes], (codes, np.arange(n_cells))), shape=(len(counts), n_cells)
    )
    means = np.asarray((averaging @ x).todense(), dtype=np.float64)
    df = max(n_cells - len(counts), 1)
    total = np.asarray(x.multiply(x).sum(0), dtype=np.float64).ravel()
    variance = np.maximum(total - counts @ np.square(means), 0) / df
    # Rounding leaves a little of cells that are all alike.
    if n_components >= min(x.shape) or variance.sum() <= 1e-6 * total.sum() / n_cells:
        return None
    axes = _principal_axes(x, products, n_components)
    within = x @ axes - (means @ axes)[codes]
    covariance = ledoit_wolf(within, assume_centered=True)[0] * n_cells / df
    eigenvalues, eigenvectors = np.linalg.eigh(covariance)
    whitening = eigenvectors / np.sqrt(np.maximum(eigenvalues, TINY))
    return DistanceFit(means, variance, axes @ whitening)


def gene_weights(variance: FloatArray, floor: float) -> FloatArray:
    """Invert the variance of each gene plus a share of the mean variance."""
    variance = np.asarray(variance, dtype=np.float64)
    return 1 / (variance + max(floor * variance.mean(), TINY))


def distances_over_genes(
    x: Matrix, centers: FloatArray, weights: FloatArray
) -> FloatArray:
    """Compute squared distances from centers over weighted genes, ``(n_cells, n_centers)``."""
    squares = (
        x.power(2) if isinstance(x, sp.csr_matrix) else np.square(x, dtype=np.float64)
    )
    weighted = centers * weights
    center_norms = (weighted * centers).sum(1)
    distances = (squares @ weights)[:, None] - 2 * (x @ weighted.T) + center_norms
    return np.maximum(distances, 0)


def distance_in_components(
    x: Matrix, centers: FloatArray, components: FloatArray
) -> FloatArray:
    """Compute the squared distance from the nearest center in components, ``(n_cells,)``."""
    axes = np.asarray(components, dtype=np.float64)
    distances = distances_over_genes(x @ axes, centers @ axes, np.ones(axes.shape[1]))
    return np.maximum(distances.min(1), TINY)


def covariates(x: Matrix, measured: BoolArray | None) -> FloatArray:
    """Stack one, the share of expressed genes, and the mean expression, ``(n_cells, 3)``."""
    n_genes = x.shape[1] if measured is None else max(int(measured.sum()), 1)
    detected = np.asarray((x != 0).sum(1)).ravel() / n_genes
    mean = np.asarray(x.sum(1, dtype=np.float64)).ravel() / n_genes
    return np.column_stack([np.ones(x.shape[0]), detected, mean])
