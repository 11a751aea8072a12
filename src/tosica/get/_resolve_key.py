"""Which of the numbers of an annotated AnnData to read, if the caller does not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from anndata import AnnData

from tosica._logging import logger

Kind: TypeAlias = Literal["presence", "attribution", "weighted attention", "attention"]

_PRESENCE, _ATTENTION = "tosica_presence", "tosica"


def resolve_key(adata: AnnData, key: str | None) -> str:
    """Return the caller's key, or by default that of the presence, else that of the attention.

    Parameters
    ----------
    adata
        Annotated query.
    key
        What the caller wants to read. ``None``: the presence that :func:`tosica.tl.attribute` has
        written, or, if it was not run, the attention that ``model.annotate`` has written.

    Raises
    ------
    ValueError
        If ``key`` is ``None`` and the presence belongs to another model than the annotation.
    """
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
        msg = (
            f"adata.obsm['X_{_PRESENCE}'] was written by another model than the annotation in "
            f"adata.uns[{_ATTENTION!r}]: run tosica.tl.attribute(adata, model) again, or pass "
            f"key={_ATTENTION!r} for the attention."
        )
        raise ValueError(msg)
    logger.info("key: %r, contributions to the labels' scores", _PRESENCE)
    return _PRESENCE


def kind_of(adata: AnnData, key: str) -> Kind:
    """Say what the numbers under a key are, for the labels of plots and the choice of gene sets."""
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
    """Fingerprint of the model that wrote what is under a key, if it is known."""
    record = adata.uns.get(key)
    return str(record["model"]) if isinstance(record, Mapping) and "model" in record else None
