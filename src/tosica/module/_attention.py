"""Multi-head self-attention of the encoder, and the parts of it that the rollout needs.

The weights of a full layer are a cells × heads × tokens × tokens array. On a processor, and a few
cells at a time, that array stays in the cache: then writing it out is the fastest, and the rollout
reads it again. Elsewhere the fused kernel mixes the values and hands back each row's log-sum-exp,
from which ``carry_row`` has what one row of the rollout needs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AttentionTrace(NamedTuple):
    """What a layer keeps so that a rollout row can be carried through it later.

    ``query`` (scaled) and ``key`` are ``(n_cells, n_heads, n_tokens, head_dim)``; ``logsumexp``
    is ``(n_cells, n_heads, n_tokens)``, over the keys.
    """

    query: Tensor
    key: Tensor
    logsumexp: Tensor


class WrittenTrace(NamedTuple):
    """What a layer keeps whose attention was written out.

    ``exponential`` has the exponentials of the scores, queries by keys,
    ``(n_cells * n_heads, n_tokens, n_tokens)``; ``total`` their sums over the keys,
    ``(n_cells, n_heads, n_tokens)``.
    """

    exponential: Tensor
    total: Tensor


# Sums of exponentials in this range are far from the limits of single precision, so that no row's
# maximum had to be sought and subtracted first.
_SAFE_TOTALS = 1e-30, 1e30
# Bytes of written-out attention that a processor's cache holds beside everything else.
_CACHE = 12 * 2**20
# Powers of two are twice as fast as powers of e.
_LOG2_E = math.log2(math.e)


class SelfAttention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values.

    Parameters
    ----------
    embed_dim
        Width of a token.
    n_heads
        Number of heads; divides ``embed_dim``.
    """

    def __init__(self, embed_dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = embed_dim // n_heads
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Let every token attend to every token; ``(n_cells, n_tokens, embed_dim)`` both ways."""
        query, key, value = self._heads(tokens)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def page(self, tokens: Tensor) -> Tensor | None:
        """Make room to write attention out on, for as many cells as a cache has room for.

        Returns
        -------
        Empty, shape ``(n_cells_at_a_time, n_heads, n_tokens, n_tokens)``; ``None`` if the fused
        kernel is the better way for these tokens.
        """
        n_tokens = tokens.shape[1]
        # Half precision would be too coarse for exponents.
        if tokens.device.type != "cpu" or self._computes_in(tokens).itemsize < 4:
            return None
        n_cells = _CACHE // (self.n_heads * n_tokens**2 * tokens.dtype.itemsize)
        if not n_cells:
            return None
        return tokens.new_empty(min(n_cells, len(tokens)), self.n_heads, n_tokens, n_tokens)

    def traced(
        self, tokens: Tensor, page: Tensor | None = None
    ) -> tuple[Tensor, AttentionTrace | WrittenTrace]:
        """Do what ``forward`` does, and keep what the rollout needs.

        Parameters
        ----------
        tokens
            Shape ``(n_cells, n_tokens, embed_dim)``.
        page
            What :meth:`page` made for as many cells or more. What is written on it is part of what
            is kept; nothing is while gradients are. Without one, attention is not written out.
        """
        if page is not None:
            written = self._write_out(tokens, page[: len(tokens)])
            if written is not None:
                return written
        query, key, value = self._heads(tokens)
        query = query * self.scale
        mixed, logsumexp = _attend(query, key, value)
        trace = AttentionTrace(query, key, logsumexp)
        return self.proj(mixed.transpose(1, 2).flatten(2)), trace

    def class_token(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Let only the class token, the first one, attend to every token.

        A key enters only through its product with the one query, and a value only through the
        weighted sum, so both projections can be moved off the tokens: the query is projected
        back onto the tokens, and the sum of tokens is projected forward.

        Parameters
        ----------
        tokens
            Shape ``(n_cells, n_tokens, embed_dim)``.

        Returns
        -------
        The class token's new value before the residual, shape ``(n_cells, embed_dim)``, and its
        attention averaged over the heads, shape ``(n_cells, n_tokens)``.
        """
        n_cells, _, width = tokens.shape
        to_query, to_key, to_value = self.qkv.weight.view(3, width, width)
        query_bias, _, value_bias = self.qkv.bias.view(3, width)
        by_head = (self.n_heads, self.head_dim, width)
        query = F.linear(tokens[:, 0], to_query, query_bias) * self.scale
        # The key's bias adds the same to every score of a head, which softmax does not see.
        query = query.view(n_cells, self.n_heads, self.head_dim).transpose(0, 1)
        onto_tokens = torch.bmm(query, to_key.view(by_head)).transpose(0, 1)
        weights = torch.bmm(onto_tokens, tokens.transpose(1, 2)).softmax(-1)
        seen = torch.bmm(weights, tokens).transpose(0, 1)
        mixed = torch.bmm(seen, to_value.view(by_head).transpose(1, 2)).transpose(0, 1)
        return self.proj(mixed.flatten(1) + value_bias), weights.mean(1)

    @staticmethod
    def _computes_in(tokens: Tensor) -> torch.dtype:
        kind = tokens.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tokens.dtype

    def _heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n_cells, n_tokens, _ = tokens.shape
        split = self.qkv(tokens).view(n_cells, n_tokens, 3, self.n_heads, self.head_dim)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        return query, key, value

    def _write_out(self, tokens: Tensor, page: Tensor) -> tuple[Tensor, WrittenTrace] | None:
        """Do what ``traced`` does, with the exponentials of the scores written out.

        Tokens stay the last axis up to the end: products of few rows and many columns are up to
        twice as fast as those of many rows and few columns. A row of ones below the values makes
        the sums of the exponentials come with the product.

        Returns
        -------
        ``None`` if scores are so large, or all so small, that sums of their exponentials would be
        beyond single precision, or if they are no numbers.
        """
        n_cells, n_tokens, width = tokens.shape
        by_head = (n_cells * self.n_heads, -1, n_tokens)
        to_query, to_key, to_value = self.qkv.weight.view(3, width, width)
        query_bias, _, value_bias = self.qkv.bias.view(3, width)
        to_value = F.pad(to_value.view(self.n_heads, self.head_dim, width), (0, 0, 0, 1))
        value_bias = F.pad(value_bias.view(self.n_heads, self.head_dim), (0, 1), value=1.0)
        columns, to_base_2 = tokens.transpose(1, 2), self.scale * _LOG2_E
        query = torch.baddbmm(
            query_bias[:, None],
            to_query.expand(n_cells, -1, -1),
            columns,
            beta=to_base_2,
            alpha=to_base_2,
        ).view(by_head)
        # The key's bias adds the same to every score of a query, which softmax does not see.
        key = torch.bmm(to_key.expand(n_cells, -1, -1), columns).view(by_head)
        value_and_one = torch.baddbmm(
            value_bias.view(-1, 1), to_value.flatten(0, 1).expand(n_cells, -1, -1), columns
        ).view(by_head)
        scores = (query.transpose(1, 2), key)
        if torch.is_grad_enabled():
            exponential = torch.bmm(*scores).exp2_()
        else:
            # Fresh memory costs more than what is computed on it, so the same page serves again.
            exponential = torch.bmm(*scores, out=page.flatten(0, 1)).exp2_()
        product = torch.bmm(value_and_one, exponential.transpose(1, 2))
        product = product.view(n_cells, self.n_heads, -1, n_tokens)
        total = product[:, :, -1]
        smallest, largest = total.aminmax()
        if not (smallest > _SAFE_TOTALS[0] and largest < _SAFE_TOTALS[1]):
            return None
        mixed = (product[:, :, :-1] / total[:, :, None]).flatten(1, 2)
        from_mixed = self.proj.weight.t().expand(n_cells, -1, -1)
        out = torch.baddbmm(self.proj.bias, mixed.transpose(1, 2), from_mixed)
        return out, WrittenTrace(exponential, total)


def carry_row(row: Tensor, trace: AttentionTrace | WrittenTrace) -> Tensor:
    r"""Multiply a row by a layer's attention, averaged over the heads.

    Where the attention was written out, that is a product. Elsewhere it is had without writing.

    With :math:`A_{ij} = \exp(q_i k_j - l_i)` and :math:`l` its log-sum-exp,

    .. math:: \sum_i r_i A_{ij} = \exp \operatorname{logsumexp}_i (k_j q_i + \log r_i - l_i),

    which is the log-sum-exp of an attention in which keys ask and queries answer. The bias is one
    more column of the queries, against a column of ones in the keys.

    Parameters
    ----------
    row
        Non-negative, shape ``(n_cells, n_tokens)``.
    trace
        What the layer kept.

    Returns
    -------
    Shape ``(n_cells, n_tokens)``.
    """
    if isinstance(trace, WrittenTrace):
        shares = (row[:, None] / trace.total).flatten(0, 1)[:, None]
        return torch.bmm(shares, trace.exponential).view_as(trace.total).mean(1)
    tiny = torch.finfo(row.dtype).tiny
    bias = row.clamp(min=tiny).log()[:, None, :] - trace.logsumexp
    asked = torch.cat([trace.query, bias[..., None].to(trace.query.dtype)], -1)
    asking = F.pad(trace.key, (0, 1), value=1.0)
    _, logsumexp = _attend(asking, asked, asking)
    return logsumexp.exp().mean(1)


def _attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Attention without a scale, and the log-sum-exp of each row.

    torch's public function keeps the log-sum-exp to itself, so the kernel behind it is called
    where it exists; elsewhere the same is computed in the open.
    """
    if query.device.type == "cpu" and hasattr(
        torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"
    ):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, False, scale=1.0
        )
    return _attend_in_the_open(query, key, value)


def _attend_in_the_open(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Do what ``_attend`` does with public functions, which write the weights out."""
    scores = query @ key.transpose(-2, -1)
    # As in the kernel: half precision would be too coarse for exponents.
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    logsumexp = scores.logsumexp(-1)
    weights = (scores - logsumexp[..., None]).exp().to(value.dtype)
    return weights @ value, logsumexp
