"""Distances of cells from the means of labels, over genes and in principal components."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from sklearn.covariance import ledoit_wolf
from sklearn.decomposition import PCA

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    Matrix: TypeAlias = NDArray[np.floating] | sp.csr_matrix

TINY = float(np.finfo(np.float32).tiny)


def fit_distances(
    x: sp.csr_matrix, codes: NDArray[np.integer], n_components: int
) -> tuple[NDArray, NDArray, NDArray] | None:
    """Fit what distances are measured by.

    Parameters
    ----------
    x
        Normalized expression, shape ``(n_cells, n_genes)``.
    codes
        Label of each cell, from 0 on, shape ``(n_cells,)``. Each occurs.
    n_components
        Number of principal components.

    Returns
    -------
    Mean of each label, ``(n_labels, n_genes)``; variance of each gene within labels,
    ``(n_genes,)``; and principal components whitened by the covariance within labels,
    ``(n_genes, n_comps)``. ``None`` if the cells are too few or all alike.
    """
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
    axes = PCA(n_components, svd_solver="arpack", random_state=0).fit(x).components_.T
    within = x @ axes - (means @ axes)[codes]
    covariance = ledoit_wolf(within, assume_centered=True)[0] * n_cells / freedom
    lengths, directions = np.linalg.eigh(covariance)
    return means, variance, axes @ (directions / np.sqrt(np.maximum(lengths, TINY)))


def gene_weights(variance: NDArray[np.floating], floor: float) -> NDArray[np.float64]:
    """Inverse of the variance of each gene, plus a share of the mean variance."""
    variance = np.asarray(variance, dtype=np.float64)
    return 1 / (variance + max(floor * variance.mean(), TINY))


def distances_over_genes(
    x: Matrix, centers: NDArray[np.floating], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Squared distances from centers over weighted genes, ``(n_cells, n_centers)``."""
    squares = x.power(2) if isinstance(x, sp.csr_matrix) else np.square(x, dtype=np.float64)
    weighted = centers * weights
    found = (squares @ weights)[:, None] - 2 * (x @ weighted.T) + (weighted * centers).sum(1)
    return np.maximum(found, 0)


def distance_in_components(
    x: Matrix, centers: NDArray[np.floating], components: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Squared distance from the nearest center in components, ``(n_cells,)``, above 0."""
    axes = np.asarray(components, dtype=np.float64)
    found = distances_over_genes(x @ axes, centers @ axes, np.ones(axes.shape[1]))
    return np.maximum(found.min(1), TINY)


def covariates(x: Matrix, measured: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """One, the share of genes that a cell expresses, and its mean expression, ``(n_cells, 3)``."""
    n_genes = x.shape[1] if measured is None else max(int(measured.sum()), 1)
    detected = np.asarray((x != 0).sum(1)).ravel() / n_genes
    mean = np.asarray(x.sum(1, dtype=np.float64)).ravel() / n_genes
    return np.column_stack([np.ones(x.shape[0]), detected, mean])
