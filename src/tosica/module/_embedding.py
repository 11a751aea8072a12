"""Masked embedding: one token for each gene set, from the genes of the set."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

# Gene sets in a bucket differ in size by at most this factor. A higher one costs
# padding, a lower one more calls.
_BUCKET_RATIO = 1.25
# Gene sets up to this size share one bucket.
_SMALL_SET = 16


class MaskedEmbedding(nn.Module):
    r"""Map genes to gene-set tokens through the genes that each set has.

    .. math:: E_{cp} = \sum_{g \in p} x_{cg} W_{gp} + b_p, \quad W_{gp}, b_p \in \mathbb{R}^d

    The paper multiplies the weight of a linear layer by a genes × gene sets mask. Here
    only the weights inside the mask exist, so memory and time grow with their number.
    Gene sets of similar size are padded to one size and multiplied together: a
    :class:`Bucket`.

    Parameters
    ----------
    indptr
        Shape ``(n_tokens + 1,)``. The genes of token ``p`` are
        ``genes[indptr[p]:indptr[p + 1]]``, as in a CSC matrix.
    genes
        Shape ``(n_pairs,)``. Row of each pair's gene in the expression matrix, ascending
        within a token.
    n_genes
        Number of genes.
    embed_dim
        Width of a token.
    no_dropout
        Shape ``(n_tokens,)``, bool. Tokens that token dropout never leaves out. By default
        those with every gene.

    Raises
    ------
    ValueError
        If the genes of a token do not ascend.
    """

    weight: nn.Parameter
    """Weights of the (gene, set) pairs in the order of ``genes``, ``(n_pairs, embed_dim)``."""
    bias: nn.Parameter
    """Shape ``(n_tokens, embed_dim)``."""
    indptr: Tensor
    genes: Tensor
    _token_of_pair: Tensor
    _bucket_order: Tensor

    def __init__(
        self,
        indptr: np.ndarray,
        genes: np.ndarray,
        n_genes: int,
        embed_dim: int,
        no_dropout: np.ndarray | None = None,
    ) -> None:
        super().__init__()
        sizes = np.diff(indptr)
        token_of_pair = np.repeat(np.arange(len(sizes)), sizes)
        if (np.diff(token_of_pair * n_genes + genes) <= 0).any():
            raise ValueError(
                "The genes of each token must be in ascending order, each once."
            )
        if no_dropout is None:
            no_dropout = sizes == n_genes
        self.n_genes = n_genes
        self.n_tokens = len(sizes)
        self.embed_dim = embed_dim
        buckets = [
            Bucket(tokens, indptr, genes, n_genes, bool(no_dropout[tokens[0]]))
            for tokens in _group_by_size(sizes, no_dropout)
        ]
        self.buckets = nn.ModuleList(buckets)
        tokens = torch.cat([bucket.tokens for bucket in buckets])
        # The mask is saved in the registry.
        for name, values in (
            ("indptr", torch.as_tensor(indptr, dtype=torch.int64)),
            ("genes", torch.as_tensor(genes, dtype=torch.int64)),
            ("_token_of_pair", torch.from_numpy(token_of_pair)),
            ("_bucket_order", tokens.argsort()),
        ):
            self.register_buffer(name, values, persistent=False)
        self.weight = nn.Parameter(torch.empty(len(genes), embed_dim))
        self.bias = nn.Parameter(torch.empty(self.n_tokens, embed_dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw weights so that a token's variance does not depend on the size of its gene set.

        A token of a single gene is a multiple of one vector, of which the encoder's first
        layer norm keeps the sign only. Such tokens start with a bias as well, which has
        half of the variance.
        """
        sizes = self.indptr.diff()
        bound = sizes.to(self.bias.dtype).rsqrt()
        self.weight.uniform_(-1, 1).mul_(bound[self._token_of_pair, None])
        self.bias.zero_()
        is_single = sizes == 1
        if is_single.any():
            root_half = 0.5**0.5
            bias = torch.empty_like(self.bias[is_single])
            self.bias[is_single] = bias.uniform_(-root_half, root_half)
            self.weight[is_single[self._token_of_pair]] *= root_half

    @torch.no_grad()
    def start_from(self, pair_weights: np.ndarray) -> None:
        """Initialize each token as the weighted sum of its genes, times a random vector.

        The variance of a token is the one that :meth:`reset_parameters` gives it. Pairs
        without a weight keep their random weights.

        Parameters
        ----------
        pair_weights
            Shape ``(n_pairs,)``, in the order of ``genes``; NaN where a pair has no weight.
        """
        weights = torch.as_tensor(pair_weights).to(self.bias)
        has_weight = ~weights.isnan()
        token = self._token_of_pair
        n_weights = torch.bincount(token[has_weight], minlength=self.n_tokens)
        squares = weights.new_zeros(self.n_tokens).index_add(
            0, token[has_weight], weights[has_weight] ** 2
        )
        has_weight &= squares[token] > 0
        # Genes with a weight have their share of a token's variance.
        share = n_weights / self.indptr.diff().clamp(min=1)
        scale = (share / squares.clamp(min=torch.finfo(weights.dtype).tiny)).sqrt()
        direction = torch.empty_like(self.bias).uniform_(-1, 1)
        scaled = (weights * scale[token])[has_weight, None]
        self.weight[has_weight] = scaled * direction[token[has_weight]]

    @torch.no_grad()
    def init_from_linear(
        self, scores: Tensor, x: Tensor, mean: Tensor, *, noise: float = 0.3
    ) -> None:
        """Initialize each token from the weights of a linear classifier of the labels.

        A token starts as the sum, over the labels, of the label's score through this token
        times a random vector of the label. Scores are those of a cell minus those of the
        mean cell. So the tokens separate the labels before training begins, and the
        encoder learns which tokens to attend to. Random biases, and random weights on a
        smaller scale, are added, so that tokens with equal scores differ. The mean variance
        of a token is the one that :meth:`reset_parameters` gives.

        Parameters
        ----------
        scores
            Weights of a linear classifier, shape ``(n_labels, n_pairs)``, in the order of
            ``genes``.
        x
            Expression of some cells, shape ``(n_cells, n_genes)``.
        mean
            Mean expression, shape ``(n_genes,)``.
        noise
            Scale of the random weights that are added.
        """
        scores = scores.to(self.bias)
        scores = scores - scores.mean(0)
        token = self._token_of_pair
        above_mean = (x - mean).to(scores)[:, self.genes]
        variance = scores.new_zeros(())
        for label_scores in scores:
            token_scores = above_mean.new_zeros(len(x), self.n_tokens).index_add_(
                1, token, above_mean * label_scores
            )
            variance = variance + token_scores.square().mean()
        if not variance > 0:
            return
        directions = _draw_directions(scores, self.embed_dim)
        scale = (self.embed_dim / (6 * variance)).sqrt()
        weights = scores.T @ directions.T * scale
        weights += noise * self.weight
        offset = torch.zeros_like(self.bias).index_add_(
            0, token, mean.to(scores)[self.genes, None] * weights
        )
        root_half = 0.5**0.5
        self.bias.uniform_(-root_half, root_half).sub_(offset)
        self.weight.copy_(weights)

    def forward(
        self, x: Tensor, keep: float = 1.0, present: Tensor | None = None
    ) -> Tensor:
        """Compute the tokens of cells.

        Parameters
        ----------
        x
            Expression, shape ``(n_cells, n_genes)``.
        keep
            Share of the gene sets to embed. Below 1, a random subset of them is drawn anew
            at each call, evenly over their sizes, beside the tokens without dropout. The
            order of the tokens is then random.
        present
            Shape ``(n_tokens,)``, bool. Tokens to embed at all; by default every one.

        Returns
        -------
        Tokens, shape ``(n_cells, n_tokens, embed_dim)``, in the order of the mask unless
        some were left out at random.
        """
        subsets = [bucket(keep, present) for bucket in self.buckets]
        subsets = [subset for subset in subsets if len(subset[0])]
        if torch.is_autocast_enabled(x.device.type):
            # The products would round the values anyway; rounded ones are looked up faster.
            x = x.to(torch.get_autocast_dtype(x.device.type))
        # Padding points to a row of zeros behind the last gene.
        by_gene = torch.cat([x.T, x.new_zeros(1, len(x))])
        # One lookup for all buckets: a call costs as much as a small bucket.
        all_tokens = torch.cat([tokens for tokens, _, _ in subsets])
        all_genes = torch.cat([genes.flatten() for _, genes, _ in subsets])
        all_pairs = torch.cat([pairs.flatten() for _, _, pairs in subsets])
        # torch.split, because the gradients of slices would be added one by one.
        n_tokens = [len(tokens) for tokens, _, _ in subsets]
        n_padded = [genes.numel() for _, genes, _ in subsets]
        biases = self.bias.index_select(0, all_tokens).split(n_tokens)
        values = by_gene.index_select(0, all_genes).split(n_padded)
        weights = self.weight.index_select(0, all_pairs).split(n_padded)
        embedded = []
        for n, bias, value, weight in zip(
            n_tokens, biases, values, weights, strict=True
        ):
            expression = value.view(n, -1, len(x)).transpose(1, 2)
            padded_weight = weight.view(n, -1, self.embed_dim)
            embedded.append(torch.baddbmm(bias[:, None], expression, padded_weight))
        tokens_first = torch.cat(embedded)
        if keep >= 1:
            order = self._bucket_order if present is None else all_tokens.argsort()
            tokens_first = tokens_first.index_select(0, order)
        return tokens_first.transpose(0, 1)

    @torch.no_grad()
    def gene_weights(self, how: Literal["mean", "max"]) -> Tensor:
        """Reduce the weights of each (gene, set) pair over the width of a token.

        Parameters
        ----------
        how
            ``"mean"`` or ``"max"`` of the absolute weights.

        Returns
        -------
        Shape ``(n_pairs,)``, in the order of ``genes``.
        """
        absolute = self.weight.abs()
        return absolute.mean(1) if how == "mean" else absolute.amax(1)


class Bucket(nn.Module):
    """Tokens of similar size, whose genes are padded to one number.

    Parameters
    ----------
    tokens
        Tokens of the bucket, shape ``(n_tokens,)``.
    indptr, genes, n_genes
        Genes of all tokens, as in :class:`MaskedEmbedding`.
    no_dropout
        Whether token dropout never leaves these tokens out.
    """

    tokens: Tensor
    genes: Tensor
    """Gene of each pair, ``n_genes`` in the padding, ``(n_tokens, width)``."""
    pairs: Tensor
    """Position of each pair, 0 in the padding, ``(n_tokens, width)``."""

    def __init__(
        self,
        tokens: np.ndarray,
        indptr: np.ndarray,
        genes: np.ndarray,
        n_genes: int,
        no_dropout: bool,
    ) -> None:
        super().__init__()
        self.no_dropout = no_dropout
        sizes = np.diff(indptr)[tokens, None]
        columns = np.arange(max(sizes.max(), 1))
        is_pair = columns < sizes
        pairs = np.where(is_pair, indptr[tokens, None] + columns, 0)
        for name, values in (
            ("tokens", tokens),
            ("genes", np.where(is_pair, genes[pairs], n_genes)),
            ("pairs", pairs),
        ):
            # Not saved: a later version may have other buckets.
            table = torch.as_tensor(values, dtype=torch.int64)
            self.register_buffer(name, table, persistent=False)

    def forward(
        self, keep: float, present: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw tokens, as :meth:`MaskedEmbedding.forward` asks for them.

        Returns
        -------
        ``tokens``, ``genes`` and ``pairs`` of the tokens.
        """
        rows = torch.arange(len(self.tokens), device=self.tokens.device)
        if present is not None:
            rows = rows[present[self.tokens]]
        if keep < 1 and len(rows) and not self.no_dropout:
            n_kept = max(1, round(keep * len(rows)))
            rows = rows[torch.randperm(len(rows), device=rows.device)[:n_kept]]
        return self.tokens[rows], self.genes[rows], self.pairs[rows]


def _draw_directions(scores: Tensor, width: int) -> Tensor:
    """Draw a direction for each label, orthogonal if there is room, ``(width, n_labels)``."""
    directions = torch.randn(width, len(scores), device=scores.device).to(scores)
    if len(scores) <= width:
        return torch.linalg.qr(directions)[0]
    return directions / directions.norm(dim=0)


def _group_by_size(sizes: np.ndarray, no_dropout: np.ndarray) -> list[np.ndarray]:
    """Group tokens of similar size; tokens without dropout have groups of their own, the last ones."""
    groups: list[list[int]] = []
    for token in np.lexsort((sizes, no_dropout)):
        if groups:
            smallest = groups[-1][0]
            largest_size = max(int(sizes[smallest] * _BUCKET_RATIO), _SMALL_SET)
            fits = sizes[token] <= largest_size
            if fits and no_dropout[token] == no_dropout[smallest]:
                groups[-1].append(token)
                continue
        groups.append([token])
    return [np.array(group) for group in groups]


class MixedEmbedding(MaskedEmbedding):
    r"""Masked embedding whose tokens mix gene sets, for weights trained by the original code.

    The original code reshapes the output of its embedding in two ways: number :math:`j` of
    gene set :math:`p` is written to position :math:`p d + j` of a cell's :math:`P d`
    numbers, and number :math:`j` of token :math:`t` is read from position
    :math:`j P + t`. So no token is a gene set, unless there is one gene set or the width is
    one. Weights, their gradients and :meth:`gene_weights` still belong to gene sets.

    Parameters
    ----------
    indptr, genes, n_genes, embed_dim
        As in :class:`MaskedEmbedding`.
    """

    def forward(
        self, x: Tensor, keep: float = 1.0, present: Tensor | None = None
    ) -> Tensor:
        """Compute the tokens of cells.

        Parameters
        ----------
        x
            Expression, shape ``(n_cells, n_genes)``.
        keep
            Share of the tokens to return. Below 1, a random subset of them is drawn anew at
            each call. All gene sets are embedded, because every token has numbers of many
            of them.
        present
            Ignored: such a model has one modality.

        Returns
        -------
        Tokens, shape ``(n_cells, n_tokens, embed_dim)``.
        """
        by_set = super().forward(x).flatten(1)
        tokens = by_set.view(len(x), self.embed_dim, self.n_tokens).transpose(1, 2)
        if keep >= 1:
            return tokens
        n_kept = max(1, round(keep * self.n_tokens))
        subset = torch.randperm(self.n_tokens, device=tokens.device)[:n_kept]
        return tokens.index_select(1, subset)
