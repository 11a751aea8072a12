"""How genes vary together in a reference, for queries that lack some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from sklearn.decomposition import PCA

from tosica.linear._subsample import MOST_CELLS, draw, read

if TYPE_CHECKING:
    from tosica.data._cell_matrix import CellMatrix
    from tosica.data._mudata import JointMatrix
    from tosica.data._normalize import ModalitySlice

_MOST_COMPONENTS = 20
# Fewer cells than this for each component, and it would be of these cells alone.
_CELLS_EACH = 10


def fit_ppca(
    rows: CellMatrix | JointMatrix, cells: np.ndarray, labels: np.ndarray, section: ModalitySlice
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and leading principal components, in units of what the others leave.

    Parameters
    ----------
    rows
        Expression of the reference.
    cells
        Positions of the cells to look at. Of more than 10 000 about as many are drawn, of frequent
        labels equally many.
    labels
        Label of each of them as a number, shape ``(n_cells,)``.
    section
        How expression is normalised.

    Returns
    -------
    Means, ``(n_genes,)``, and loadings, ``(n_genes, n_components)``: 20 components, fewer of less
    than 200 cells. Both as :class:`~tosica.module._linear.LinearBranch` reads them.
    """
    x = read(rows, cells[draw(labels, MOST_CELLS)], section)
    n_cells, n_genes = x.shape
    mean = np.asarray(x.mean(0), dtype=np.float64).ravel()
    n = min(_MOST_COMPONENTS, n_cells // _CELLS_EACH, n_genes - 1)
    total = float(np.square(x.data, dtype=np.float64).sum()) / n_cells - float(mean @ mean)
    if n < 1 or total <= 1e-6 * float(mean @ mean):
        return mean, np.zeros((n_genes, 0))
    found = PCA(n, svd_solver="arpack", random_state=0).fit(x)
    explained = found.explained_variance_ * (n_cells - 1) / n_cells
    # At least a hundredth of the mean gene's: nothing is known better than that.
    noise = max((total - explained.sum()) / (n_genes - n), 0.01 * total / n_genes)
    # Noise is in the variance of the kept directions, too.
    lengths = np.sqrt(np.maximum(explained / noise - 1, 0))
    return mean, found.components_.T * lengths
