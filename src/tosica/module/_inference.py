"""The encoder's forward pass on CPUs without gradients, in single precision or in bfloat16.

It computes what the layers of ``_encoder`` do, with fewer passes over memory: bias and GELU are
applied by the matrix products, and attention is computed once, together with the weights that the
rollout needs. In bfloat16 the matrix products and what they read are rounded; sums over layers, the
norms and the exponents of attention stay in single precision.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from tosica.module._attention import KernelTrace, rollout_step
from tosica.module._attention_kernel import MAX_HEAD_DIM, attend_once

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tosica.module._block import Block

# Attention weights of a cell, averaged over the heads, are kept for the rollout up to this size.
# Larger ones would not fit the cache, and are computed anew.
_KEPT_BYTES = 2**22


def format_of(tokens: Tensor, block: Block) -> torch.dtype | None:
    """Format in which this module computes matrix products, or ``None`` if torch is to do it."""
    if (
        torch.is_grad_enabled()
        or tokens.device.type != "cpu"
        or torch.compiler.is_compiling()
        or block.norm1.weight.dtype != torch.float32
        or block.attention.head_dim > MAX_HEAD_DIM
    ):
        return None
    autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if autocast else tokens.dtype
    if dtype == torch.bfloat16 and autocast:
        return torch.bfloat16
    return torch.float32 if dtype == torch.float32 else None


def encode(class_token: Tensor, tokens: Tensor, blocks: list[Block], dtype: torch.dtype) -> Tensor:
    """Encode tokens.

    Parameters
    ----------
    class_token
        Shape ``(embed_dim,)``.
    tokens
        Gene-set tokens, shape ``(n_cells, n_tokens, embed_dim)``.
    blocks
        The layers.
    dtype
        What :func:`format_of` returned.

    Returns
    -------
    The class token before the last norm, shape ``(n_cells, embed_dim)``.
    """
    return _encode(class_token, tokens, blocks, dtype, traces=None)[0]


def encode_with_rollout(
    class_token: Tensor, tokens: Tensor, blocks: list[Block], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Encode tokens, and compute the rollout of the class token's attention.

    Parameters
    ----------
    class_token, tokens, blocks, dtype
        As in :func:`encode`.

    Returns
    -------
    What :func:`encode` returns, and the rollout's row with the class token's attention to itself,
    ``(n_cells, 1 + n_tokens)``, in single precision.
    """
    traces: list[Tensor | KernelTrace] = []
    latent, row = _encode(class_token, tokens, blocks, dtype, traces)
    row = row.float() / 2
    row[:, 0] += 0.5
    for trace in reversed(traces):
        if isinstance(trace, KernelTrace):
            step = rollout_step(row, trace)
        else:
            step = torch.bmm(row.to(dtype)[:, None], trace)[:, 0]
        row = (row + step) / 2
    return latent, row


def _encode(
    class_token: Tensor,
    tokens: Tensor,
    blocks: list[Block],
    dtype: torch.dtype,
    traces: list[Tensor | KernelTrace] | None,
) -> tuple[Tensor, Tensor]:
    """Class token and the last layer's attention.

    To the list goes, for each other layer, what the rollout needs: the weights, averaged over the
    heads, or that from which they are computed.
    """
    *full, last = blocks
    # Sums over layers stay in single precision.
    first = class_token.expand(len(tokens), 1, -1)
    tokens = torch.cat([first, tokens.float()], 1)
    n_cells, n_tokens, _ = tokens.shape
    keeps = n_tokens * n_tokens * dtype.itemsize <= _KEPT_BYTES
    for block in full:
        attention = block.attention
        qkv = _linear(block.norm1(tokens).to(dtype), attention.qkv)
        qkv = qkv.view(n_cells, n_tokens, 3, attention.n_heads, attention.head_dim)
        mixed, mean, logsumexp = attend_once(
            qkv,
            attention.scale,
            mean=traces is not None and keeps,
            logsumexp=traces is not None and not keeps,
        )
        if traces is not None and mean is not None:
            traces.append(mean)
        elif traces is not None and logsumexp is not None:
            traces.append(KernelTrace(qkv, attention.scale, logsumexp))
        tokens += _linear(mixed.flatten(2), attention.proj)
        hidden = _linear(block.norm2(tokens).to(dtype), block.fc1, gelu=True)
        tokens += _linear(hidden, block.fc2)
    mixed, row = last.attention.class_token(last.norm1(tokens).to(dtype))
    latent = tokens[:, 0] + mixed
    hidden = _linear(last.norm2(latent).to(dtype), last.fc1, gelu=True)
    return latent + _linear(hidden, last.fc2), row


def _linear(x: Tensor, layer: nn.Linear, *, gelu: bool = False) -> Tensor:
    """Linear layer in the format of ``x``, and GELU.

    oneDNN is about twice as fast as the BLAS of torch where that is made for another processor, and
    it applies bias and GELU to what is in the cache.
    """
    weight, bias = layer.weight.to(x.dtype), layer.bias.to(x.dtype)
    if _has_onednn(x.dtype):
        after, how = ("gelu", "none") if gelu else ("none", "")
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, after, [], how)
        return found
    with torch.autocast("cpu", enabled=False):
        out = F.linear(x, weight, bias)
    return F.gelu(out) if gelu else out


@cache
@torch.autocast("cpu", enabled=False)
def _has_onednn(dtype: torch.dtype) -> bool:
    """Whether torch has oneDNN's linear layer, in this format and on this processor."""
    x = torch.linspace(-1, 1, 32).view(2, 16)
    expected = F.gelu(x @ x.T + x[0, :2])
    x = x.to(dtype)
    try:
        found = torch.ops.mkldnn._linear_pointwise(x, x, x[0, :2], "gelu", [], "none")
    # It is not part of torch's public interface, and not there in all builds.
    except (AttributeError, RuntimeError, TypeError):
        return False
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    return bool((found.float() - expected).abs().max() < tolerance)
