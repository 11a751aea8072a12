"""What genes do through unannotated tokens, dealt out to the gene sets that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from tosica.module import MaskedEmbedding


class Sharing:
    """Gives gene sets their parts of what genes do through unannotated tokens.

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
    def through(self, gradients: Tensor, above: Tensor) -> Tensor:
        """Attribution of each gene by way of unannotated tokens, shape (n_cells, n_genes).

        Parameters
        ----------
        gradients
            Mean gradient along the path, shape (n_cells, P, embed_dim).
        above
            Cells less the baseline, shape (n_cells, n_genes).
        """
        found = torch.zeros_like(above)
        for p in range(self.n_sets, self.embedding.n_tokens):
            pairs = slice(int(self.embedding.indptr[p]), int(self.embedding.indptr[p + 1]))
            genes = self.embedding.genes[pairs]
            found[:, genes] += gradients[:, p] @ self.embedding.weight[pairs].T * above[:, genes]
        return found

    @torch.no_grad()
    def share_out(self, gene_sets: Tensor, through: Tensor) -> Tensor:
        """Attributions of all tokens, (n_cells, P), after the sharing; their sum stays.

        What belongs to genes that no gene set holds is left to the first unannotated token.
        """
        shared = torch.zeros_like(gene_sets)
        shared[:, : self.n_sets] = gene_sets[:, : self.n_sets] + through @ self._parts
        if self.n_sets < self.embedding.n_tokens:
            shared[:, self.n_sets] = through[:, self.share_of_gene == 0].sum(1)
        return shared
