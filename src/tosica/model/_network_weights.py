"""A network's weights in the order in which the embedding keeps its pairs of gene and set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from tosica.get import network_weights

if TYPE_CHECKING:
    from anndata import AnnData


def pair_weights(adata: AnnData, mask_key: str) -> np.ndarray:
    """Weight of each pair of gene and set in the mask, by columns; NaN where there is none."""
    weights = network_weights(adata, key=mask_key).tocoo()
    mask = sp.csc_matrix(adata.varm[mask_key])
    mask.sort_indices()
    # Numbered, not multiplied: a weight may be zero.
    number = sp.csc_matrix(
        (np.arange(1, mask.nnz + 1), mask.indices, mask.indptr), shape=mask.shape
    )
    place = np.asarray(number[weights.row, weights.col]).ravel()
    pairs = np.full(mask.nnz, np.nan, dtype=np.float32)
    inside = place > 0
    pairs[place[inside] - 1] = weights.data[inside]
    return pairs
