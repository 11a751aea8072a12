"""Multi-head self-attention of the encoder, and the parts of it that the rollout needs.

The weights of a full layer are a cells × heads × tokens × tokens array, which training never
writes out. On a processor, in single precision, a kernel of our own computes them a few rows at a
time, as often as they are needed. Elsewhere torch's fused kernels mix the values. For the rollout
each row's log-sum-exp is kept, from which ``rollout_step`` has what one row of it needs; where no
kernel of torch hands that back, as on GPUs, the weights are written out for it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tosica.module._attention_kernel import WIDEST, attend, carry


class AttentionTrace(NamedTuple):
    """What a layer keeps so that a rollout row can be carried through it later.

    ``query`` (scaled) and ``key`` are ``(n_cells, n_heads, n_tokens, head_dim)``; ``logsumexp``
    is ``(n_cells, n_heads, n_tokens)``, over the keys.
    """

    query: Tensor
    key: Tensor
    logsumexp: Tensor


class OwnTrace(NamedTuple):
    """What a layer keeps of the kernel that is our own: what went into it and came out.

    ``qkv`` is ``(n_cells, n_tokens, 3, n_heads, head_dim)``; ``logsumexp``, to base two,
    ``(n_cells, n_heads, n_tokens)``.
    """

    qkv: Tensor
    scale: float
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
        qkv = self._project(tokens)
        if self._is_for_own_kernel(qkv):
            mixed, _ = attend(qkv, self.scale)
            return self.proj(mixed.flatten(2))
        query, key, value = _by_head(qkv)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def traced(self, tokens: Tensor) -> tuple[Tensor, AttentionTrace | OwnTrace]:
        """Do what ``forward`` does, and keep what the rollout needs."""
        qkv = self._project(tokens)
        if self._is_for_own_kernel(qkv):
            mixed, logsumexp = attend(qkv, self.scale)
            return self.proj(mixed.flatten(2)), OwnTrace(qkv, self.scale, logsumexp)
        query, key, value = _by_head(qkv)
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

    def _project(self, tokens: Tensor) -> Tensor:
        """Queries, keys and values, ``(n_cells, n_tokens, 3, n_heads, head_dim)``."""
        n_cells, n_tokens, _ = tokens.shape
        return self.qkv(tokens).view(n_cells, n_tokens, 3, self.n_heads, self.head_dim)

    def _is_for_own_kernel(self, qkv: Tensor) -> bool:
        return (
            qkv.device.type == "cpu"
            and qkv.dtype == torch.float32
            and self.head_dim <= WIDEST
            and not torch.compiler.is_compiling()
        )


def _by_head(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each ``(n_cells, n_heads, n_tokens, head_dim)``."""
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    return query, key, value


def rollout_step(row: Tensor, trace: AttentionTrace | OwnTrace) -> Tensor:
    r"""Multiply a row by a layer's attention, averaged over the heads.

    Our own kernel computes the weights once more. For torch's, with
    :math:`A_{ij} = \exp(q_i k_j - l_i)` and :math:`l` its log-sum-exp,

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
    if isinstance(trace, OwnTrace):
        return carry(row, *trace).mean(1)
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
