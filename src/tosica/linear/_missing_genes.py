"""Probabilistic PCA of the reference, from which genes that a query lacks are imputed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from sklearn.decomposition import PCA

from tosica.linear._subsample import MAX_CELLS, read_normalized, subsample_by_label

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tosica.data import CellMatrix, JointMatrix, ModalitySlice


def fit_ppca(
    rows: CellMatrix | JointMatrix,
    cells: NDArray[np.integer],
    labels: NDArray[np.integer],
    modality_slice: ModalitySlice,
    *,
    n_components: int = 20,
    min_cells_per_component: int = 10,
    min_noise: float = 0.01,
    max_cells: int = MAX_CELLS,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit probabilistic PCA (Tipping and Bishop, *J. R. Stat. Soc. B* 61, 1999).

    Parameters
    ----------
    rows
        Expression of the reference.
    cells
        Positions of the cells to fit to.
    labels
        Label of each of them as a number, shape ``(n_cells,)``.
    section
        How expression is normalised.
    n_components
        Number of principal components.
    min_cells_per_component
        With fewer cells than this for each component, there are fewer components.
    min_noise
        Least variance of the noise, as a share of the variance of an average gene.
    max_cells
        Size of the subsample of the cells that is used, as
        :func:`~tosica.linear._subsample.subsample_by_label` draws it.

    Returns
    -------
    Mean, ``(n_genes,)``, and loadings in units of the noise's standard deviation,
    ``(n_genes, n_components)``, as :class:`~tosica.module._linear.LinearBranch` uses them.
    """
    x = read_normalized(rows, cells[subsample_by_label(labels, max_cells)], modality_slice)
    n_cells, n_genes = x.shape
    mean = np.asarray(x.mean(0), dtype=np.float64).ravel()
    n_components = min(n_components, n_cells // min_cells_per_component, n_genes - 1)
    total = float(np.square(x.data, dtype=np.float64).sum()) / n_cells - float(mean @ mean)
    if n_components < 1 or total <= 1e-6 * float(mean @ mean):
        return mean, np.zeros((n_genes, 0))
    pca = PCA(n_components, svd_solver="arpack", random_state=0).fit(x)
    explained = pca.explained_variance_ * (n_cells - 1) / n_cells
    noise = max((total - explained.sum()) / (n_genes - n_components), min_noise * total / n_genes)
    # The noise is part of the variance along the components too.
    lengths = np.sqrt(np.maximum(explained / noise - 1, 0))
    return mean, pca.components_.T * lengths
