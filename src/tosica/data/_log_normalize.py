"""Log-normalize a block of counts, sparse or dense."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tosica.data._scale import TARGET_SUM

if TYPE_CHECKING:
    import scipy.sparse as sp


def log_normalize(
    counts: sp.csr_matrix | np.ndarray, target_sum: float = TARGET_SUM
) -> sp.csr_matrix | np.ndarray:
    """Scale each cell to the same total and take ``log(1 + x)``, in double precision.

    Parameters
    ----------
    counts
        Shape ``(n_cells, n_genes)``.
    target_sum
        Total that each cell is scaled to. A cell without counts stays zero.

    Returns
    -------
    A new matrix of the same kind; a sparse one has its values at the same places.
    """
    totals = np.asarray(counts.sum(1, dtype=np.float64)).ravel()
    factors = np.divide(target_sum, totals, out=np.zeros_like(totals), where=totals > 0)
    if isinstance(counts, np.ndarray):
        return np.log1p(counts * factors[:, None])
    values = np.log1p(counts.data * np.repeat(factors, np.diff(counts.indptr)))
    return type(counts)((values, counts.indices.copy(), counts.indptr.copy()), shape=counts.shape)
