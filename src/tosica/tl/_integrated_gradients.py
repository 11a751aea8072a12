"""Integrated gradients of a minibatch, from a label's score to gene sets and genes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from tosica.module import TOSICAModule


class Attributed(NamedTuple):
    """Shares of gene sets and genes in the scores of a minibatch of cells.

    ``tokens`` is ``(n_cells, n_tokens)``, with one more column for the direct path if there is
    one; ``genes`` is ``(n_cells, n_genes)``; both sum to ``difference``, ``(n_cells,)``, but for
    the error of the integral. ``gradients`` is the mean gradient along the path,
    ``(n_cells, n_tokens, embed_dim)``, and ``direct``, ``(n_cells, n_genes)``, what each gene does
    by the direct path.
    """

    tokens: Tensor
    genes: Tensor
    difference: Tensor
    gradients: Tensor
    direct: Tensor | None


def centred_logits(module: TOSICAModule, vectors: Tensor) -> Tensor:
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
    path: tuple[Tensor, Tensor] | None = None,
) -> Attributed:
    """Integrate gradients along the straight line from a baseline to each cell.

    The embedding is linear, so the straight line in expression is one in the vectors of gene sets
    too: one integral serves gene sets and genes.

    Parameters
    ----------
    module
        The network, in evaluation mode.
    x
        Expression, shape ``(n_cells, n_genes)``.
    baseline
        Expression that stands for knowing nothing, shape ``(1, n_genes)``.
    target
        Label of each cell whose score is explained, shape ``(n_cells,)``.
    n_steps
        Points of the Gauss-Legendre quadrature.
    path
        The direct path, if it is not that for all genes.
    """
    # Here, because its import takes as long as that of scanpy and few calls need it.
    from captum.attr import IntegratedGradients

    with torch.no_grad():
        vectors = module.embedding.gene_set_vectors(x)
        start = module.embedding.gene_set_vectors(baseline).expand_as(vectors)
        ends = centred_logits(module, vectors), centred_logits(module, start)
        difference = (ends[0] - ends[1]).gather(1, target[:, None])[:, 0]
    method = IntegratedGradients(
        lambda points: centred_logits(module, points), multiply_by_inputs=False
    )
    gradients = method.attribute(vectors, start, target=target, n_steps=n_steps).detach()
    tokens = (gradients * (vectors - start)).sum(2)
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        (by_gene,) = torch.autograd.grad(
            module.embedding.gene_set_vectors(x), x, grad_outputs=gradients
        )
    above = x.detach() - baseline
    genes = by_gene * above
    path = path or module.direct_path()
    if path is None:
        return Attributed(tokens, genes, difference, gradients, None)
    # Linear, so that its gradient is the same all along the line.
    slope = path[0] - path[0].mean(0)
    direct = slope[target] * above
    tokens = torch.cat([tokens, direct.sum(1, keepdim=True)], 1)
    return Attributed(tokens, genes + direct, difference + direct.sum(1), gradients, direct)
