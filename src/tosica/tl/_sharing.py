"""What genes do by ways that are no gene set, dealt out to the gene sets that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from tosica.module import MaskedEmbedding
    from tosica.tl._integrated_gradients import Attributed


class Sharing:
    """Gives gene sets their parts of what genes do through unannotated tokens and directly.

    Parameters
    ----------
    embedding
        Embedding with P tokens.
    n_sets
        Number of gene sets, P−m; they come before the unannotated tokens.
    """

    share_of_gene: Tensor
    """One over the number of gene sets that hold a gene, 0 if none does; shape (n_genes,)."""

    def __init__(self, embedding: MaskedEmbedding, n_sets: int) -> None:
        self.embedding = embedding
        self.n_sets = n_sets
        genes = embedding.genes[: int(embedding.indptr[n_sets])]
        sizes = embedding.indptr[1 : n_sets + 1] - embedding.indptr[:n_sets]
        token = torch.repeat_interleave(torch.arange(n_sets, device=genes.device), sizes)
        n_holders = torch.bincount(genes, minlength=embedding.n_genes)
        self.share_of_gene = torch.where(n_holders > 0, 1 / n_holders.clamp(min=1), 0.0)
        self._parts = torch.zeros(embedding.n_genes, n_sets, device=genes.device)
        self._parts[genes, token] = self.share_of_gene[genes]

    @torch.no_grad()
    def through(self, attributed: Attributed, above: Tensor) -> Tensor:
        """Attribution of each gene by all ways that are no gene set, shape (n_cells, n_genes).

        Parameters
        ----------
        attributed
            What :func:`integrated_gradients` gives.
        above
            Cells less the baseline, shape (n_cells, n_genes).
        """
        gradients = attributed.gradients
        found = torch.zeros_like(above) if attributed.direct is None else attributed.direct.clone()
        weights = self.embedding.pair_weights()
        for p in range(self.n_sets, self.embedding.n_tokens):
            pairs = slice(int(self.embedding.indptr[p]), int(self.embedding.indptr[p + 1]))
            genes = self.embedding.genes[pairs]
            found[:, genes] += gradients[:, p] @ weights[pairs].T * above[:, genes]
        return found

    @torch.no_grad()
    def share_out(self, tokens: Tensor, through: Tensor) -> Tensor:
        """Attributions of all ways after the sharing, shape of ``tokens``; their sum stays.

        What belongs to genes that no gene set holds is left to the first way that is none.
        """
        shared = torch.zeros_like(tokens)
        shared[:, : self.n_sets] = tokens[:, : self.n_sets] + through @ self._parts
        if self.n_sets < tokens.shape[1]:
            shared[:, self.n_sets] = through[:, self.share_of_gene == 0].sum(1)
        return shared
