"""The pre-norm Transformer encoder and the rollout of its attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from tosica._parallel import thread_map
from tosica.module._attention import rollout_step
from tosica.module._block import Block
from tosica.module._cell_parallel import apply_in_parts
from tosica.module._constants import LAYER_NORM_EPS, MLP_RATIO
from tosica.module._inference import encode, encode_with_rollout, format_of

if TYPE_CHECKING:
    from collections.abc import Sequence


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
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights by Xavier's rule, which keeps the variance from layer to layer.

        The standard deviation of 0.02, usual in vision Transformers, suits their width. At a width
        of 48 it leaves the first tenth of a short training without effect.
        """
        nn.init.trunc_normal_(self.class_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode tokens without the rollout.

        Parameters
        ----------
        tokens
            Gene-set tokens, shape ``(n_cells, n_tokens, embed_dim)``.

        Returns
        -------
        The normalised class token, shape ``(n_cells, embed_dim)``.
        """
        if not torch.is_grad_enabled():
            return torch.cat(list(thread_map(self._class_token, self._parts(tokens))))
        if self.training and tokens.device.type == "cpu" and not torch.compiler.is_compiling():
            trained = [weight for weight in self.parameters() if weight.requires_grad]
            return apply_in_parts(self._class_token, tokens, trained)
        return self._class_token(tokens)

    def rollout(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        r"""Encode tokens, and compute the rollout of the class token's attention.

        A layer's map is :math:`\tilde A = \tfrac12 (\bar A + I)`, the mean over heads with the
        identity added and rows renormalised (those of :math:`\bar A` sum to one). Of the product
        :math:`\tilde A_L \dots \tilde A_1` only the class token's row is needed. That row is
        multiplied by one map after the other, from the last layer to the first, so no two maps are
        multiplied.

        Parameters
        ----------
        tokens
            Gene-set tokens, shape ``(n_cells, n_tokens, embed_dim)``.

        Returns
        -------
        The normalised class token, shape ``(n_cells, embed_dim)``, and its attention to the
        gene-set tokens, shape ``(n_cells, n_tokens)``, float32 or wider; with the class token's
        attention to itself, which is left out, each row sums to one. No gradient flows through
        the attention.
        """
        parts = thread_map(self._rollout, self._parts(tokens))
        latent, row = (torch.cat(both) for both in zip(*parts, strict=True))
        return latent, row

    def _class_token(self, tokens: Tensor) -> Tensor:
        dtype = format_of(tokens, self._layers()[0])
        if dtype is not None:
            return self.norm(encode(self.class_token, tokens, self._layers(), dtype))
        tokens = self._with_class_token(tokens)
        *blocks, last = self._layers()
        for block in blocks:
            tokens = block(tokens)
        latent, _ = last.class_token(tokens)
        return self.norm(latent)

    def _rollout(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        dtype = format_of(tokens, self._layers()[0])
        if dtype is not None:
            latent, row = encode_with_rollout(self.class_token, tokens, self._layers(), dtype)
            return self.norm(latent), row[:, 1:]
        tokens = self._with_class_token(tokens)
        traces = []
        *blocks, last = self._layers()
        for block in blocks:
            tokens, trace = block.forward_with_trace(tokens)
            traces.append(trace)
        latent, row = last.class_token(tokens)
        # The kernel's log-sum-exp has no gradient, so a gradient through it would be incomplete.
        with torch.no_grad():
            if row.dtype in (torch.bfloat16, torch.float16):
                row = row.float()
            row = row / 2
            row[:, 0] += 0.5
            for trace in reversed(traces):
                row = (row + rollout_step(row, trace)) / 2
        return self.norm(latent), row[:, 1:]

    def _parts(self, tokens: Tensor) -> Sequence[Tensor]:
        """Split cells so that a part fits the cache of a CPU; on other devices do not split."""
        if tokens.device.type != "cpu":
            return [tokens]
        # With the class token, which is added to each part.
        size_of_cell = MLP_RATIO * (tokens.shape[1] + 1) * tokens.shape[2] * tokens.element_size()
        return tokens.split(max(self.cache_bytes // max(size_of_cell, 1), 1))

    def _layers(self) -> list[Block]:
        return list(self.blocks)  # type: ignore[arg-type] # a ModuleList does not know its kind

    def _with_class_token(self, tokens: Tensor) -> Tensor:
        first = self.class_token.to(tokens.dtype).expand(tokens.shape[0], 1, -1)
        return torch.cat([first, tokens], 1)
