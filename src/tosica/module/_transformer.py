"""The pre-norm Transformer encoder and the rollout of its attention: one forward pass.

Comments have shapes: B cells, P gene sets, T = 1 + P tokens of width D, H heads of width d.
Attention weights would be a (B, H, T, T) array, which is never stored: :func:`attend` computes a
few rows at a time, and returns at most their mean over the heads, for the rollout.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tosica._parallel import thread_map
from tosica.module._attention import attend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LAYER_NORM_EPS: Final = 1e-6
MLP_RATIO: Final = 4
# Attention weights that are computed anew at a time, where they were not kept.
_MAX_WEIGHTS = 2**24
# Cells that a thread trains on. The number of threads does not change it, nor the gradients.
_CELLS_PER_CHUNK = 16


class LayerAttention(NamedTuple):
    """Attention of a layer, for the rollout."""

    qkv: Tensor
    """Queries, keys and values, ``(B, T, 3, H, d)``."""
    mean: Tensor | None
    """Weights averaged over the heads, ``(B, T, T)``; computed anew where they are ``None``."""


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
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(
        self, t: Tensor, *, mean: bool = False
    ) -> tuple[Tensor, LayerAttention]:
        """Attend from every token to every token; tokens are ``(B, T, D)``."""
        shape = (3, self.n_heads, self.head_dim)
        qkv = self.qkv(t).unflatten(2, shape)  # (B, T, 3, H, d)
        mixed, weights = attend(qkv, mean=mean)  # (B, T, H, d)
        return self.proj(mixed.flatten(2)), LayerAttention(qkv, weights)

    def class_token(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Attend from the class token alone, the first one, to every token.

        With a single query, keys and values need not be computed for every token: the query is
        projected by the key's weights, and the weighted sum of tokens by the value's weights.

        Parameters
        ----------
        t
            Tokens, ``(B, T, D)``.

        Returns
        -------
        The class token's new value before the residual, ``(B, D)``, and its attention averaged over
        the heads, ``(B, T)``.
        """
        n_cells, _, width = t.shape
        to_query, to_key, to_value = self.qkv.weight.view(3, width, width)
        query_bias, _, value_bias = self.qkv.bias.view(3, width)
        by_head = (self.n_heads, self.head_dim, width)
        query = F.linear(t[:, 0], to_query, query_bias) * self.head_dim**-0.5  # (B, D)
        query = query.view(n_cells, self.n_heads, self.head_dim)  # (B, H, d)
        # The key's bias adds the same number to every score of a head, which softmax ignores.
        projected = torch.bmm(query.transpose(0, 1), to_key.view(by_head))  # (H, B, D)
        scores = torch.bmm(projected.transpose(0, 1), t.transpose(1, 2))  # (B, H, T)
        weights = scores.softmax(-1)
        summed = torch.bmm(weights, t).transpose(0, 1)  # (H, B, D)
        mixed = torch.bmm(summed, to_value.view(by_head).transpose(1, 2))  # (H, B, d)
        return self.proj(mixed.transpose(0, 1).flatten(1) + value_bias), weights.mean(1)


class Block(nn.Module):
    """One layer: ``t += MSA(LN(t))``, then ``t += MLP(LN(t))``.

    Parameters
    ----------
    embed_dim
        Width of a token.
    n_heads
        Number of attention heads.
    """

    def __init__(self, embed_dim: int, n_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.attention = SelfAttention(embed_dim, n_heads)
        self.norm2 = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.fc1 = nn.Linear(embed_dim, MLP_RATIO * embed_dim)
        self.fc2 = nn.Linear(MLP_RATIO * embed_dim, embed_dim)

    def forward(
        self, t: Tensor, *, mean: bool = False, class_only: bool = False
    ) -> tuple[Tensor, Any]:
        """Transform every token, ``(B, T, D)``, or with ``class_only`` the class token alone, ``(B, D)``.

        Also return the attention: a :class:`LayerAttention`, or the class token's, ``(B, T)``.
        """
        if class_only:
            mixed, attention = self.attention.class_token(self.norm1(t))
            t = t[:, 0] + mixed
        else:
            mixed, attention = self.attention(self.norm1(t), mean=mean)
            t = t + mixed
        hidden = F.gelu(self.fc1(self.norm2(t)))
        return t + self.fc2(hidden), attention


class Encoder(nn.Module):
    """Encode tokens and return the class token.

    Only the class token is returned, so the last layer computes nothing else.

    Parameters
    ----------
    embed_dim
        Width of a token.
    n_heads
        Number of attention heads.
    n_layers
        Number of layers.
    """

    cache_bytes: ClassVar[int] = 2**21
    """Size of a layer's intermediate values that fits the cache of a CPU."""

    def __init__(self, embed_dim: int, n_heads: int, n_layers: int) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(embed_dim))
        self.blocks = nn.ModuleList(Block(embed_dim, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        # Xavier's rule keeps the variance from layer to layer. The standard deviation of 0.02, usual in vision
        # Transformers, suits their width; at 48 it leaves the first tenth of a short training without effect.
        nn.init.trunc_normal_(self.class_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(
        self, tokens: Tensor, *, rollout: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        r"""Encode tokens, and compute the rollout of the class token's attention.

        A layer's map is :math:`\tilde A = \tfrac12 (\bar A + I)`, the mean over heads with the
        identity added and rows renormalized (those of :math:`\bar A` sum to one). Of the product
        :math:`\tilde A_L \dots \tilde A_1` only the class token's row is needed. That row is
        multiplied by one map after the other, from the last layer to the first, so no two maps are
        multiplied.

        Parameters
        ----------
        tokens
            Gene-set tokens, ``(B, P, D)``.
        rollout
            Whether to compute the rollout.

        Returns
        -------
        The normalized class token, ``(B, D)``, and its attention to the gene-set tokens,
        ``(B, P)``, float32 or wider, or ``None``; with the class token's attention to itself, which
        is left out, each row sums to one. No gradient flows through the attention.
        """
        is_on_cpu = tokens.device.type == "cpu"
        if torch.is_grad_enabled() and not rollout:
            if not (self.training and is_on_cpu) or torch.compiler.is_compiling():
                return self._encode(tokens)[0], None
            weights = [weight for weight in self.parameters() if weight.requires_grad]
            return _ApplyInChunks.apply(self._encode, tokens, *weights), None
        chunks: Sequence[Tensor] = [tokens]
        if is_on_cpu:
            # Chunks fit the cache with the class token, which is added to each cell.
            _, n_tokens, width = tokens.shape
            cell_bytes = MLP_RATIO * (n_tokens + 1) * width * tokens.element_size()
            chunks = tokens.split(max(self.cache_bytes // max(cell_bytes, 1), 1))
        encoded = thread_map(partial(self._encode, rollout=rollout), chunks)
        latents, attentions = zip(*encoded, strict=True)
        if not rollout:
            return torch.cat(latents), None
        return torch.cat(latents), torch.cat(attentions)

    def _encode(
        self, tokens: Tensor, *, rollout: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Class token (B, D), and its attention (B, P): that of all layers with ``rollout``, else of the last."""
        class_token = self.class_token.to(tokens.dtype).expand(len(tokens), 1, -1)
        t = torch.cat([class_token, tokens], 1)  # (B, T, D)
        attentions: list[LayerAttention] = []
        *blocks, last_block = self.blocks
        for block in blocks:
            t, attention = block(t, mean=rollout)
            if rollout:
                attentions.append(attention)
        latent, row = last_block(t, class_only=True)  # (B, D), (B, T)
        if rollout:
            with torch.no_grad():
                row = row.to(torch.promote_types(row.dtype, torch.float32)) / 2
                row[:, 0] += 0.5
                for attention in reversed(attentions):
                    row = (row + multiply_row(row, attention)) / 2
        return self.norm(latent), row[:, 1:]


def multiply_row(row: Tensor, attention: LayerAttention) -> Tensor:
    """Multiply a row by a layer's attention, averaged over the heads.

    Parameters
    ----------
    row
        Shape ``(B, T)``.
    attention
        Attention of the layer.

    Returns
    -------
    Shape ``(B, T)``.
    """
    if attention.mean is not None:
        return torch.bmm(row[:, None], attention.mean)[:, 0]
    query, key, _ = attention.qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, d) each
    n_cells, n_heads, n_tokens, width = query.shape
    total = torch.zeros_like(row)
    step = max(_MAX_WEIGHTS // max(n_cells * n_heads * n_tokens, 1), 1)
    columns = key.transpose(2, 3) * width**-0.5  # (B, H, d, T)
    for share, queries in zip(row.split(step, 1), query.split(step, 2), strict=True):
        # Half precision would be too coarse for exponents.
        scores = (queries @ columns).to(row.dtype)  # (B, H, step, T)
        total += torch.einsum("bi,bhij->bj", share, scores.softmax(-1))
    return total / n_heads


class _ApplyInChunks(torch.autograd.Function):
    """Apply a function to chunks of a minibatch, on threads and with gradients.

    The arguments are the function, of whose results only the first is returned, its input,
    ``(n_cells, ...)``, and the weights that it depends on. Cells do not depend on one another.
    """

    @staticmethod
    def forward(
        ctx: Any,
        function: Callable[[Tensor], tuple[Tensor, ...]],
        x: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        def call(chunk: Tensor) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                chunk = chunk.requires_grad_()
                return chunk, function(chunk)[0]

        # Each chunk has a graph of its own, so that a thread can go backward through it.
        ctx.chunks = list(thread_map(call, x.detach().split(_CELLS_PER_CHUNK)))
        ctx.weights = weights
        return torch.cat([output.detach() for _, output in ctx.chunks])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        def differentiate(
            graph: tuple[Tensor, Tensor, Tensor],
        ) -> tuple[Tensor, ...]:
            chunk, output, chunk_slope = graph
            return torch.autograd.grad(output, (chunk, *ctx.weights), chunk_slope)

        graphs = [
            (chunk, output, chunk_slope)
            for (chunk, output), chunk_slope in zip(
                ctx.chunks, slope.split(_CELLS_PER_CHUNK), strict=True
            )
        ]
        gradients = list(thread_map(differentiate, graphs))
        del ctx.chunks
        x_gradients, *weight_gradients = zip(*gradients, strict=True)
        summed = [torch.stack(gradient).sum(0) for gradient in weight_gradients]
        return None, torch.cat(x_gradients), *summed
