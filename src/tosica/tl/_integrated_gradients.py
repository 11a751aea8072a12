"""Integrated gradients of a label's score, from a baseline cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import torch

from tosica._logging import without_query_lines
from tosica._parallel import thread_map, thread_pool
from tosica._progress import progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from anndata import AnnData
    from numpy.typing import NDArray
    from torch import Tensor

    from tosica.model import TOSICA
    from tosica.model._query import Minibatch
    from tosica.module import TOSICAModule

Baseline: TypeAlias = Literal["reference", "mean", "zero"]

N_STEPS = 24
# Cells times points of the path in a minibatch: fits the memory of a small machine.
_POINTS_CPU, _POINTS_ACCELERATOR = 200, 8_000
# Cells whose gradients are spread out over the pairs of gene and token at once.
_CELLS_AT_ONCE = 16


def baseline_expression(
    model: TOSICA, adata: AnnData, baseline: Baseline, *, layer: str | None, use_raw: bool
) -> Tensor:
    """Expression that cells are compared with, shape ``(1, n_genes)``.

    Raises
    ------
    ValueError
        If ``baseline`` is unknown, the model does not have the mean of its reference, or the query
        whose mean is asked for has a single cell.
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
    with without_query_lines():
        for _, x, _ in model.iter_batches(adata, layer=layer, use_raw=use_raw):
            total += x.sum(0, dtype=torch.float64).cpu()
    return (total / adata.n_obs).float()[None].to(model.module.device)


def default_baseline(model: TOSICA) -> Baseline:
    """Choose the mean of the reference if the model has it, else that of the query."""
    return "reference" if model.module.baseline.any() else "mean"


class Attribution(NamedTuple):
    """What genes add to the scores of a minibatch of cells, through each token."""

    pairs: Tensor
    """Each pair of gene and token, ``(n_cells, n_pairs)``, in the order of the embedding's
    ``genes``. Sums to ``difference`` but for the error of the integral."""
    presence: Tensor
    """The same, 0 for genes that the cell expresses no more than the baseline."""
    difference: Tensor
    """Score of the cell less that of the baseline, ``(n_cells,)``."""
    network: Tensor
    """The network's part of the difference, ``(n_cells,)``; the rest is the linear branch's."""


def centered_logits(module: TOSICAModule, vectors: Tensor) -> Tensor:
    """Logits less their mean over the labels, which no probability depends on."""
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
) -> Attribution:
    """Attribute the difference of the scores of each cell and a baseline.

    The network's part is integrated along the straight line from the baseline to the cell. The
    embedding is linear, so this is a straight line in the embeddings of gene sets, too, and one
    integral serves gene sets and genes. The linear branch is a sum and needs no integral.

    Parameters
    ----------
    module
        The network, in evaluation mode.
    x
        Expression, shape ``(n_cells, n_genes)``.
    baseline
        Expression that cells are compared with, shape ``(1, n_genes)``.
    target
        Code of the label whose score is explained, for each cell, shape ``(n_cells,)``.
    n_steps
        Points of the Gauss-Legendre quadrature.
    measured
        Which genes the query has, ``(n_genes,)``; by default all.
    measured_baseline
        Which genes the baseline has, ``(n_genes,)``; by default all.
    """
    # Here, because its import takes as long as that of scanpy and few calls need it.
    from captum.attr import IntegratedGradients

    embedding = module.embedding
    x, baseline = module.bounded(x), module.bounded(baseline)
    with torch.no_grad():
        vectors = embedding.gene_set_embeddings(x)
        start = embedding.gene_set_embeddings(baseline).expand_as(vectors)
        ends = centered_logits(module, vectors), centered_logits(module, start)
        network = (ends[0] - ends[1]).gather(1, target[:, None])[:, 0]
    method = IntegratedGradients(
        lambda points: centered_logits(module, points), multiply_by_inputs=False
    )
    gradients = method.attribute(vectors, start, target=target, n_steps=n_steps).detach()
    with torch.no_grad():
        above = x - baseline
        pairs = _slopes(gradients, embedding.pair_weights(), token_of_pair(module))
        pairs *= above[:, embedding.genes]
        presence = torch.where(above[:, embedding.genes] > 0, pairs, 0)
        difference = network
        if module.linear is not None:
            below = module.linear.expression(baseline, measured_baseline)
            above = module.linear.expression(x, measured) - below
            linear = module.linear.contributions(above, target)
            pairs += linear
            presence += torch.where(above[:, embedding.genes] > 0, linear, 0)
            difference = network + linear.sum(1)
    return Attribution(pairs, presence, difference, network)


def iter_attributions(
    model: TOSICA,
    adata: AnnData,
    *,
    baseline: Baseline,
    rows: NDArray[np.integer] | None = None,
    target: str | None = None,
    n_steps: int = N_STEPS,
    layer: str | None = None,
    use_raw: bool = False,
    bar: str = "attribute",
) -> Iterator[tuple[slice, Tensor, Attribution]]:
    """Attribute the score of one label, or of each cell's best one, minibatch by minibatch.

    Parameters
    ----------
    model
        The trained model, of one modality.
    adata
        The query.
    baseline
        What cells are compared with; ``"mean"`` is that of all cells of ``adata``.
    rows
        Positions of the cells to explain; by default all.
    target
        Label to explain; ``None`` for the best label of each cell.
    n_steps
        Points of the quadrature.
    layer, use_raw
        Which matrix of ``adata`` to read.
    bar
        What the progress bar says before its figures.

    Yields
    ------
    Slice of ``rows`` that the minibatch holds, the code of each cell's label, ``(n_cells,)``, and
    the cells' attribution.
    """
    module = model.module
    start = baseline_expression(model, adata, baseline, layer=layer, use_raw=use_raw)
    n_points = _POINTS_CPU if module.device.type == "cpu" else _POINTS_ACCELERATOR
    label = None if target is None else model.labels.index(target)

    def explain(minibatch: Minibatch) -> tuple[slice, Tensor, Attribution]:
        first, x, measured = minibatch
        if label is None:
            with torch.no_grad():
                codes = module.annotate(x, attention=False, measured=measured).logits.argmax(1)
        else:
            codes = torch.full((len(x),), label, device=x.device)
        attribution = integrated_gradients(
            module,
            x,
            start,
            codes,
            n_steps=n_steps,
            measured=measured,
            # The query's mean lacks the genes that the query lacks.
            measured_baseline=measured if baseline == "mean" else None,
        )
        return slice(first, first + len(x)), codes, attribution

    cells = adata if rows is None else adata[rows]
    with without_query_lines(), thread_pool(module.device), progress(cells.n_obs, bar) as step:
        minibatches = model.iter_batches(
            cells, layer=layer, use_raw=use_raw, batch_size=max(n_points // n_steps, 1)
        )
        for found in thread_map(explain, minibatches):
            yield found
            step.update(len(found[1]))


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
