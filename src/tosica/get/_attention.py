"""The attention embedding as an AnnData of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from anndata import AnnData

from tosica.get._read_attention import read_attention

if TYPE_CHECKING:
    from typing import Any


def attention(adata: AnnData, *, key: str = "tosica") -> AnnData:
    """Cells × gene sets, so that scanpy's functions work on gene sets as they do on genes.

    The attention is the row of the class token in the attention rollout of
    :cite:t:`Chen2023`, without its own column and without the fully connected tokens.

    Parameters
    ----------
    adata
        Query with n cells that ``model.annotate`` has annotated. It is not changed.
    key
        ``key_added`` of ``model.annotate``.

    Returns
    -------
    A new AnnData that shares no memory with ``adata``:

    `.X`
        Attention, float32, shape (n, P−m): a share without a unit. A row sums to less than 1,
        for the class token also attends to itself and to the tokens that are left out.
    `.var_names`
        Gene set names.
    `.var["modality"]`
        Modality of each gene set, if the model has several.
    `.obs`, `.obsm`
        Copies; the embedding itself is left out of ``obsm``, because it is ``X``.
    `.uns`
        The colours (``*_colors``).

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or half of what that wrote is gone.
    ValueError
        If embedding and names do not fit together, or the embedding holds NaN or infinity.

    See Also
    --------
    tosica.get.mean_attention : one row a group of cells.

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
    >>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> by_gene_set = tosica.get.attention(adata)
    >>> by_gene_set.shape
    (700, 2)
    >>> list(by_gene_set.var_names)
    ['B cell activation', 'phagocytosis']
    >>> sc.get.obs_df(by_gene_set, ["phase", "phagocytosis"]).shape
    (700, 2)

    Likewise ``sc.pl.umap(by_gene_set, color="phagocytosis")`` draws attention on the UMAP.
    """
    values, gene_sets = read_attention(adata, key)
    uns: dict[str, Any] = {
        name: np.array(value) for name, value in adata.uns.items() if str(name).endswith("_colors")
    }
    # A MuData keeps there which cells each modality has.
    left_out = {f"X_{key}", *getattr(adata, "mod", ())}
    return AnnData(
        X=np.array(values, dtype=np.float32),
        obs=adata.obs.copy(),
        var=pd.DataFrame(_modalities(adata, key), index=pd.Index(gene_sets)),
        obsm={name: adata.obsm[name].copy() for name in adata.obsm if name not in left_out},
        uns=uns,
    )


def _modalities(adata: AnnData, key: str) -> dict[str, Any] | None:
    """Column of var with the modality of each gene set, if the model has several."""
    if "modalities" not in adata.uns[key]:
        return None
    return {"modality": pd.Categorical(np.asarray(adata.uns[key]["modalities"]).astype(str))}
