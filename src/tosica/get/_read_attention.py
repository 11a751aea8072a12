"""The attention embedding and the names of its columns, checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

# What tools append to the key of an annotation, and their names.
_WRITERS = {
    "_attribution": "attribute",
    "_presence": "attribute",
    "_weighted": "weight_attention",
}


def read_attention(adata: AnnData, key: str) -> tuple[NDArray[np.floating], list[str]]:
    """Attention of every cell to every gene set, as ``model.annotate`` wrote it.

    Parameters
    ----------
    adata
        Annotated query.
    key
        ``key_added`` of ``model.annotate``.

    Returns
    -------
    Attention, shape (n, P−m), not copied, and the P−m gene set names.

    Raises
    ------
    TypeError
        If ``key`` is not a string.
    KeyError
        If ``adata`` was not annotated under ``key``, or half of what that wrote is gone.
    ValueError
        If embedding and names do not fit together, or the embedding holds NaN or infinity.
    """
    if not isinstance(key, str):
        msg = f"key must be a string, the key_added of model.annotate, not {type(key).__name__}."
        raise TypeError(msg)
    embedding_key = f"X_{key}"
    has_embedding, has_record = embedding_key in adata.obsm, key in adata.uns
    call = _call_for(key)
    if not has_embedding and not has_record:
        msg = (
            f"Neither adata.obsm[{embedding_key!r}] nor adata.uns[{key!r}] exists: "
            f"run {call} first{_other_keys(adata)}."
        )
        raise KeyError(msg)
    if not has_embedding:
        msg = (
            f"adata.uns[{key!r}] is there but adata.obsm[{embedding_key!r}] is gone: "
            f"run {call} again{_other_keys(adata)}."
        )
        raise KeyError(msg)
    if not has_record:
        msg = (
            f"adata.obsm[{embedding_key!r}] is there but adata.uns[{key!r}], which names its gene "
            f"sets, is gone (anndata.concat drops uns unless uns_merge='same'): "
            f"copy it back or run {call} again."
        )
        raise KeyError(msg)
    record = adata.uns[key]
    if not isinstance(record, Mapping) or "gene_sets" not in record:
        msg = (
            f"adata.uns[{key!r}] holds no 'gene_sets', the names of the columns: run {call} again."
        )
        raise KeyError(msg)

    attention = np.asarray(adata.obsm[embedding_key])
    gene_sets = [str(name) for name in np.asarray(record["gene_sets"]).ravel()]
    if attention.ndim != 2 or attention.shape[1] != len(gene_sets):
        msg = (
            f"adata.obsm[{embedding_key!r}] has shape {attention.shape} but "
            f"adata.uns[{key!r}]['gene_sets'] names {len(gene_sets)} gene sets: "
            f"they come from different models; run {call} again."
        )
        raise ValueError(msg)
    if not np.isfinite(attention).all():
        n_bad = int((~np.isfinite(attention).all(axis=1)).sum())
        msg = (
            f"adata.obsm[{embedding_key!r}] holds NaN or infinity in {n_bad} of {adata.n_obs} "
            f"cells: run {call} again, or leave these cells out."
        )
        raise ValueError(msg)
    return attention, gene_sets


def _call_for(key: str) -> str:
    """Say which call writes what is looked for."""
    for ending, tool in _WRITERS.items():
        if key.endswith(ending):
            annotated = key.removesuffix(ending)
            moved = "" if annotated == "tosica" else f", key={annotated!r}"
            return f"tosica.tl.{tool}(adata, model{moved})"
    return f"model.annotate(adata, key_added={key!r})"


def _other_keys(adata: AnnData) -> str:
    """Point to annotations that are there under another name."""
    found = [
        name
        for name, value in adata.uns.items()
        if isinstance(value, Mapping) and "gene_sets" in value and f"X_{name}" in adata.obsm
    ]
    return f", or pass key={found[0]!r}, which is there" if found else ""
