"""Attention times the norm of the gene set's embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tosica._logging import logger, without_query_lines
from tosica._progress import progress
from tosica._validation import check_flags, check_key_added
from tosica.tl._read_annotation import read_annotation

if TYPE_CHECKING:
    from anndata import AnnData

    from tosica.model import TOSICA


def weight_attention(
    adata: AnnData,
    model: TOSICA,
    *,
    layer: str | None = None,
    use_raw: bool = False,
    key: str = "tosica",
    key_added: str | None = None,
    copy: bool = False,
) -> AnnData | None:
    """Weight a cell's attention to each gene set by the norm of the gene set's embedding.

    A token with much attention passes on little if its embedding is short. The product with the
    norm :cite:p:`Kobayashi2020` follows the expression of the gene set's genes, and so finds gene
    sets whose genes differ between groups better than attention does. For the same reason it says
    less about what the model makes of them: use :func:`tosica.tl.attribute` for that.

    Parameters
    ----------
    adata
        Query that ``model`` has annotated.
    model
        The model that annotated it.
    layer, use_raw
        Which matrix of ``adata`` to read, as in :meth:`tosica.TOSICA.annotate`.
    key
        ``key_added`` of ``model.annotate``.
    key_added
        Replaces ``f"{key}_weighted"`` in the keys below.
    copy
        Leave ``adata`` as it is and return a copy with the result.

    Returns
    -------
    ``None``, or with ``copy=True`` an AnnData. Written are:

    ``adata.obsm["X_tosica_weighted"]``
        Attention times the Euclidean norm of the gene set's embedding without bias,
        ``(n_obs, n_gene_sets)`` float32. Functions of ``get``, ``tl`` and ``pl`` read it with
        ``key="tosica_weighted"``.
    ``adata.uns["tosica_weighted"]``
        Names of the gene sets, and the fingerprint of the model.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If ``adata`` was not annotated under ``key``, or part of what that wrote is missing.
    ValueError
        If another model annotated ``adata``, or as :meth:`tosica.TOSICA.annotate`.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> adata.obs_names_make_unique()
    >>> tosica.pp.build_mask(adata, max_gene_sets=20)
    >>> tosica.TOSICA.setup_anndata(adata, labels_key="bulk_labels")
    >>> model = tosica.TOSICA(adata, embed_dim=16)
    >>> model.train(max_epochs=2, enable_progress_bar=False)
    >>> model.annotate(adata)
    >>> tosica.tl.weight_attention(adata, model)
    >>> tosica.get.mean_attention(adata, "phase", key="tosica_weighted").shape
    (3, 56)
    """
    check_flags(use_raw=use_raw, copy=copy)
    check_key_added(key_added, optional=True)
    attention, gene_sets = read_annotation(adata, model, key)
    key_added = f"{key}_weighted" if key_added is None else key_added
    embedding = model.module.embedding
    weighted = np.empty((adata.n_obs, len(gene_sets)), dtype=np.float32)
    with torch.no_grad(), without_query_lines(), progress(adata.n_obs, "weight_attention") as step:
        for first, x, _ in model.iter_batches(adata, layer=layer, use_raw=use_raw):
            tokens = embedding.to_tokens(embedding.gene_set_embeddings(x) - embedding.bias)
            norm = tokens[:, : len(gene_sets)].norm(dim=2).cpu().numpy()
            rows = slice(first, first + len(x))
            weighted[rows] = attention[rows] * norm
            step.update(len(x))
    result = adata.copy() if copy else adata
    result.obsm[f"X_{key_added}"] = weighted
    result.uns[key_added] = {
        "gene_sets": np.array(gene_sets, dtype=object),
        "model": model.fingerprint,
    }
    logger.info("weight_attention: added .obsm['X_%s'] and .uns['%s']", key_added, key_added)
    return result if copy else None
