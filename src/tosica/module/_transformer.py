"""The pre-norm Transformer encoder and the rollout of its attention: one forward pass.

Shapes stand at the lines: B cells, P gene sets, T = 1 + P tokens of width D, H heads of width d.
Attention weights would be a (B, H, T, T) array, which is never stored: :func:`attend` computes a
few rows at a time, and returns at most their mean over the heads, for the rollout.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tosica._parallel import thread_map
from tosica.module._kernels import attend, is_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LAYER_NORM_EPS: Final = 1e-6
MLP_RATIO: Final = 4
# Numbers of the weights that are computed anew at a time, where they were not kept.
_PART_SIZE = 2**24
# Cells that a thread trains on. It does not depend on the number of threads, so that gradients do not either.
_CELLS_PER_PART = 16


class LayerAttention(NamedTuple):
    """What a layer keeps for the rollout: ``qkv`` (B, T, 3, H, d), and ``mean`` weights (B, T, T).

    The weights are computed anew where ``mean`` is ``None``.
    """

    qkv: Tensor
    mean: Tensor | None


def linear(x: Tensor, layer: nn.Linear, *, gelu: bool = False) -> Tensor:
    """Apply a linear layer, and GELU.

    Without gradients on CPUs, oneDNN is about twice as fast as the BLAS of torch where that is made
    for another processor, and it applies bias and GELU to what is in the cache.
    """
    if is_plain(x) and not torch.is_grad_enabled() and _has_onednn():
        after, how = ("gelu", "none") if gelu else ("none", "")
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, layer.weight, layer.bias, after, [], how
        )
        return found
    out: Tensor = layer(x)
    return F.gelu(out) if gelu else out


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
        qkv = linear(t, self.qkv).unflatten(
            2, (3, self.n_heads, self.head_dim)
        )  # (B, T, 3, H, d)
        mixed, weights = attend(qkv, mean=mean)  # (B, T, H, d)
        return linear(mixed.flatten(2), self.proj), LayerAttention(qkv, weights)

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
        query = query.view(n_cells, self.n_heads, self.head_dim).transpose(
            0, 1
        )  # (H, B, d)
        # The key's bias adds the same number to every score of a head, which softmax ignores.
        onto_tokens = torch.bmm(query, to_key.view(by_head)).transpose(
            0, 1
        )  # (B, H, D)
        weights = torch.bmm(onto_tokens, t.transpose(1, 2)).softmax(-1)  # (B, H, T)
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

        Also return the attention: what the layer keeps for the rollout, or the class token's, ``(B, T)``.
        """
        if class_only:
            mixed, attention = self.attention.class_token(self.norm1(t))
            t = t[:, 0] + mixed
        else:
            mixed, attention = self.attention(self.norm1(t), mean=mean)
            t = t + mixed
        return t + linear(
            linear(self.norm2(t), self.fc1, gelu=True), self.fc2
        ), attention


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
        identity added and rows renormalised (those of :math:`\bar A` sum to one). Of the product
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
        The normalised class token, ``(B, D)``, and its attention to the gene-set tokens,
        ``(B, P)``, float32 or wider, or ``None``; with the class token's attention to itself, which
        is left out, each row sums to one. No gradient flows through the attention.
        """
        if torch.is_grad_enabled() and not rollout:
            if (
                not self.training
                or tokens.device.type != "cpu"
                or torch.compiler.is_compiling()
            ):
                return self._encode(tokens)[0], None
            trained = [weight for weight in self.parameters() if weight.requires_grad]
            return _ApplyInParts.apply(self._encode, tokens, *trained), None
        parts: Sequence[Tensor] = [tokens]
        if tokens.device.type == "cpu":
            # A part fits the cache, with the class token, which is added to each.
            size_of_cell = (
                MLP_RATIO
                * (tokens.shape[1] + 1)
                * tokens.shape[2]
                * tokens.element_size()
            )
            parts = tokens.split(max(self.cache_bytes // max(size_of_cell, 1), 1))
        encoded = thread_map(partial(self._encode, rollout=rollout), parts)
        latent, row = (torch.cat(both) for both in zip(*encoded, strict=True))
        return latent, row if rollout else None

    def _encode(
        self, tokens: Tensor, *, rollout: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Class token (B, D), and its attention (B, P): that of all layers with ``rollout``, else of the last."""
        first = self.class_token.to(tokens.dtype).expand(
            len(tokens), 1, -1
        )  # (B, 1, D)
        t = torch.cat([first, tokens], 1)  # (B, T, D)
        kept: list[LayerAttention] = []
        *blocks, last = self.blocks
        for block in blocks:
            t, attention = block(t, mean=rollout)
            if rollout:
                kept.append(attention)
        latent, row = last(t, class_only=True)
        if rollout:
            with torch.no_grad():
                row = (
                    row.to(torch.promote_types(row.dtype, torch.float32)) / 2
                )  # (B, T)
                row[:, 0] += 0.5
                for attention in reversed(kept):
                    row = (row + multiply_row(row, attention)) / 2
        return self.norm(latent), row[:, 1:]


def multiply_row(row: Tensor, attention: LayerAttention) -> Tensor:
    """Multiply a row by a layer's attention, averaged over the heads.

    Parameters
    ----------
    row
        Shape ``(B, T)``.
    attention
        What the layer returned.

    Returns
    -------
    Shape ``(B, T)``.
    """
    if attention.mean is not None:
        return torch.bmm(row[:, None], attention.mean)[:, 0]
    query, key, _ = attention.qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, d) each
    n_cells, n_heads, n_tokens, width = query.shape
    total = torch.zeros_like(row)
    step = max(_PART_SIZE // max(n_cells * n_heads * n_tokens, 1), 1)
    columns = key.transpose(2, 3) * width**-0.5  # (B, H, d, T)
    for share, queries in zip(row.split(step, 1), query.split(step, 2), strict=True):
        # Half precision would be too coarse for exponents.
        scores = (queries @ columns).to(row.dtype)  # (B, H, step, T)
        total += torch.einsum("bi,bhij->bj", share, scores.softmax(-1))
    return total / n_heads


class _ApplyInParts(torch.autograd.Function):
    """Apply a function to the cells of a minibatch, each by itself, part by part, with gradients.

    The parameters are the function, of whose results the first is taken, the input, ``(n_cells, ...)``, and
    the tensors that the function depends on beside it. Rounding errors do not depend on the number of threads.
    """

    @staticmethod
    def forward(
        ctx: Any,
        function: Callable[[Tensor], tuple[Tensor, ...]],
        x: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        def call(part: Tensor) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                part = part.requires_grad_()
                return part, function(part)[0]

        # Each part has a graph of its own, so that a thread can go backward through it.
        ctx.parts = list(thread_map(call, x.detach().split(_CELLS_PER_PART)))
        ctx.parameters = parameters
        return torch.cat([output.detach() for _, output in ctx.parts])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        def differentiate(
            part: tuple[tuple[Tensor, Tensor], Tensor],
        ) -> tuple[Tensor, ...]:
            (given, output), slope_of_part = part
            return torch.autograd.grad(output, (given, *ctx.parameters), slope_of_part)

        slopes = slope.split(_CELLS_PER_PART)
        parts = list(thread_map(differentiate, zip(ctx.parts, slopes, strict=True)))
        del ctx.parts
        of_x, *of_parameters = zip(*parts, strict=True)
        return (
            None,
            torch.cat(of_x),
            *(torch.stack(each).sum(0) for each in of_parameters),
        )


@cache
def _has_onednn() -> bool:
    """Whether torch has oneDNN's linear layer, on this processor."""
    x = torch.linspace(-1, 1, 32).view(2, 16)
    try:
        found = torch.ops.mkldnn._linear_pointwise(x, x, x[0, :2], "gelu", [], "none")
    # It is not part of torch's public interface, and not there in all builds.
    except (AttributeError, RuntimeError, TypeError):
        return False
    return bool((found - F.gelu(x @ x.T + x[0, :2])).abs().max() < 1e-5)
