"""Draw a subsample of the reference that keeps rare labels, and read its expression."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from scvi import settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tosica.data import CellMatrix, JointMatrix, ModalitySlice

# More cells hardly change the regression, the principal components or the batch directions.
MAX_CELLS = 10_000


def read_normalized(
    rows: CellMatrix | JointMatrix, cells: NDArray[np.integer], modality_slice: ModalitySlice
) -> sp.csr_matrix:
    """Read the expression of some cells, sparse, normalised as the network's minibatches are.

    Parameters
    ----------
    rows
        Expression of the reference.
    cells
        Positions of the cells, shape ``(n_cells,)``.
    section
        How expression is normalised.

    Returns
    -------
    Shape ``(n_cells, n_genes)``.
    """
    x = sp.csr_matrix(rows.take(cells))
    return (
        x
        if modality_slice.normalization is None
        else modality_slice.normalization.normalize_block(x)
    )


def subsample_by_label(labels: NDArray[np.integer], max_cells: int) -> NDArray[np.intp]:
    """Draw cells: all cells of rare labels, and equally many of each frequent label.

    Parameters
    ----------
    labels
        Label of each cell as a number, shape ``(n_cells,)``.
    max_cells
        Size of the subsample. With fewer cells than this, all are taken.

    Returns
    -------
    Positions of the drawn cells in order. They follow ``scvi.settings.seed``.
    """
    if len(labels) <= max_cells:
        return np.arange(len(labels))
    rng = np.random.default_rng(settings.seed)
    sizes = np.sort(np.bincount(labels))[::-1]
    # At limits[i] cells for each of the i + 1 largest labels, there are max_cells cells in all.
    smaller = np.append(np.cumsum(sizes[::-1])[::-1][1:], 0)
    limits = (max_cells - smaller) // np.arange(1, len(sizes) + 1)
    # The first limit that no smaller label exceeds.
    fits = limits >= np.append(sizes[1:], 0)
    limit = max(int(limits[np.argmax(fits)]), 1)
    kept = [rng.permutation(np.flatnonzero(labels == label))[:limit] for label in np.unique(labels)]
    return np.sort(np.concatenate(kept))
