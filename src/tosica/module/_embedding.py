"""Masked embedding: one token for each gene set, from the genes of the set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence

# Gene sets in a bucket differ in size by at most this factor. A higher one costs padding, a lower
# one more calls.
_BUCKET_RATIO = 1.25
# Gene sets up to this size share one bucket.
_SMALL_SET = 16


class MaskedEmbedding(nn.Module):
    r"""Map genes to gene-set tokens through the genes that each set has.

    .. math:: E_{cp} = \sum_{g \in p} x_{cg} W_{gp} + b_p, \quad W_{gp}, b_p \in \mathbb{R}^d

    The paper multiplies the weight of a linear layer by a genes × gene sets mask. Here only the
    weights inside the mask exist, so memory and time grow with their number. Gene sets of similar
    size are padded to one size and multiplied together: a bucket, which is one parameter.
    :meth:`pair_weights` and the state dict have the weights without padding, in the order of
    ``genes``.

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
    no_dropout
        Shape ``(n_tokens,)``, bool. Tokens that token dropout never leaves out. By default those
        with every gene.

    Raises
    ------
    ValueError
        If the genes of a token do not ascend.
    """

    indptr: Tensor
    genes: Tensor
    _place: Tensor
    _row_of_pair: Tensor
    _token_of_pair: Tensor

    def __init__(
        self,
        indptr: np.ndarray,
        genes: np.ndarray,
        n_genes: int,
        embed_dim: int,
        no_dropout: np.ndarray | None = None,
    ) -> None:
        super().__init__()
        token = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        if (np.diff(token * n_genes + genes) <= 0).any():
            raise ValueError(
                "The genes of each token must be in ascending order, each once."
            )
        self.n_genes = n_genes
        self.n_tokens = len(indptr) - 1
        self.embed_dim = embed_dim
        if no_dropout is None:
            no_dropout = np.diff(indptr) == n_genes
        self._plan_buckets(np.asarray(indptr), np.asarray(genes), no_dropout)
        self.bias = nn.Parameter(torch.zeros(self.n_tokens, embed_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights so that a token's variance does not depend on the size of its gene set.

        A token of a single gene is a multiple of one vector, of which the encoder's first layer
        norm keeps the sign only. Such tokens start with a bias as well, which has half of the
        variance.
        """
        sizes = self.indptr.diff()
        bound = torch.repeat_interleave(sizes.to(self.bias.dtype).rsqrt(), sizes)
        with torch.no_grad():
            drawn = self.bias.new_empty(len(self.genes), self.embed_dim)
            drawn.uniform_(-1, 1).mul_(bound[:, None])
            self.bias.zero_()
            single = sizes == 1
            if single.any():
                half = 0.5**0.5
                self.bias[single] = torch.empty_like(self.bias[single]).uniform_(
                    -half, half
                )
                drawn[torch.repeat_interleave(single, sizes)] *= half
            self._set_pairs(drawn)

    def start_from(self, pair_weights: np.ndarray) -> None:
        """Initialize each token as the weighted sum of its genes, times a random vector.

        The variance of a token is the one that :meth:`reset_parameters` gives it. Pairs without a
        weight keep their random weights.

        Parameters
        ----------
        pair_weights
            Shape ``(n_pairs,)``, in the order of ``genes``; NaN where a pair has no weight.
        """
        given = torch.as_tensor(
            pair_weights, dtype=self.bias.dtype, device=self.bias.device
        )
        sizes, token = self.indptr.diff(), self._token_of_pair
        has = ~given.isnan() & (sizes[token] > 0)
        square = given.new_zeros(self.n_tokens).index_add(
            0, token[has], given[has] ** 2
        )
        number = torch.bincount(token[has], minlength=self.n_tokens)
        # Genes with a weight have their share of a token's variance.
        least = torch.finfo(given.dtype).tiny
        part = (number / sizes.clamp(min=1) / square.clamp(min=least)).sqrt()
        has &= square[token] > 0
        direction = torch.empty_like(self.bias).uniform_(-1, 1)
        with torch.no_grad():
            started = self.pair_weights()
            started[has] = (given * part[token])[has, None] * direction[token[has]]
            self._set_pairs(started)

    def init_from_linear(
        self, scores: Tensor, x: Tensor, mean: Tensor, *, noise: float = 0.3
    ) -> None:
        """Initialize each token from the weights of a linear classifier of the labels.

        A token starts as the sum, over the labels, of the label's score through this token times a
        random vector of the label. Scores are those of a cell minus those of the mean cell. So the
        tokens separate the labels before training begins, and the encoder learns which tokens to
        attend to. Random biases, and random weights on a smaller scale, are added, so that tokens
        with equal scores differ. The mean variance of a token is the one that
        :meth:`reset_parameters` gives.

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
        scores = scores.to(self.bias) - scores.to(self.bias).mean(0)
        n_labels, width = len(scores), self.embed_dim
        token = self._token_of_pair
        above = (x - mean).to(scores)[:, self.genes]
        square = scores.new_zeros(())
        for of_label in scores:
            by_token = above.new_zeros(len(above), self.n_tokens).index_add_(
                1, token, above * of_label
            )
            square = square + by_token.square().mean()
        if not square > 0:
            return
        directions = torch.randn(width, max(n_labels, 1), device=scores.device).to(
            scores
        )
        directions = (
            torch.linalg.qr(directions)[0]
            if n_labels <= width
            else directions / directions.norm(dim=0)
        )
        weights = scores.T @ directions.T * (width / (6 * square)).sqrt()
        half = 0.5**0.5
        with torch.no_grad():
            weights += noise * self.pair_weights()
            offset = torch.zeros_like(self.bias).index_add_(
                0, token, mean.to(scores)[self.genes, None] * weights
            )
            self.bias.uniform_(-half, half).sub_(offset)
            self._set_pairs(weights)

    def _plan_buckets(
        self, indptr: np.ndarray, genes: np.ndarray, no_dropout: np.ndarray
    ) -> None:
        """Group tokens of similar size into buckets.

        Padding points to a row of zeros after the last gene, so its weights have no effect. Tokens
        that are always kept have buckets of their own, the last ones.
        """
        sizes = np.diff(indptr)
        by_size = np.lexsort((sizes, no_dropout))
        self._has_no_dropout: list[bool] = []
        plan = {"indptr": indptr, "genes": genes}
        row_of_pair = np.empty(len(genes), dtype=np.int64)
        start = n_rows = 0
        while start < len(by_size):
            limit = max(int(sizes[by_size[start]] * _BUCKET_RATIO), _SMALL_SET)
            kept = no_dropout[by_size[start]]
            stop = start
            while (
                stop < len(by_size)
                and sizes[by_size[stop]] <= limit
                and no_dropout[by_size[stop]] == kept
            ):
                stop += 1
            tokens = by_size[start:stop]
            width = max(int(sizes[tokens[-1]]), 1)
            gene_rows = np.full((len(tokens), width), self.n_genes, dtype=np.int64)
            for row, p in enumerate(tokens):
                pairs = slice(indptr[p], indptr[p + 1])
                gene_rows[row, : sizes[p]] = genes[pairs]
                row_of_pair[pairs] = n_rows + row * width + np.arange(sizes[p])
            i = len(self._has_no_dropout)
            plan |= {f"_tokens_{i}": tokens, f"_genes_{i}": gene_rows}
            # The weights of padding get no gradient, and stay zero.
            weights = nn.Parameter(torch.zeros(*gene_rows.shape, self.embed_dim))
            self.register_parameter(f"_weight_{i}", weights)
            n_rows += gene_rows.size
            self._has_no_dropout.append(bool(kept))
            start = stop
        plan |= {"_place": np.argsort(by_size), "_row_of_pair": row_of_pair}
        plan |= {"_token_of_pair": np.repeat(np.arange(self.n_tokens), sizes)}
        for name, values in plan.items():
            # Not saved: the mask is in the registry, and a later version may have other buckets.
            self.register_buffer(
                name, torch.as_tensor(values, dtype=torch.int64), persistent=False
            )

    def forward(
        self, x: Tensor, keep: float = 1.0, present: Tensor | None = None
    ) -> Tensor:
        """Compute the tokens of cells.

        Parameters
        ----------
        x
            Expression, shape ``(n_cells, n_genes)``.
        keep
            Share of the gene sets to embed. Below 1, a random part of them is drawn anew at each
            call, evenly over their sizes, beside the tokens that are always kept. The order of
            the tokens is then random.
        present
            Shape ``(n_tokens,)``, bool. Tokens to embed at all; by default every one.

        Returns
        -------
        Tokens, shape ``(n_cells, n_tokens, embed_dim)``, in the order of the mask unless some were
        left out at random.
        """
        # Tokens, genes and weights of each bucket, or of a random part of each.
        plan: list[tuple[Tensor, Tensor, Tensor]] = []
        for i in range(len(self._has_no_dropout)):
            tokens, genes, weights = (
                getattr(self, f"_{of}_{i}") for of in ("tokens", "genes", "weight")
            )
            rows = None if present is None else present[tokens].nonzero().reshape(-1)
            n_tokens = len(tokens) if rows is None else len(rows)
            if keep < 1 and n_tokens and not self._has_no_dropout[i]:
                n_kept = max(1, round(keep * n_tokens))
                drawn = torch.randperm(n_tokens, device=tokens.device)[:n_kept]
                rows = drawn if rows is None else rows[drawn]
            if rows is not None:
                tokens, genes, weights = (
                    of.index_select(0, rows) for of in (tokens, genes, weights)
                )
            if len(tokens):
                plan.append((tokens, genes, weights))
        if torch.is_autocast_enabled(x.device.type):
            # The products would round the values anyway; rounded ones are looked up faster.
            x = x.to(torch.get_autocast_dtype(x.device.type))
        by_gene = torch.cat([x.T, x.new_zeros(1, x.shape[0])])
        # One lookup for all buckets: a call costs as much as a small bucket.
        values = by_gene.index_select(
            0, torch.cat([genes.reshape(-1) for _, genes, _ in plan])
        )
        biases = self.bias.index_select(0, torch.cat([tokens for tokens, _, _ in plan]))
        # torch.split, because the gradients of slices would be added one by one.
        sizes = (
            [genes.numel() for _, genes, _ in plan],
            [len(tokens) for tokens, _, _ in plan],
        )
        buckets = zip(plan, values.split(sizes[0]), biases.split(sizes[1]), strict=True)
        parts = [
            torch.baddbmm(
                bias[:, None], value.view(*genes.shape, -1).transpose(1, 2), weight
            )
            for (_, genes, weight), value, bias in buckets
        ]
        embedded = torch.cat(parts)
        if keep >= 1:
            place = self._place
            if present is not None:
                place = torch.cat([tokens for tokens, _, _ in plan]).argsort()
            embedded = embedded.index_select(0, place)
        return embedded.transpose(0, 1)

    @property
    def weights(self) -> list[nn.Parameter]:
        """Padded weights of each bucket, ``(n_sets, n_genes, embed_dim)`` each."""
        return [
            self.get_parameter(f"_weight_{i}") for i in range(len(self._has_no_dropout))
        ]

    def pair_weights(self, tables: Sequence[Tensor] | None = None) -> Tensor:
        """Weights of the (gene, set) pairs in the order of ``genes``, ``(n_pairs, embed_dim)``.

        Or rows of other ``tables`` shaped as ``weights``, without padding.
        """
        rows = torch.cat(
            [table.reshape(-1, self.embed_dim) for table in tables or self.weights]
        )
        return rows.index_select(0, self._row_of_pair)

    @torch.no_grad()
    def _set_pairs(self, pairs: Tensor) -> None:
        """Set the weights; the inverse of :meth:`pair_weights`, with zeros as padding."""
        weights = self.weights
        sizes = [weight[..., 0].numel() for weight in weights]
        rows = pairs.new_zeros(sum(sizes), self.embed_dim)
        rows[self._row_of_pair.to(rows.device)] = pairs
        for weight, values in zip(weights, rows.split(sizes), strict=True):
            weight.copy_(values.view(weight.shape))

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        tables = [
            destination.pop(f"{prefix}_weight_{i}")
            for i in range(len(self._has_no_dropout))
        ]
        destination[f"{prefix}weight"] = self.pair_weights(tables)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        *problems: list[str],
    ) -> None:
        missing_keys, _, error_msgs = problems
        name, shape = f"{prefix}weight", (len(self.genes), self.embed_dim)
        pairs = state_dict.pop(name, None)
        if pairs is None:
            missing_keys.append(name)
        elif pairs.shape != shape:
            error_msgs.append(
                f"size mismatch for {name}: the state has {tuple(pairs.shape)}, the mask asks for {shape}."
            )
        else:
            self._set_pairs(pairs)
        state_dict |= {
            f"{prefix}_weight_{i}": weight.detach()
            for i, weight in enumerate(self.weights)
        }
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *problems)

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
        size = self.pair_weights().detach().abs()
        return size.mean(1) if how == "mean" else size.amax(1)


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

    def forward(
        self, x: Tensor, keep: float = 1.0, present: Tensor | None = None
    ) -> Tensor:
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
        row = super().forward(x).flatten(1)
        tokens = row.view(len(row), self.embed_dim, self.n_tokens).transpose(1, 2)
        if keep >= 1:
            return tokens
        n_kept = max(1, round(keep * self.n_tokens))
        drawn = torch.randperm(self.n_tokens, device=tokens.device)[:n_kept]
        return tokens.index_select(1, drawn)
