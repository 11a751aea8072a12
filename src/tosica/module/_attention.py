"""Multi-head self-attention of the encoder, and the attention rollout of one layer.

The attention weights of a layer are a cells × heads × tokens × tokens array, which training never
stores. On CPUs, in single precision, the kernels of ``_attention_kernel`` compute a few rows at a
time, as often as they are needed. Elsewhere torch's fused kernels are used. For the rollout the
log-sum-exp of each row is kept, from which ``rollout_step`` recomputes the weights. Where torch
does not return it, as on GPUs, the weights are computed anew, a few rows at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tosica.module._attention_kernel import MAX_HEAD_DIM, attend, rollout_row

# Numbers in the weights that are computed at a time where torch computes them anew: 256 MB.
_PART_SIZE = 2**26


class AttentionTrace(NamedTuple):
    """What a layer keeps for the rollout where torch computes attention.

    ``query`` (scaled) and ``key`` are ``(n_cells, n_heads, n_tokens, head_dim)``; ``logsumexp``
    is ``(n_cells, n_heads, n_tokens)``, over the keys, or ``None`` where torch does not return it.
    """

    query: Tensor
    key: Tensor
    logsumexp: Tensor | None


class KernelTrace(NamedTuple):
    """What a layer keeps for the rollout where our kernel computes attention.

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
        """Attend from every token to every token.

        Input and output have the shape ``(n_cells, n_tokens, embed_dim)``.
        """
        qkv = self._project(tokens)
        if self._uses_kernel(qkv):
            mixed, _ = attend(qkv, self.scale)
            return self.proj(mixed.flatten(2))
        query, key, value = _split_heads(qkv)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def forward_with_trace(self, tokens: Tensor) -> tuple[Tensor, AttentionTrace | KernelTrace]:
        """Forward pass that also returns what the rollout needs."""
        qkv = self._project(tokens)
        if self._uses_kernel(qkv):
            mixed, logsumexp = attend(qkv, self.scale)
            return self.proj(mixed.flatten(2)), KernelTrace(qkv, self.scale, logsumexp)
        query, key, value = _split_heads(qkv)
        query = query * self.scale
        if _returns_logsumexp(query):
            mixed, total = _attend(query, key, value)
            trace = AttentionTrace(query, key, total)
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, scale=1.0)
            trace = AttentionTrace(query, key, None)
        return self.proj(mixed.transpose(1, 2).flatten(2)), trace

    def class_token(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Attend from the class token alone, the first one, to every token.

        With a single query, keys and values need not be computed for every token: the query is
        projected by the key's weights, and the weighted sum of tokens by the value's weights.

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
        # The key's bias adds the same number to every score of a head, which softmax ignores.
        query = query.view(n_cells, self.n_heads, self.head_dim).transpose(0, 1)
        # (n_cells, n_heads, width)
        onto_tokens = torch.bmm(query, to_key.view(by_head)).transpose(0, 1)
        weights = torch.bmm(onto_tokens, tokens.transpose(1, 2)).softmax(-1)
        summed = torch.bmm(weights, tokens).transpose(0, 1)  # (n_heads, n_cells, width)
        mixed = torch.bmm(summed, to_value.view(by_head).transpose(1, 2)).transpose(0, 1)
        return self.proj(mixed.flatten(1) + value_bias), weights.mean(1)

    def _project(self, tokens: Tensor) -> Tensor:
        """Queries, keys and values, ``(n_cells, n_tokens, 3, n_heads, head_dim)``."""
        n_cells, n_tokens, _ = tokens.shape
        return self.qkv(tokens).view(n_cells, n_tokens, 3, self.n_heads, self.head_dim)

    def _uses_kernel(self, qkv: Tensor) -> bool:
        return (
            qkv.device.type == "cpu"
            and qkv.dtype == torch.float32
            and self.head_dim <= MAX_HEAD_DIM
            and not torch.compiler.is_compiling()
        )


def _split_heads(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each ``(n_cells, n_heads, n_tokens, head_dim)``."""
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    return query, key, value


def rollout_step(row: Tensor, trace: AttentionTrace | KernelTrace) -> Tensor:
    r"""Multiply a row by a layer's attention, averaged over the heads.

    Our kernel recomputes the weights, and so does torch without the log-sum-exp. Else, with
    :math:`A_{ij} = \exp(q_i k_j - l_i)` and :math:`l` the log-sum-exp,

    .. math:: \sum_i r_i A_{ij} = \exp \operatorname{logsumexp}_i (k_j q_i + \log r_i - l_i),

    which is the log-sum-exp of an attention with keys and queries exchanged. The bias is one more
    column of the queries, and the keys have a column of ones for it.

    Parameters
    ----------
    row
        Non-negative, shape ``(n_cells, n_tokens)``.
    trace
        What :meth:`SelfAttention.forward_with_trace` returned.

    Returns
    -------
    Shape ``(n_cells, n_tokens)``.
    """
    if isinstance(trace, KernelTrace):
        return rollout_row(row, *trace).mean(1)
    if trace.logsumexp is None:
        return _multiply_in_parts(row, trace.query, trace.key)
    tiny = torch.finfo(row.dtype).tiny
    bias = row.clamp(min=tiny).log()[:, None, :] - trace.logsumexp
    keys = torch.cat([trace.query, bias[..., None].to(trace.query.dtype)], -1)
    queries = F.pad(trace.key, (0, 1), value=1.0)
    _, logsumexp = _attend(queries, keys, queries)
    return logsumexp.exp().mean(1)


def _multiply_in_parts(row: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Multiply a row by the attention, averaged over the heads, some queries at a time."""
    n_cells, n_heads, n_tokens, _ = query.shape
    total = torch.zeros_like(row)
    step = max(_PART_SIZE // max(n_cells * n_heads * n_tokens, 1), 1)
    columns = key.transpose(-2, -1)
    for share, rows in zip(row.split(step, 1), query.split(step, 2), strict=True):
        # Half precision would be too coarse for exponents.
        scores = (rows @ columns).to(row.dtype)
        total += torch.einsum("ni,nhij->nj", share, scores.softmax(-1))
    return total / n_heads


def _returns_logsumexp(query: Tensor) -> bool:
    """Whether torch has an operator for the device that returns the log-sum-exp."""
    return query.device.type == "cpu" and hasattr(
        torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"
    )


def _attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Attention without a scale, and the log-sum-exp of each row.

    torch's public function does not return the log-sum-exp, so the operator behind it is called
    where it exists; elsewhere the weights are stored.
    """
    if _returns_logsumexp(query):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, False, scale=1.0
        )
    return _attend_unfused(query, key, value)


def _attend_unfused(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Compute what ``_attend`` does by public functions, storing the weights."""
    scores = query @ key.transpose(-2, -1)
    # Half precision would be too coarse for exponents.
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    logsumexp = scores.logsumexp(-1)
    weights = (scores - logsumexp[..., None]).exp().to(value.dtype)
    return weights @ value, logsumexp
