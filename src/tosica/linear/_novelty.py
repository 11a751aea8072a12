"""Distance of cells from the labels of the reference, calibrated on its own cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh
from scipy.special import ndtri

from tosica.linear._classifier import MAX_CELLS_CROSS_FIT, cross_fit

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from numpy.typing import NDArray

    Matrix: TypeAlias = NDArray[np.floating] | sp.csr_matrix

# Least distance and variance.
TINY = float(np.finfo(np.float32).tiny)
# Cells to fit to. More hardly change the distances.
MAX_CELLS_NOVELTY = MAX_CELLS_CROSS_FIT
# Added to each gene's variance, as a share of the mean variance, so that genes which the reference
# hardly expresses do not outweigh all others.
_FLOOR_CELL = 0.3
# Cells of a label that a query must have for the label to count in what the query shares.
MIN_CELLS = 5
# Labels that decide by their median what the query shares.
_FEWEST_VOTES = 3
# Where scores of known and other cells are compared: new types have high scores, so most of the
# cells below this quantile are known, unless nine tenths of a label's cells are new.
_QUANTILE = 0.1


@dataclass(frozen=True)
class NoveltyStatistics:
    """Score cells that may be of a new type, by statistics of the reference.

    The score of a cell is the mean of two standardized distances from the nearest label's mean: one
    over genes, each in units of its variance within labels, and the Mahalanobis distance in
    principal components. Cells in which fewer genes are detected are further from every mean, so
    the first is compared with the distance that is expected of a cell with as many detected genes.
    """

    means: NDArray[np.float32]
    """Mean expression of each label, ``(n_labels, n_genes)``."""
    labels: NDArray[np.int64]
    """Codes of these labels in the model, ``(n_labels,)``."""
    variance: NDArray[np.float32]
    """Variance of each gene within labels, ``(n_genes,)``."""
    components: NDArray[np.float32]
    """Principal components, whitened by the covariance within labels, ``(n_genes, n_comps)``."""
    expected: NDArray[np.float64]
    """Intercept and slopes of the distance over genes: share of genes detected, mean expression."""
    scales: NDArray[np.float64]
    """Standard deviation of the first distance; mean and standard deviation of the second's log."""
    cells: NDArray[np.float32]
    """Scores of the reference's cells, by statistics that were fitted without them."""
    cells_labels: NDArray[np.int64]
    """Position of the label nearest to each, in ``labels``."""

    def positions(self, codes: NDArray[np.integer]) -> NDArray[np.int64]:
        """Find codes of the model in ``labels``: positions, -1 for labels that are not there, ``(n_cells,)``."""
        of_code = np.full(max(int(self.labels.max()), int(codes.max())) + 1, -1)
        of_code[self.labels] = np.arange(len(self.labels))
        return of_code[codes]

    def score_cells(
        self,
        x: Matrix,
        measured: NDArray[np.bool_] | None = None,
        shift: NDArray[np.floating] | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Score single cells.

        Parameters
        ----------
        x
            Normalized expression, shape ``(n_cells, n_genes)``.
        measured
            Shape ``(n_genes,)``: ``False`` for genes that the query lacks, which are left out.
        shift
            Shape ``(n_genes,)``. What is subtracted from the expression of all cells.

        Returns
        -------
        Score of each cell, about standard normal for cells like those of the reference, and the
        position of its nearest label in ``labels``, shape ``(n_cells,)`` each.
        """
        centers = np.asarray(self.means, dtype=np.float64) + (
            0 if shift is None else shift
        )
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

    def _weights(self, measured: NDArray[np.bool_] | None) -> NDArray[np.float64]:
        weights = gene_weights(self.variance, _FLOOR_CELL)
        if measured is not None:
            # Rescaled to the expected distance of a known cell over all genes.
            usual = weights * self.variance
            weights = weights * measured
            weights *= usual.sum() / max(float(usual[measured].sum()), TINY)
        return weights


def pvalues(
    scores: NDArray[np.floating], known: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Compute conformal p-values: the share of known cells that score at least as high.

    Parameters
    ----------
    scores
        Scores of cells, shape ``(n_cells,)``.
    known
        Scores of known cells, shape ``(n_known,)``. The cells themselves count as one more.

    Returns
    -------
    Shape ``(n_cells,)``, above 0. For cells that are exchangeable with the known ones, at most a
    share ``p`` has a value up to ``p`` (Bates et al., Ann. Stat. 51, 149, 2023).

    Examples
    --------
    >>> import numpy as np
    >>> pvalues(np.array([0.5, 9.0]), np.arange(1, 10)).tolist()
    [1.0, 0.2]
    """
    # Known scores are kept in single precision.
    scores, ordered = (
        np.asarray(scores, np.float32),
        np.sort(np.asarray(known, np.float32)),
    )
    n_higher = len(ordered) - np.searchsorted(ordered, scores, side="left")
    return (1 + n_higher) / (len(ordered) + 1)


def add_doubt(
    distance: NDArray[np.floating], probability: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Add the normal score of 1 - probability to standardized distances, and divide by the root of two (Stouffer)."""
    # A probability of 1 in single precision is one of at most 1 - eps.
    certain = np.minimum(
        np.asarray(probability, dtype=np.float64), 1 - float(np.finfo(np.float32).eps)
    )
    return np.asarray((distance - ndtri(certain)) / np.sqrt(2))


def label_excess(
    scores: NDArray[np.floating],
    nearest: NDArray[np.integer],
    known: NDArray[np.floating],
    known_nearest: NDArray[np.integer],
) -> NDArray[np.float64]:
    """Find by how much the lowest scores of each label exceed those of known cells, ``(n_labels,)``, at least 0.

    ``nearest`` are the labels of ``scores``, ``known_nearest`` of ``known``. Labels with too few cells to tell are
    taken to be as most others; if all are, nothing is in excess.
    """
    excess = np.full(int(max(nearest.max(), known_nearest.max())) + 1, np.nan)
    for label in range(len(excess)):
        sides = scores[nearest == label], known[known_nearest == label]
        if min(map(len, sides)) >= MIN_CELLS:
            excess[label] = np.subtract(
                *(np.quantile(side, _QUANTILE) for side in sides)
            )
    middle = 0.0 if np.isnan(excess).all() else np.nanmedian(excess)
    return np.maximum(np.where(np.isnan(excess), middle, excess), 0)


class CommonShift(NamedTuple):
    """What all labels of a query differ by from the reference.

    ``shift`` is ``(n_genes,)``. ``signal`` is the share of its variance that two samples of the same cells would not
    have, between 0 and 1. If it is 0, the query is of the reference's batch, and to subtract the shift would add noise.
    """

    shift: NDArray[np.float64]
    signal: float


def common_shift(
    x: sp.csr_matrix,
    positions: NDArray[np.integer],
    statistics: NoveltyStatistics,
    measured: NDArray[np.bool_] | None = None,
) -> CommonShift:
    """Compute the median over labels of the difference between query and reference.

    Parameters
    ----------
    x
        Normalized expression of the query, ``(n_cells, n_genes)``.
    positions
        Position of each cell's label in ``statistics.labels``, -1 for none, ``(n_cells,)``.
    statistics
        What the model knows of its reference.
    measured
        Shape ``(n_genes,)``: ``False`` for genes that the query lacks.

    Returns
    -------
    The difference, and which share of it is a difference of batches.
    """
    differences = []
    variances = []
    n_reference = np.bincount(statistics.cells_labels, minlength=len(statistics.means))
    for label, mean in enumerate(statistics.means):
        of_label = positions == label
        if of_label.sum() >= MIN_CELLS:
            differences.append(np.asarray(x[of_label].mean(0)).ravel() - mean)
            variances.append(1 / of_label.sum() + 1 / max(n_reference[label], 1))
    # Labels that are lacking vote for no difference, so that one label alone decides nothing.
    while len(differences) < _FEWEST_VOTES:
        differences.append(np.zeros(x.shape[1]))
    shift = np.median(differences, axis=0)
    weights = gene_weights(statistics.variance, 1.0)
    if measured is not None:
        shift = shift * measured
        weights = weights * measured
    # Variance of a median, as a share of the variance of a cell.
    of_median = (
        np.pi / 2 * np.mean(variances) / len(differences) if variances else np.inf
    )
    expected = float(of_median * (weights @ statistics.variance))
    observed = float(weights @ np.square(shift))
    return CommonShift(shift, 1 - expected / observed if observed > expected else 0.0)


def fit_novelty(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    *,
    max_components: int = 30,
    cells_per_component: int = 12,
) -> NoveltyStatistics | None:
    """Fit the statistics of novelty to labeled cells.

    Each cell is scored once by statistics that were fitted without it (cross-fitting), because a
    cell that was fitted to is nearer than a new one.

    Parameters
    ----------
    x
        Normalized expression, shape ``(n_cells, n_genes)``.
    labels
        Label of each cell as a number, shape ``(n_cells,)``.
    max_components, cells_per_component
        Most components of the Mahalanobis distance, and fewest cells for each.

    Returns
    -------
    The statistics, or ``None`` if the cells are too few or too alike for any.
    """
    present, codes = np.unique(labels, return_inverse=True)
    counts = np.bincount(codes)
    # As many for all folds, since distances grow with the number of components.
    n_components = min(
        max_components, len(codes) // cells_per_component, x.shape[1] - 1
    )
    products = _products(x)

    def fit(cells: NDArray[np.bool_]) -> tuple[NDArray, NDArray, NDArray] | None:
        return fit_distances(
            x[cells], codes[cells], products[np.ix_(cells, cells)], max(n_components, 1)
        )

    fitted = fit(np.ones(len(codes), dtype=bool))
    if fitted is None or counts.max() < 2:
        return None
    means, variance, components = fitted
    held_out = _distances_of_held_out(x, codes, fit, n_folds=5)
    if held_out is None:
        return None
    scored, over_genes, logs = held_out
    halves = _distances_of_held_out(x, codes, fit, n_folds=2)
    if halves is not None:
        # Components vary most along what is noise in the cells that they were fitted to, so that
        # the distance of other cells increases with the number n of these cells, about as -1 / n.
        # From 1/2 and 4/5 of the cells it is extrapolated to all of them.
        logs = logs + (logs.mean() - halves[2].mean()) / 3
    depth = covariates(x[scored], None)
    expected = np.linalg.lstsq(depth, over_genes.min(1), rcond=None)[0]
    residual = over_genes.min(1) - depth @ expected
    scales = np.array([residual.std(), logs.mean(), logs.std()])
    scales[[0, 2]] = np.maximum(scales[[0, 2]], 1e-6)
    return NoveltyStatistics(
        means=means.astype(np.float32),
        labels=present.astype(np.int64),
        variance=variance.astype(np.float32),
        components=components.astype(np.float32),
        expected=expected,
        scales=scales,
        cells=((residual / scales[0] + (logs - scales[1]) / scales[2]) / 2).astype(
            np.float32
        ),
        cells_labels=over_genes.argmin(1),
    )


def _distances_of_held_out(
    x: sp.csr_matrix,
    codes: NDArray[np.integer],
    fit: Callable[[NDArray[np.bool_]], tuple[NDArray, NDArray, NDArray] | None],
    n_folds: int,
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]] | None:
    """Compute distances of cells by fits without them.

    Returns
    -------
    Positions of the cells, distances over genes from each label, and the logarithm of the distance
    in components from the nearest; ``None`` if every fold leaves too few cells to fit to.
    """
    parts = []
    for fold, without in cross_fit(codes, fit, n_folds=n_folds):
        if without is not None:
            over_genes = distances_over_genes(
                x[fold], without[0], gene_weights(without[1], _FLOOR_CELL)
            )
            in_components = distance_in_components(x[fold], without[0], without[2])
            parts.append((np.flatnonzero(fold), over_genes, np.log(in_components)))
    if not parts:
        return None
    cells, distances, logs = zip(*parts, strict=True)
    return np.concatenate(cells), np.vstack(distances), np.concatenate(logs)


# --------------------------------------------------------------------------- distances


def _products(x: sp.csr_matrix, genes_at_once: int = 2048) -> NDArray[np.float32]:
    """Multiply all pairs of cells, less the mean cell, ``(n_cells, n_cells)``."""
    by_gene, mean = (
        sp.csc_matrix(x, dtype=np.float32),
        np.asarray(x.mean(0), dtype=np.float32),
    )
    products = np.zeros((x.shape[0], x.shape[0]), dtype=np.float32)
    for start in range(0, x.shape[1], genes_at_once):
        some = slice(start, start + genes_at_once)
        block = by_gene[:, some].toarray() - mean[:, some]
        products += block @ block.T
    return products


def _principal_axes(
    x: sp.csr_matrix, products: NDArray[np.float32], n_components: int
) -> NDArray[np.float64]:
    """Find the principal axes of some cells, ``(n_genes, n_components)``, from their products."""
    centered = (
        products - products.mean(0) - products.mean(1, keepdims=True) + products.mean()
    )
    start = np.random.default_rng(0).standard_normal(len(products)).astype(np.float32)
    leading = eigsh(centered, n_components, v0=start, tol=1e-3)[1].astype(np.float64)
    axes: NDArray[np.float64] = x.T @ leading - np.asarray(x.mean(0)).T * leading.sum(0)
    return axes / np.linalg.norm(axes, axis=0)


def fit_distances(
    x: sp.csr_matrix,
    codes: NDArray[np.integer],
    products: NDArray[np.float32],
    n_components: int,
) -> tuple[NDArray, NDArray, NDArray] | None:
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
    Mean of each label, ``(n_labels, n_genes)``; variance of each gene within labels,
    ``(n_genes,)``; and principal components whitened by the covariance within labels,
    ``(n_genes, n_comps)``. ``None`` if the cells are too few or all alike.
    """
    from sklearn.covariance import ledoit_wolf

    n_cells = x.shape[0]
    counts = np.bincount(codes)
    of_label = sp.csr_matrix(
        (1 / counts[codes], (codes, np.arange(n_cells))), shape=(len(counts), n_cells)
    )
    means = np.asarray((of_label @ x).todense(), dtype=np.float64)
    freedom = max(n_cells - len(counts), 1)
    total = np.asarray(x.multiply(x).sum(0), dtype=np.float64).ravel()
    variance = np.maximum(total - counts @ np.square(means), 0) / freedom
    # Rounding leaves a little of cells that are all alike.
    if n_components >= min(x.shape) or variance.sum() <= 1e-6 * total.sum() / n_cells:
        return None
    axes = _principal_axes(x, products, n_components)
    within = x @ axes - (means @ axes)[codes]
    covariance = ledoit_wolf(within, assume_centered=True)[0] * n_cells / freedom
    lengths, directions = np.linalg.eigh(covariance)
    return means, variance, axes @ (directions / np.sqrt(np.maximum(lengths, TINY)))


def gene_weights(variance: NDArray[np.floating], floor: float) -> NDArray[np.float64]:
    """Invert the variance of each gene plus a share of the mean variance."""
    variance = np.asarray(variance, dtype=np.float64)
    return 1 / (variance + max(floor * variance.mean(), TINY))


def distances_over_genes(
    x: Matrix, centers: NDArray[np.floating], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute squared distances from centers over weighted genes, ``(n_cells, n_centers)``."""
    squares = (
        x.power(2) if isinstance(x, sp.csr_matrix) else np.square(x, dtype=np.float64)
    )
    weighted = centers * weights
    found = (
        (squares @ weights)[:, None]
        - 2 * (x @ weighted.T)
        + (weighted * centers).sum(1)
    )
    return np.maximum(found, 0)


def distance_in_components(
    x: Matrix, centers: NDArray[np.floating], components: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Compute the squared distance from the nearest center in components, ``(n_cells,)``."""
    axes = np.asarray(components, dtype=np.float64)
    found = distances_over_genes(x @ axes, centers @ axes, np.ones(axes.shape[1]))
    return np.maximum(found.min(1), TINY)


def covariates(x: Matrix, measured: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """Stack one, the share of expressed genes, and the mean expression, ``(n_cells, 3)``."""
    n_genes = x.shape[1] if measured is None else max(int(measured.sum()), 1)
    detected = np.asarray((x != 0).sum(1)).ravel() / n_genes
    mean = np.asarray(x.sum(1, dtype=np.float64)).ravel() / n_genes
    return np.column_stack([np.ones(x.shape[0]), detected, mean])
