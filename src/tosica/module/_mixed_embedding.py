"""The masked embedding of the original code, whose tokens mix gene sets."""

from __future__ import annotations

import torch
from torch import Tensor

from tosica.module._embedding import MaskedEmbedding


class MixedEmbedding(MaskedEmbedding):
    r"""Masked embedding whose tokens mix gene sets, for weights trained by the original code.

    The original code reshapes the output of its embedding in two ways: number :math:`j` of gene
    set :math:`p` is written to position :math:`p d + j` of a cell's :math:`P d` numbers, and number
    :math:`j` of token :math:`t` is read from position :math:`j P + t`. So no token is a gene set,
    unless there is one gene set or the width is one. Weights, their gradients and
    :meth:`gene_weights` still belong to gene sets.

    Parameters
    ----------
    indptr, genes, n_genes, embed_dim
        As in :class:`MaskedEmbedding`.
    """

    def forward(self, x: Tensor, keep: float = 1.0, present: Tensor | None = None) -> Tensor:
        """Compute the tokens of cells.

        Parameters
        ----------
        x
            Expression, shape ``(n_cells, n_genes)``.
        keep
            Share of the tokens to return. Below 1, a random part of them is drawn anew at each
            call. All gene sets are embedded, because every token has numbers of many of them.
        present
            Ignored: such a model has one modality.

        Returns
        -------
        Tokens, shape ``(n_cells, n_tokens, embed_dim)``.
        """
        tokens = self.to_tokens(self.gene_set_embeddings(x))
        if keep >= 1:
            return tokens
        n_kept = max(1, round(keep * self.n_tokens))
        drawn = torch.randperm(self.n_tokens, device=tokens.device)[:n_kept]
        return tokens.index_select(1, drawn)

    def to_tokens(self, vectors: Tensor) -> Tensor:
        """Tokens from embeddings of gene sets; both ``(n_cells, n_tokens, embed_dim)``."""
        row = vectors.flatten(1)
        return row.view(len(vectors), self.embed_dim, self.n_tokens).transpose(1, 2)
