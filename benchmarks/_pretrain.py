"""Pretraining of a network without labels: hidden genes are reconstructed from its tokens."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tosica.module._module import _hide

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from anndata import AnnData

    import tosica
    from tosica.module import MaskedEmbedding, TOSICAModule

# As in `train`.
BATCH_SIZE, GENE_DROPOUT, TOKEN_DROPOUT = 64, 0.5, 0.75
_WEIGHT_DECAY, _WARMUP = 0.05, 0.25
# Genes that vary less than this are not scaled up further.
_LEAST_DEVIATION = 0.1


class Decoder(nn.Module):
    """Linear decoder of genes, which is thrown away after the pretraining.

    A gene is a linear function of the class token, plus the mean of linear functions of the tokens
    that hold the gene, one function for each pair of token and gene.

    Parameters
    ----------
    embedding
        Embedding of the network.
    """

    genes: Tensor

    def __init__(self, embedding: MaskedEmbedding) -> None:
        super().__init__()
        indptr, genes = embedding.indptr.tolist(), embedding.genes
        width = max(stop - start for start, stop in pairwise(indptr))
        # Padding points behind the last gene.
        padded = torch.full((embedding.n_tokens, width), embedding.n_genes, dtype=torch.int64)
        for row, (start, stop) in zip(padded, pairwise(indptr), strict=True):
            row[: stop - start] = genes[start:stop]
        self.register_buffer("genes", padded)
        self.n_genes = embedding.n_genes
        self.from_class = nn.Linear(embedding.embed_dim, embedding.n_genes)
        self.from_tokens = nn.Parameter(torch.empty(len(padded), embedding.embed_dim, width))
        for weight in (self.from_class.weight, self.from_tokens):
            nn.init.normal_(weight, std=0.02)
        nn.init.zeros_(self.from_class.bias)

    def forward(self, latent: Tensor, tokens: Tensor, kept: Tensor) -> Tensor:
        """Reconstruct genes.

        Parameters
        ----------
        latent
            Class token, shape ``(n_cells, embed_dim)``.
        tokens
            Tokens that were not dropped, shape ``(n_cells, n_kept, embed_dim)``.
        kept
            Their positions, shape ``(n_kept,)``.

        Returns
        -------
        Shape ``(n_cells, n_genes)``.
        """
        parts = torch.bmm(tokens.transpose(0, 1), self.from_tokens[kept])
        genes = self.genes[kept].reshape(-1)
        total = tokens.new_zeros(len(tokens), self.n_genes + 1)
        total = total.index_add(1, genes, parts.transpose(0, 1).reshape(len(tokens), -1))
        number = torch.bincount(genes, minlength=self.n_genes + 1).clamp(min=1)
        return self.from_class(latent) + (total / number)[:, :-1]


def read(model: tosica.TOSICA, cells: Sequence[AnnData]) -> tuple[Tensor, Tensor]:
    """Normalised expression of cells, and which genes were measured in them."""
    parts, measured = [], []
    for adata in cells:
        with warnings.catch_warnings(action="ignore"):
            # As `iter_batches`, which asks for a trained model.
            for _, x, is_measured in model._minibatches(adata, None, False, None):
                every = torch.ones(x.shape[1], dtype=torch.bool)
                parts.append(x)
                measured.append((every if is_measured is None else is_measured).expand(x.shape))
    return torch.cat(parts), torch.cat(measured)


def reconstruct(module: TOSICAModule, decoder: Decoder, x: Tensor) -> Tensor:
    """Reconstruct genes from the class token and a random part of the tokens."""
    n_tokens = module.embedding.n_tokens
    n_kept = max(round((1 - TOKEN_DROPOUT) * n_tokens), 1)
    kept = torch.randperm(n_tokens)[:n_kept].sort().values
    present = torch.zeros(n_tokens, dtype=torch.bool)
    present[kept] = True
    tokens = module.encoder._with_class_token(module.embedding(x, 1.0, present))
    # All layers for all tokens: without labels, tokens are trained as well as the class token.
    for block in module.encoder.blocks:
        tokens = block(tokens)
    tokens = module.encoder.norm(tokens)
    return decoder(tokens[:, 0], tokens[:, 1:], kept)


def pretrain(
    model: tosica.TOSICA,
    cells: Sequence[AnnData],
    *,
    steps: int,
    lr: float = 3e-3,
    standardize: bool = True,
) -> float:
    """Train embedding and encoder to reconstruct the half of the genes that is hidden.

    The loss is the squared error of log-normalised expression of hidden genes, by default divided
    by their standard deviation.

    Parameters
    ----------
    model
        A model that was not trained yet.
    cells
        Cells, with or without labels.
    steps
        Number of minibatches.
    lr
        Highest learning rate of the one-cycle schedule.
    standardize
        Whether genes are divided by their standard deviation.

    Returns
    -------
    Share of the variance of hidden genes that is explained, in the last tenth of the steps.
    """
    module = model.module
    x, measured = read(model, cells)
    number = measured.sum(0).clamp(min=1)
    mean = (x * measured).sum(0) / number
    deviation = (((x - mean) * measured) ** 2).sum(0).div(number).sqrt()
    scale = deviation.clamp(min=_LEAST_DEVIATION) if standardize else torch.ones_like(deviation)
    target = (x - mean) / scale
    decoder = Decoder(module.embedding)
    optimizer = _optimizer([module.embedding, module.encoder, decoder], lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=lr, total_steps=steps, pct_start=_WARMUP
    )
    order = _orders(len(x), min(BATCH_SIZE, len(x)))
    error = variance = 0.0
    module.train()
    for step in range(steps):
        rows = next(order)
        factor = _hide(torch.ones_like(x[rows]), GENE_DROPOUT)
        hidden = (factor == 0) & measured[rows]
        found = reconstruct(module, decoder, x[rows] * factor)
        squares = (found - target[rows])[hidden].square()
        optimizer.zero_grad()
        squares.mean().backward()
        optimizer.step()
        schedule.step()
        if step >= steps - max(steps // 10, 1):
            error += float(squares.detach().sum())
            variance += float(target[rows][hidden].square().sum())
    module.eval()
    return 1 - error / variance


def _orders(n_cells: int, batch_size: int) -> Iterator[Tensor]:
    """Positions of minibatches, each cell once before one is drawn again."""
    while True:
        order = torch.randperm(n_cells)
        yield from order[: n_cells // batch_size * batch_size].split(batch_size)


def _optimizer(trained: list[nn.Module], lr: float) -> torch.optim.AdamW:
    """AdamW, with weight decay for matrices only, as in `train`."""
    named = [pair for part in trained for pair in part.named_parameters()]
    is_matrix = [p.ndim > 1 and not name.endswith("bias") for name, p in named]
    matrices = [p for (_, p), matrix in zip(named, is_matrix, strict=True) if matrix]
    others = [p for (_, p), matrix in zip(named, is_matrix, strict=True) if not matrix]
    groups = [
        {"params": matrices, "weight_decay": _WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, fused=True)
