"""Attention that a model wrote into a query, checked against that model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosica._checks import CellData, Flag, String, list_names
from tosica._obs import read_attention
from tosica.model._tosica import MODEL

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData
    from numpy.typing import NDArray

    from tosica.model import TOSICA


# What functions take that run the model on cells that it annotated.
ANNOTATED_BY_MODEL = {
    "adata": CellData(),
    "model": MODEL,
    "layer": String(optional=True),
    "use_raw": Flag(),
    "key": String(),
    "copy": Flag(),
}


def refuse_mudata(model: TOSICA) -> None:
    """Raise a ``ValueError`` for models of several modalities."""
    names = [str(modality.name) for modality in model.modalities]
    if model.modalities[0].name is not None:
        raise ValueError(
            f"The model was set up with a MuData ({list_names(names)}), and this function takes models of an AnnData "
            f"only: train a model of one modality, as by TOSICA.setup_anndata(mdata[{names[0]!r}], ...)."
        )


def read_annotation(
    adata: AnnData | MuData, model: TOSICA, key: str, *, mudata: bool = False
) -> tuple[NDArray, list[str]]:
    """Read attention and gene set names, and refuse those of another model.

    Parameters
    ----------
    adata
        Annotated query.
    model
        The model that annotated it.
    key
        ``key_added`` of ``model.annotate``.
    mudata
        Accept a model of several modalities.

    Returns
    -------
    As :func:`~tosica._obs.read_attention`.

    Raises
    ------
    KeyError, TypeError, ValueError
        As :func:`~tosica._obs.read_attention`.
    RuntimeError
        If the model is not trained.
    ValueError
        If the model has several modalities, or another model annotated ``adata``.
    """
    if not mudata:
        refuse_mudata(model)
    model._check_trained()
    values, gene_sets = read_attention(adata, key)
    written_by = str(adata.uns[key].get("model", ""))
    if written_by != model.fingerprint:
        of = f"a model with the fingerprint {written_by!r}" if written_by else "an unknown model"
        raise ValueError(
            f"adata.uns[{key!r}] was written by {of}, and this model's is {model.fingerprint!r}: "
            f"pass the model that annotated adata, or run model.annotate(adata, "
            f"key_added={key!r}) with this one."
        )
    return values, gene_sets
