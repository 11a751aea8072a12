"""Integrated gradients of a label's score, from a baseline cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anndata import AnnData
    from torch import Tensor

    from tosica.model import TOSICA
    from tosica.module import TOSICAModule

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
        raise ValueError(f"baseline must be {', '.join(most)} or {last}, not {baseline!r}.")
    if baseline == "reference":
        if not model.module.baseline.any():
            raise ValueError(
                "The model does not know the mean cell of its reference, because the original's "
                "code trained it: pass baseline='mean' for that of the query."
            )
        return model.module.baseline[None]
    n_genes = model.module.embedding.n_genes
    if baseline == "zero":
        return torch.zeros(1, n_genes, device=model.module.device)
    if adata.n_obs == 1:
        raise ValueError("A single cell is its own mean: pass more cells, or baseline='zero'.")
    total = torch.zeros(n_genes, dtype=torch.float64)
    for _, x, _ in model.iter_batches(adata, layer=layer, use_raw=use_raw):
        total += x.sum(0, dtype=torch.float64).cpu()
    return (total / adata.n_obs).float()[None].to(model.module.device)


def default_baseline(model: TOSICA) -> Baseline:
    """The reference's mean where the model knows it, else the query's."""
    return "reference" if model.module.baseline.any() else "mean"


# Cells whose gradients are spread out over the pairs of gene and token at once.
_CELLS_AT_ONCE = 16


class Attributed(NamedTuple):
    """What genes add to the scores of a minibatch of cells, through each token.

    ``pairs`` and ``presence`` are ``(n_cells, n_pairs)``, in the order of the embedding's
    ``genes``. ``pairs`` sums to ``difference``, ``(n_cells,)``, but for the error of the network's
    integral; ``presence`` is the part of genes that the cell expresses more than the baseline.
    ``of_network``, ``(n_cells,)``, is the part of the difference that is the network's.
    """

    pairs: Tensor
    presence: Tensor
    difference: Tensor
    of_network: Tensor


def centered_logits(module: TOSICAModule, vectors: Tensor) -> Tensor:
    """Logits without what is added to all labels alike, which no probability depends on."""
    logits = module.score(vectors)
    return logits - logits.mean(1, keepdim=True)


def integrated_gradients(
    module: TOSICAModule,
    x: Tensor,
    baseline: Tensor,
    target: Tensor,
    *,
    n_steps: int,
    measured: Tensor | None = None,
    measured_baseline: Tensor | None = None,
) -> Attributed:
    """Attribute the difference of the scores of each cell and a baseline.

    The network's part is integrated along the straight line from the baseline to the cell. The
    embedding is linear, so the straight line in expression is one in the vectors of gene sets too:
    one integral serves gene sets and genes. The linear branch is a sum and needs no integral.

    Parameters
    ----------
    module
        The network, in evaluation mode.
    x
        Expression, shape ``(n_cells, n_genes)``.
    baseline
        Expression that cells are compared with, shape ``(1, n_genes)``.
    target
        Label of each cell whose score is explained, shape ``(n_cells,)``.
    n_steps
        Points of the Gauss-Legendre quadrature.
    measured
        Which genes the query has, ``(n_genes,)``; by default all.
    measured_baseline
        Which genes the baseline has. One that is the mean of the query lacks what the query lacks.
    """
    # Here, because its import takes as long as that of scanpy and few calls need it.
    from captum.attr import IntegratedGradients

    embedding = module.embedding
    x, baseline = module.bounded(x), module.bounded(baseline)
    with torch.no_grad():
        vectors = embedding.gene_set_embeddings(x)
        start = embedding.gene_set_embeddings(baseline).expand_as(vectors)
        ends = centered_logits(module, vectors), centered_logits(module, start)
        of_network = (ends[0] - ends[1]).gather(1, target[:, None])[:, 0]
    method = IntegratedGradients(
        lambda points: centered_logits(module, points), multiply_by_inputs=False
    )
    gradients = method.attribute(vectors, start, target=target, n_steps=n_steps).detach()
    with torch.no_grad():
        above = x - baseline
        pairs = _slopes(gradients, embedding.pair_weights(), token_of_pair(module))
        pairs *= above[:, embedding.genes]
        presence = torch.where(above[:, embedding.genes] > 0, pairs, 0)
        difference = of_network
        if module.linear is not None:
            below = module.linear.expression(baseline, measured_baseline)
            above = module.linear.expression(x, measured) - below
            linear = module.linear.contributions(above, target)
            pairs += linear
            presence += torch.where(above[:, embedding.genes] > 0, linear, 0)
            difference = of_network + linear.sum(1)
    return Attributed(pairs, presence, difference, of_network)


def iter_attributions(
    model: TOSICA,
    adata: AnnData,
    baseline: Tensor,
    *,
    label: int | None,
    n_steps: int,
    batch_size: int,
    lacks_genes: bool,
    layer: str | None,
    use_raw: bool,
) -> Iterator[tuple[slice, Tensor, Attributed]]:
    """Attribute the score of one label, or of each cell's best one, minibatch by minibatch.

    Parameters
    ----------
    model
        The model, in evaluation mode.
    adata
        Cells to explain.
    baseline
        Expression that cells are compared with, shape ``(1, n_genes)``.
    label
        Position of the label; ``None`` for the best label of each cell.
    n_steps
        Points of the quadrature.
    batch_size
        Cells at once.
    lacks_genes
        Whether the baseline lacks the genes that the query lacks, as the query's mean does.
    layer, use_raw
        Which matrix of ``adata`` to read.

    Yields
    ------
    Rows of the minibatch, the label of each cell, ``(n_cells,)``, and its attribution.
    """
    module = model.module
    for first, x, measured in model.iter_batches(
        adata, layer=layer, use_raw=use_raw, batch_size=batch_size
    ):
        if label is None:
            with torch.no_grad():
                target = module.annotate(x, attention=False, measured=measured).logits.argmax(1)
        else:
            target = torch.full((len(x),), label, device=x.device)
        found = integrated_gradients(
            module,
            x,
            baseline,
            target,
            n_steps=n_steps,
            measured=measured,
            measured_baseline=measured if lacks_genes else None,
        )
        yield slice(first, first + len(x)), target, found


def token_of_pair(module: TOSICAModule) -> Tensor:
    """Token of each pair of gene and token, ``(n_pairs,)``."""
    indptr = module.embedding.indptr
    tokens = torch.arange(module.embedding.n_tokens, device=indptr.device)
    return torch.repeat_interleave(tokens, indptr[1:] - indptr[:-1])


def sum_by(values: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Sums of the columns that belong to each group, ``(n_rows, n_groups)``."""
    return values.new_zeros(len(values), n_groups).index_add_(1, group, values)


def _slopes(gradients: Tensor, weights: Tensor, token: Tensor) -> Tensor:
    """Mean gradient with respect to each gene through each token, ``(n_cells, n_pairs)``."""
    return torch.cat(
        [
            torch.einsum("npd,pd->np", part[:, token], weights)
            for part in gradients.split(_CELLS_AT_ONCE)
        ]
    )
