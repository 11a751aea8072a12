"""How much more a gene varies among the cells than others that are expressed as much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica.pp._log_normalize import log_normalize
from tosica.pp._rows import Rows
from tosica.pp._scale import kind_of, unscaled_in

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

_BLOCK = 4096
_N_BINS = 20
# A single gene must not carry a whole set.
_LARGEST = 10.0


def gene_variability(adata: AnnData, layer: str | None = None) -> NDArray[np.float64]:
    """Standardised dispersion of each gene's log-normalised expression, (n_vars,).

    Genes are put into 20 bins of equal size by their mean; in each bin the logarithm of variance
    over mean is standardised by median and median absolute deviation, and cut at ±10 (after
    Zheng et al., Nat. Commun. 8, 14049, 2017). Genes without expression get 0.

    Parameters
    ----------
    adata
        Counts, which are normalised block by block, or log-normalised expression; not changed.
    layer
        Layer to read, None for X.

    Raises
    ------
    ValueError, TypeError, KeyError
        If the matrix is missing, or neither counts nor log-normalised.
    """
    rows = Rows(adata, layer=layer)
    hint = unscaled_in(adata)
    total, squares = np.zeros(len(rows.names)), np.zeros(len(rows.names))
    for start, block in rows.blocks(_BLOCK):
        kind = kind_of(block, rows.where, first_cell=start, hint=hint)
        if kind is None:
            continue
        values = block.astype(np.float64)
        if kind == "counts":
            values = log_normalize(values)
        total += np.asarray(values.sum(0)).ravel()
        if sp.issparse(values):
            squares += np.asarray(values.multiply(values).sum(0)).ravel()
        else:
            squares += (values**2).sum(0)
    mean = total / rows.n_obs
    variance = np.maximum(squares / rows.n_obs - mean**2, 0)
    return _standardised(mean, variance)


def _standardised(mean: NDArray[np.float64], variance: NDArray[np.float64]) -> NDArray[np.float64]:
    score = np.zeros(len(mean))
    varies = np.flatnonzero((mean > 0) & (variance > 0))
    if varies.size == 0:
        return score
    dispersion = pd.Series(np.log(variance[varies] / mean[varies]))
    rank = pd.Series(mean[varies]).rank(method="first")
    bins = pd.qcut(rank, min(_N_BINS, len(varies)), labels=False)
    middle = dispersion.groupby(bins).transform("median")
    spread = (dispersion - middle).abs().groupby(bins).transform("median") * 1.4826
    z = (dispersion - middle) / spread.where(spread > 0, 1.0)
    score[varies] = z.clip(-_LARGEST, _LARGEST)
    return score
