"""Multi-head self-attention of the encoder, and the parts of it that the rollout needs.

The weights of a full layer are a cells × heads × tokens × tokens array. Nothing here writes it
out: the fused kernel mixes the values and hands back each row's log-sum-exp, from which
``carry_row`` has what one row of the rollout needs.
"""

from __future__ import annotations

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

    def traced(self, tokens: Tensor) -> tuple[Tensor, AttentionTrace]:
        """Do what ``forward`` does, and keep what the rollout needs."""
        query, key, value = self._heads(tokens)
        query = query * self.scale
        mixed, logsumexp = _attend(query, key, value)
        out = self.proj(mixed.transpose(1, 2).flatten(2))
        return out, AttentionTrace(query, key, logsumexp)

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
        to_query, to_key, to_value = self.qkv.weight.view(3, self.n_heads, self.head_dim, -1)
        query_bias, _, value_bias = self.qkv.bias.view(3, self.n_heads, self.head_dim)
        query = torch.einsum("nd,hed->nhe", tokens[:, 0], to_query) + query_bias
        # The key's bias adds the same to every score of a head, which softmax does not see.
        onto_tokens = torch.einsum("nhe,hed->nhd", query * self.scale, to_key)
        weights = (onto_tokens @ tokens.transpose(1, 2)).softmax(-1)
        mixed = torch.einsum("nhd,hed->nhe", weights @ tokens, to_value) + value_bias
        return self.proj(mixed.flatten(1)), weights.mean(1)

    def _heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n_cells, n_tokens, _ = tokens.shape
        split = self.qkv(tokens).view(n_cells, n_tokens, 3, self.n_heads, self.head_dim)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        return query, key, value


def carry_row(row: Tensor, trace: AttentionTrace) -> Tensor:
    r"""Multiply a row by a layer's attention, averaged over the heads, without writing that out.

    With :math:`A_{ij} = \exp(q_i k_j - l_i)` and :math:`l` its log-sum-exp,

    .. math:: \sum_i r_i A_{ij} = \exp \operatorname{logsumexp}_i (k_j q_i + \log r_i - l_i),

    which is the log-sum-exp of an attention in which keys ask and queries answer. The bias is one
    more column of the queries, against a column of ones in the keys.

    Parameters
    ----------
    row
        Non-negative, shape ``(n_cells, n_tokens)``.
    trace
        Queries, keys and log-sum-exp of the layer.

    Returns
    -------
    Shape ``(n_cells, n_tokens)``.
    """
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
