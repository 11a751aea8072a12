"""One layer of the pre-norm Transformer encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from tosica.module._attention import SelfAttention
from tosica.module._constants import LAYER_NORM_EPS, MLP_RATIO

if TYPE_CHECKING:
    from tosica.module._attention import AttentionTrace, KernelTrace


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

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform every token."""
        return self._mlp(tokens + self.attention(self.norm1(tokens)))

    def forward_with_trace(self, tokens: Tensor) -> tuple[Tensor, AttentionTrace | KernelTrace]:
        """Forward pass that also returns what the rollout needs."""
        mixed, trace = self.attention.forward_with_trace(self.norm1(tokens))
        return self._mlp(tokens + mixed), trace

    def class_token(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Transform the class token alone; also return its attention."""
        mixed, weights = self.attention.class_token(self.norm1(tokens))
        return self._mlp(tokens[:, 0] + mixed), weights

    def _mlp(self, tokens: Tensor) -> Tensor:
        return tokens + self.fc2(F.gelu(self.fc1(self.norm2(tokens))))
