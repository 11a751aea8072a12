"""The masked embedding as the original code deals it out to tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from tosica.module._embedding import MaskedEmbedding


class MixedEmbedding(MaskedEmbedding):
    r"""A masked embedding whose tokens mix gene sets, for weights that were trained that way.

    The original code numbers the outputs of its embedding in two ways: number :math:`j` of gene
    set :math:`p` is computed at place :math:`p d + j` of a cell's row of :math:`P d` numbers, and
    number :math:`j` of token :math:`t` is read from place :math:`j P + t`. So no token is a gene
    set, unless there is one set or a width of one. Weights, their gradients and
    :meth:`gene_weights` are those of gene sets all the same.

    Parameters
    ----------
    indptr, genes, n_genes, embed_dim
        As in :class:`MaskedEmbedding`.
    """

    def forward(self, x: Tensor, keep: float = 1.0, present: Tensor | None = None) -> Tensor:
        """Embed cells.

        Parameters
        ----------
        x
            Expression, shape ``(n_cells, n_genes)``.
        keep
            Share of the tokens to return. Below 1, a random part of them is drawn anew at each
            call. All gene sets are embedded, because every token has numbers of many of them.

        present
            Not used: such a model has one modality, whose tokens are all there.

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
        """Make tokens of the gene sets' vectors, shape ``(n_cells, n_tokens, embed_dim)`` both."""
        row = vectors.flatten(1)
        return row.view(len(vectors), self.embed_dim, self.n_tokens).transpose(1, 2)
