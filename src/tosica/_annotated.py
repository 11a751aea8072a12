"""Read what model.annotate and the tools wrote into an AnnData or MuData."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from anndata import AnnData

from tosica._logging import logger
from tosica._validation import check_data, check_names, check_string, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

Kind: TypeAlias = Literal["presence", "attribution", "weighted attention", "attention"]

_PRESENCE, _ATTENTION = "tosica_presence", "tosica"


def resolve_key(adata: AnnData, key: str | None) -> str:
    """Key to read: the caller's, or by default that of the presence, else of the attention.

    Parameters
    ----------
    adata
        Annotated query.
    key
        The caller's key. ``None``: that of the presence, which :func:`tosica.tl.attribute` writes,
        or without it that of the attention, which ``model.annotate`` writes.

    Raises
    ------
    TypeError
        If ``adata`` is neither AnnData nor MuData, or ``key`` is not a string.
    ValueError
        If ``key`` is ``None`` and the presence belongs to another model than the annotation.
    """
    check_data(adata, mudata=True)
    check_string("key", key, optional=True)
    if key is not None:
        return key
    if f"X_{_PRESENCE}" not in adata.obsm:
        # attribute takes no MuData.
        advice = (
            "; contributions to the labels' scores are read once tosica.tl.attribute(adata, model) "
            "has written them"
        )
        logger.info("key: 'tosica', the attention%s", advice * isinstance(adata, AnnData))
        return _ATTENTION
    written_by, annotated_by = _model(adata, _PRESENCE), _model(adata, _ATTENTION)
    if written_by is not None and annotated_by is not None and written_by != annotated_by:
        raise ValueError(
            f"adata.obsm['X_{_PRESENCE}'] was written by another model than the annotation in "
            f"adata.uns[{_ATTENTION!r}]: run tosica.tl.attribute(adata, model) again, or pass "
            f"key={_ATTENTION!r} for the attention."
        )
    logger.info("key: %r, contributions to the labels' scores", _PRESENCE)
    return _PRESENCE


def result_type(adata: AnnData, key: str) -> Kind:
    """Name the kind of values under a key."""
    record = adata.uns.get(key)
    fields = set(record) if isinstance(record, Mapping) else set()
    # Only model.annotate writes the labels, and only tl.attribute the error.
    if "labels" in fields:
        return "attention"
    if "completeness_error" in fields or key.endswith("_attribution"):
        return "attribution"
    if key.endswith("_presence"):
        return "presence"
    return "weighted attention" if key.endswith("_weighted") else "attention"


def _model(adata: AnnData, key: str) -> str | None:
    """Fingerprint of the model that wrote under a key, if it is known."""
    record = adata.uns.get(key)
    return str(record["model"]) if isinstance(record, Mapping) and "model" in record else None


def find_gene_sets(wanted: str | Iterable[str], known: Sequence[str], where: str) -> list[str]:
    """Names of gene sets that the caller asks for, each once, checked to exist.

    Parameters
    ----------
    wanted
        One name or several.
    known
        All names.
    where
        Where these are from, for the message.

    Raises
    ------
    TypeError
        If a name is not a string.
    KeyError
        If a name does not exist; similar names are suggested.
    ValueError
        If no name is given.
    """
    names = list(dict.fromkeys(check_names("gene_sets", wanted)))
    if not names:
        raise ValueError("gene_sets is empty: name at least one gene set, or leave it out.")
    exists = set(known)
    missing = [name for name in names if name not in exists]
    if missing:
        raise KeyError(
            f"There is no gene set {missing[0]!r} in {where}, which holds {len(known)}"
            f"{did_you_mean(missing[0], known)}"
        )
    return names


# What tools append to the key of an annotation, and the tools.
_WRITERS = {
    "_attribution": "attribute",
    "_presence": "attribute",
    "_weighted": "weight_attention",
}


def read_attention(adata: AnnData, key: str) -> tuple[NDArray[np.floating], list[str]]:
    """Read the attention of every cell to every gene set, as ``model.annotate`` wrote it.

    Parameters
    ----------
    adata
        Annotated query.
    key
        ``key_added`` of ``model.annotate``.

    Returns
    -------
    Attention, ``(n_obs, n_gene_sets)``, not a copy, and the names of the gene sets.

    Raises
    ------
    TypeError
        If ``adata`` is neither AnnData nor MuData, or ``key`` is not a string.
    KeyError
        If ``adata`` was not annotated under ``key``, or part of what that wrote is missing.
    ValueError
        If attention and names differ in number, or the attention holds NaN or infinity.
    """
    check_data(adata, mudata=True)
    check_string("key", key)
    embedding_key = f"X_{key}"
    has_embedding, has_record = embedding_key in adata.obsm, key in adata.uns
    call = _call_for(key)
    if not has_embedding and not has_record:
        raise KeyError(
            f"Neither adata.obsm[{embedding_key!r}] nor adata.uns[{key!r}] exists: "
            f"run {call} first{_other_keys(adata)}."
        )
    if not has_embedding:
        raise KeyError(
            f"adata.uns[{key!r}] is there but adata.obsm[{embedding_key!r}] is gone: "
            f"run {call} again{_other_keys(adata)}."
        )
    if not has_record:
        raise KeyError(
            f"adata.obsm[{embedding_key!r}] is there but adata.uns[{key!r}], which names its gene "
            f"sets, is gone (anndata.concat drops uns unless uns_merge='same'): "
            f"copy it back or run {call} again."
        )
    record = adata.uns[key]
    if not isinstance(record, Mapping) or "gene_sets" not in record:
        raise KeyError(
            f"adata.uns[{key!r}] holds no 'gene_sets', the names of the columns: run {call} again."
        )

    attention = np.asarray(adata.obsm[embedding_key])
    gene_sets = [str(name) for name in np.asarray(record["gene_sets"]).ravel()]
    if attention.ndim != 2 or attention.shape[1] != len(gene_sets):
        raise ValueError(
            f"adata.obsm[{embedding_key!r}] has shape {attention.shape} but "
            f"adata.uns[{key!r}]['gene_sets'] names {len(gene_sets)} gene sets: "
            f"they come from different models; run {call} again."
        )
    if not np.isfinite(attention).all():
        n_bad = int((~np.isfinite(attention).all(axis=1)).sum())
        raise ValueError(
            f"adata.obsm[{embedding_key!r}] holds NaN or infinity in {n_bad} of {adata.n_obs} "
            f"cells: run {call} again, or leave these cells out."
        )
    return attention, gene_sets


def _call_for(key: str) -> str:
    """Call that writes under a key."""
    for ending, tool in _WRITERS.items():
        if key.endswith(ending):
            annotated = key.removesuffix(ending)
            moved = "" if annotated == "tosica" else f", key={annotated!r}"
            return f"tosica.tl.{tool}(adata, model{moved})"
    return f"model.annotate(adata, key_added={key!r})"


def _other_keys(adata: AnnData) -> str:
    """Point to an annotation under another key."""
    other_keys = [
        name
        for name, value in adata.uns.items()
        if isinstance(value, Mapping) and "gene_sets" in value and f"X_{name}" in adata.obsm
    ]
    return f", or pass key={other_keys[0]!r}, which is there" if other_keys else ""
