"""A network's weights in the order in which the embedding keeps its pairs of gene and set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from tosica.get import network_weights

if TYPE_CHECKING:
    from anndata import AnnData


def pair_weights(adata: AnnData, mask_key: str, state: dict[str, Any]) -> np.ndarray:
    """Weight of each pair of gene and token, by tokens; NaN where the network has none.

    `state` is that of the model's :class:`~tosica.model._fields.MaskField`.
    """
    weights = network_weights(adata, key=mask_key).tocoo()
    n_genes, n_columns = adata.varm[mask_key].shape
    columns = np.asarray(state.get("columns", np.arange(n_columns)))
    indptr, genes = np.asarray(state["indptr"]), np.asarray(state["genes"])
    token_of_column = np.full(n_columns, -1)
    token_of_column[columns[columns >= 0]] = np.flatnonzero(columns >= 0)
    # Numbered, not multiplied: a weight may be zero.
    number = sp.csc_matrix(
        (np.arange(1, len(genes) + 1), genes, indptr), shape=(n_genes, len(columns))
    )
    token = token_of_column[weights.col]
    is_token = token >= 0
    place = np.asarray(number[weights.row[is_token], token[is_token]]).ravel()
    pairs = np.full(len(genes), np.nan, dtype=np.float32)
    inside = place > 0
    pairs[place[inside] - 1] = weights.data[is_token][inside]
    return pairs
