"""What a model left in a query, checked against the model that is to explain it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosica._annotated import read_attention
from tosica.model._modalities import is_joint

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica.model import TOSICA


def read_annotation(adata: AnnData, model: TOSICA, key: str) -> tuple[NDArray, list[str]]:
    """Attention and gene set names that this very model wrote.

    Parameters
    ----------
    adata
        Annotated query.
    model
        The model that annotated it.
    key
        ``key_added`` of ``model.annotate``.

    Returns
    -------
    As :func:`tosica._annotated.read_attention`.

    Raises
    ------
    KeyError, TypeError, ValueError
        As there.
    ValueError
        If the model has several modalities, or another model annotated ``adata``.
    """
    if is_joint(model.registry_):
        names = ", ".join(map(repr, model.registry_["setup_args"]["modalities"].values()))
        raise ValueError(
            f"The model was set up with a MuData ({names}), and this reads models of an AnnData "
            "only: for what such a model looks at, use tosica.tl.rank_gene_sets, or explain a "
            "model of one modality."
        )
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
