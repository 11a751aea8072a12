"""The masked embedding: from genes to one vector for each gene set."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

# Padding a set to the largest of its bucket costs memory and arithmetic, one more bucket costs a
# call. Sets in a bucket differ in size by at most this factor.
_BUCKET_RATIO = 1.25
# Below this many genes a bucket of its own does not pay.
_SMALL_SET = 16


class MaskedEmbedding(nn.Module):
    r"""Map genes to gene-set tokens through the genes that each set has.

    .. math:: E_{cp} = \sum_{g \in p} x_{cg} W_{gp} + b_p, \quad W_{gp}, b_p \in \mathbb{R}^d

    This is the linear layer of the paper whose weight is multiplied by a genes × sets mask. Only
    the weights of (gene, set) pairs inside the mask exist here, so memory and arithmetic follow
    their number. Sets of similar size are padded to one size and multiplied together.

    Parameters
    ----------
    indptr
        Shape ``(n_tokens + 1,)``. The genes of token ``p`` are
        ``genes[indptr[p]:indptr[p + 1]]``, as in a CSC matrix.
    genes
        Shape ``(n_pairs,)``. Row of each pair's gene in the expression matrix, ascending within a
        token.
    n_genes
        Number of genes.
    embed_dim
        Width of a token.
    full
        Shape ``(n_tokens,)``, bool. Tokens that a random part of the gene sets always has beside
        it. By default those with every gene.

    Raises
    ------
    ValueError
        If the genes of a token do not ascend.
    """

    indptr: Tensor
    genes: Tensor
    _place: Tensor

    def __init__(
        self,
        indptr: np.ndarray,
        genes: np.ndarray,
        n_genes: int,
        embed_dim: int,
        full: np.ndarray | None = None,
    ) -> None:
        super().__init__()
        token = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        if (np.diff(token * n_genes + genes) <= 0).any():
            raise ValueError("The genes of each token must be in ascending order, each once.")
        self.n_genes = n_genes
        self.n_tokens = len(indptr) - 1
        self.embed_dim = embed_dim
        self._register_plan("indptr", np.asarray(indptr))
        self._register_plan("genes", np.asarray(genes))
        self.weight = nn.Parameter(torch.empty(len(genes), embed_dim))
        self.bias = nn.Parameter(torch.zeros(self.n_tokens, embed_dim))
        if full is None:
            full = np.diff(indptr) == n_genes
        self._plan_buckets(np.asarray(indptr), np.asarray(genes), full)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights so that a token's variance does not depend on the size of its set.

        A token of a single gene is a multiple of one vector, and the encoder's first norm leaves of
        that multiple nothing but its sign. Such tokens start with a bias, beside which it shows and
        which takes half of the variance.
        """
        sizes = self.indptr[1:] - self.indptr[:-1]
        bound = torch.repeat_interleave(sizes.to(self.weight.dtype).rsqrt(), sizes)
        with torch.no_grad():
            self.weight.uniform_(-1, 1).mul_(bound[:, None])
            self.bias.zero_()
            single = sizes == 1
            if single.any():
                half = 0.5**0.5
                self.bias[single] = torch.empty_like(self.bias[single]).uniform_(-half, half)
                self.weight[torch.repeat_interleave(single, sizes)] *= half

    def start_from(self, pair_weights: np.ndarray) -> None:
        """Let each token begin as the weighted sum of its genes, along a direction of its own.

        The variance of a token stays what :meth:`reset_parameters` gives it. Pairs without a weight
        keep what they were drawn.

        Parameters
        ----------
        pair_weights
            Shape ``(n_pairs,)``, in the order of ``genes``; NaN where a pair has no weight.
        """
        given = torch.as_tensor(pair_weights, dtype=self.weight.dtype, device=self.weight.device)
        sizes = self.indptr[1:] - self.indptr[:-1]
        token = torch.repeat_interleave(torch.arange(self.n_tokens, device=given.device), sizes)
        has = ~given.isnan() & (sizes[token] > 0)
        square = given.new_zeros(self.n_tokens).index_add(0, token[has], given[has] ** 2)
        number = torch.bincount(token[has], minlength=self.n_tokens)
        # The weighted part of a token has the share of its variance that its genes have.
        least = torch.finfo(given.dtype).tiny
        part = (number / sizes.clamp(min=1) / square.clamp(min=least)).sqrt()
        has &= square[token] > 0
        direction = torch.empty_like(self.bias).uniform_(-1, 1)
        with torch.no_grad():
            self.weight[has] = (given * part[token])[has, None] * direction[token[has]]

    def _plan_buckets(self, indptr: np.ndarray, genes: np.ndarray, full: np.ndarray) -> None:
        """Group tokens by size; for each group, remember which genes and which weights it takes.

        Padding points to a row of zeros behind the last gene, so the weight that it meets does
        not matter. Full tokens are groups of their own, the last ones.
        """
        sizes = np.diff(indptr)
        by_size = np.lexsort((sizes, full))
        self._n_buckets = 0
        self._is_full: list[bool] = []
        start = 0
        while start < len(by_size):
            limit = max(int(sizes[by_size[start]] * _BUCKET_RATIO), _SMALL_SET)
            is_full = full[by_size[start]]
            stop = start
            while (
                stop < len(by_size)
                and sizes[by_size[stop]] <= limit
                and full[by_size[stop]] == is_full
            ):
                stop += 1
            tokens = by_size[start:stop]
            width = max(int(sizes[tokens[-1]]), 1)
            gene_rows = np.full((len(tokens), width), self.n_genes, dtype=np.int64)
            pair_rows = np.zeros((len(tokens), width), dtype=np.int64)
            for row, p in enumerate(tokens):
                gene_rows[row, : sizes[p]] = genes[indptr[p] : indptr[p + 1]]
                pair_rows[row, : sizes[p]] = np.arange(indptr[p], indptr[p + 1])
            self._register_plan(f"_tokens_{self._n_buckets}", tokens)
            self._register_plan(f"_genes_{self._n_buckets}", gene_rows)
            self._register_plan(f"_pairs_{self._n_buckets}", pair_rows)
            self._n_buckets += 1
            self._is_full.append(bool(is_full))
            start = stop
        self._register_plan("_place", np.argsort(by_size))

    def _register_plan(self, name: str, values: np.ndarray) -> None:
        # Not saved: the mask comes with the model's registry, and a later version may plan anew.
        self.register_buffer(name, torch.as_tensor(values, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor, keep: float = 1.0, present: Tensor | None = None) -> Tensor:
        """Embed cells.

        Parameters
        ----------
        x
            Expression, shape ``(n_cells, n_genes)``.
        keep
            Share of the gene sets to embed. Below 1, a random part of them is drawn anew at each
            call, evenly over their sizes; full tokens are always there. The tokens then come in
            no particular order.
        present
            Shape ``(n_tokens,)``, bool. Tokens to embed at all; by default every one.

        Returns
        -------
        Tokens, shape ``(n_cells, n_tokens, embed_dim)``, in the order of the mask unless some were
        left out at random.
        """
        plan = [self._bucket(i, keep, present) for i in range(self._n_buckets)]
        if present is not None:
            plan = [bucket for bucket in plan if len(bucket[0])]
        # One lookup for all buckets: the gradient of each would be as large as all weights.
        by_gene = torch.cat([x.T, x.new_zeros(1, x.shape[0])])
        values = by_gene.index_select(0, torch.cat([genes.reshape(-1) for _, genes, _ in plan]))
        weights = self.weight.index_select(0, torch.cat([p.reshape(-1) for _, _, p in plan]))
        biases = self.bias.index_select(0, torch.cat([tokens for tokens, _, _ in plan]))
        # Split, not sliced: the gradients of the parts are then put side by side in one go.
        n_pairs = [genes.numel() for _, genes, _ in plan]
        n_tokens = [len(tokens) for tokens, _, _ in plan]
        parts = [
            torch.baddbmm(
                bias[:, None],
                value.view(*genes.shape, -1).transpose(1, 2),
                weight.view(*genes.shape, -1),
            )
            for (_, genes, _), value, weight, bias in zip(
                plan,
                values.split(n_pairs),
                weights.split(n_pairs),
                biases.split(n_tokens),
                strict=True,
            )
        ]
        embedded = torch.cat(parts)
        if keep >= 1:
            place = self._place
            if present is not None:
                place = torch.cat([tokens for tokens, _, _ in plan]).argsort()
            embedded = embedded.index_select(0, place)
        return embedded.transpose(0, 1)

    def gene_set_vectors(self, x: Tensor) -> Tensor:
        """Embed every gene set, in the order of the mask; shapes as in :meth:`forward`."""
        return MaskedEmbedding.forward(self, x)

    def deal(self, vectors: Tensor) -> Tensor:
        """Make tokens of what :meth:`gene_set_vectors` gives: here they are the tokens."""
        return vectors

    def _bucket(self, i: int, keep: float, present: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens of a bucket, and of each its genes and its weights; a random part if asked."""
        tokens, genes, pairs = (getattr(self, f"_{k}_{i}") for k in ("tokens", "genes", "pairs"))
        if present is not None:
            rows = present[tokens].nonzero().reshape(-1)
            tokens, genes, pairs = tokens[rows], genes[rows], pairs[rows]
        if keep >= 1 or self._is_full[i] or not len(tokens):
            return tokens, genes, pairs
        n_kept = max(1, round(keep * len(tokens)))
        drawn = torch.randperm(len(tokens), device=tokens.device)[:n_kept]
        return tokens[drawn], genes[drawn], pairs[drawn]

    def gene_weights(self, how: str) -> Tensor:
        """Reduce the weights of each (gene, set) pair over the width of a token.

        Parameters
        ----------
        how
            ``"mean"`` or ``"max"`` of the absolute weights.

        Returns
        -------
        Shape ``(n_pairs,)``, in the order of ``genes``.
        """
        size = self.weight.detach().abs()
        return size.mean(1) if how == "mean" else size.amax(1)
