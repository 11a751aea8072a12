"""Signed weights of genes in gene sets, from a gene regulatory network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._validate import validate_params
from tosica.model._modalities import field_keys

if TYPE_CHECKING:
    from anndata import AnnData

    from tosica.model._setup import SetupMixin


def read_network_weights(model: SetupMixin) -> np.ndarray:
    """Read the network's weights of pairs of gene and token, in the order of the embedding.

    Antibodies rarely have a network; weights in one modality are enough.
    """
    weights: list[np.ndarray | None] = []
    missing: KeyError | None = None
    for modality in model.modalities:
        _, mask_field = field_keys(modality.kind.role, modality.name)
        mask_key = model.adata_manager.data_registry[mask_field]["attr_key"]
        adata = model.adata
        if modality.name is not None:
            adata = adata[modality.name]
        try:
            weights.append(_pair_weights(adata, mask_key, modality.mask))
        except KeyError as error:
            weights.append(None)
            missing = error
    if missing is not None and all(array is None for array in weights):
        raise missing
    return model.tokens.join_pairs(weights)


@validate_params()
def network_weights(adata: AnnData, *, key: str = "tosica_mask") -> sp.csr_matrix:
    """Get the signed weight of each gene in each gene set, from the network of the mask.

    Parameters
    ----------
    adata
        Reference with a mask from a table with a column ``weight``. It is not changed.
    key
        ``key_added`` of :func:`tosica.pp.build_mask`.

    Returns
    -------
    scipy.sparse.csr_matrix
        ``(n_vars, n_gene_sets)`` float32, rows and columns as those of ``adata.varm[key]``. An
        entry is stored where there is a weight, even if it is zero; fully connected columns have
        none.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If there is no mask, or it was built from gene sets without weights.

    See Also
    --------
    tosica.TOSICA.start_from_network : starts training with them.

    Examples
    --------
    >>> import pandas as pd
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> network = pd.DataFrame(
    ...     {
    ...         "source": ["SPI1", "SPI1", "PAX5", "PAX5"],
    ...         "target": ["LYZ", "CST3", "CD79A", "LYZ"],
    ...         "weight": [1.0, 0.5, 2.0, -1.0],
    ...     }
    ... )
    >>> adata = adata[:, ["LYZ", "CST3", "CD79A"]].copy()
    >>> tosica.pp.build_mask(adata, network, min_genes=2)
    >>> tosica.get.network_weights(adata).toarray()
    array([[ 1. , -1. ],
           [ 0.5,  0. ],
           [ 0. ,  2. ]], dtype=float32)
    """
    mask = adata.uns.get(key)
    if (
        not isinstance(mask, Mapping)
        or "gene_sets" not in mask
        or "weights" not in mask
    ):
        raise KeyError(
            f"There is no mask in adata.uns[{key!r}], or it was built from gene sets without weights: call "
            "tosica.pp.build_mask with a table that has a column 'weight'."
        )
    table = mask["weights"]
    gene_sets = pd.Index(np.asarray(mask["gene_sets"], dtype=object))
    row = adata.var_names.get_indexer(pd.Index(table["gene"]))
    column = gene_sets.get_indexer(
        pd.Index(table["gene_set"].astype(str), dtype=object)
    )
    # Genes may have been left out since.
    is_present = (row >= 0) & (column >= 0)
    weights = table["weight"].to_numpy(dtype=np.float32)[is_present]
    return sp.coo_matrix(
        (weights, (row[is_present], column[is_present])),
        shape=(adata.n_vars, len(gene_sets)),
    ).tocsr()


def _pair_weights(adata: AnnData, mask_key: str, state: dict[str, Any]) -> np.ndarray:
    """Get the weight of each pair of gene and token, ordered by token.

    Parameters
    ----------
    adata
        Reference with a mask from a network with weights.
    mask_key
        Key of the mask.
    state
        The mask as the model saves it: ``indptr``, ``genes`` and ``columns``.

    Returns
    -------
    Shape ``(n_pairs,)``, float32; NaN where the network has no weight.
    """
    weights = network_weights(adata, key=mask_key).tocoo()
    n_genes, n_columns = adata.varm[mask_key].shape
    columns = np.asarray(state.get("columns", np.arange(n_columns)))
    genes = np.asarray(state["genes"])
    token_of_column = np.full(n_columns, -1)
    token_of_column[columns[columns >= 0]] = np.flatnonzero(columns >= 0)
    # Numbers from 1 on, because pairs that do not exist are 0.
    pair_number = sp.csc_matrix(
        (np.arange(1, len(genes) + 1), genes, np.asarray(state["indptr"])),
        shape=(n_genes, len(columns)),
    )
    token = token_of_column[weights.col]
    is_token = token >= 0
    pair = np.asarray(pair_number[weights.row[is_token], token[is_token]]).ravel()
    is_pair = pair > 0
    pair_weights = np.full(len(genes), np.nan, dtype=np.float32)
    pair_weights[pair[is_pair] - 1] = weights.data[is_token][is_pair]
    return pair_weights
