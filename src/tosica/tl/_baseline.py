"""The expression that attribution compares cells with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch

if TYPE_CHECKING:
    from anndata import AnnData
    from torch import Tensor

    from tosica.model import TOSICA

Baseline: TypeAlias = Literal["reference", "mean", "zero"]


def baseline_expression(
    model: TOSICA, adata: AnnData, baseline: Baseline, *, layer: str | None, use_raw: bool
) -> Tensor:
    """Mean of the reference's or the query's cells, or no expression; ``(1, n_genes)``.

    Raises
    ------
    ValueError
        If ``baseline`` is unknown, or that of the reference is not in the model, or a mean is asked
        for of a single cell.
    """
    if baseline not in get_args(Baseline):
        *most, last = map(repr, get_args(Baseline))
        msg = f"baseline must be {', '.join(most)} or {last}, not {baseline!r}."
        raise ValueError(msg)
    if baseline == "reference":
        if not model.module.baseline.any():
            msg = (
                "The model does not know the mean cell of its reference, because the original's "
                "code trained it: pass baseline='mean' for that of the query."
            )
            raise ValueError(msg)
        return model.module.baseline[None]
    n_genes = model.module.embedding.n_genes
    if baseline == "zero":
        return torch.zeros(1, n_genes, device=model.module.device)
    if adata.n_obs == 1:
        msg = "A single cell is its own mean: pass more cells, or baseline='zero'."
        raise ValueError(msg)
    total = torch.zeros(n_genes, dtype=torch.float64)
    for _, x, _ in model._minibatches(adata, layer=layer, use_raw=use_raw, batch_size=None):
        total += x.sum(0, dtype=torch.float64).cpu()
    return (total / adata.n_obs).float()[None].to(model.module.device)


def default_baseline(model: TOSICA) -> Baseline:
    """The reference's mean where the model knows it, else the query's."""
    return "reference" if model.module.baseline.any() else "mean"
