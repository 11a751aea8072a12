"""The published model, written out in plain torch: the yardstick of the fast engine.

Nothing here is clever. The embedding is one dense ``G x (P*d)`` weight times a mask, every token
goes through every block, attention is a written-out ``(P+1) x (P+1)`` matrix, and rollout
multiplies these matrices whole. Tests hold the fast module against it, and benchmarks measure
what is gained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

LAYER_NORM_EPS = 1e-6


class MaskedEmbedding(nn.Module):
    """Genes to tokens by one linear layer whose dense weight is multiplied by the mask.

    Column ``p * d + j`` of weight, mask and bias is number ``j`` of gene set ``p``.

    The authors' code makes the mask in this order too, but deals the ``P * d`` outputs out as if
    number ``j`` of token ``p`` were at ``j * P + p``. So its token ``p`` is not gene set ``p``, but
    ``d`` numbers that belong to many sets. ``scrambled_tokens`` does the same: without it, weights
    that were trained that way mean nothing.
    """

    def __init__(self, mask: torch.Tensor, embed_dim: int, scrambled_tokens: bool) -> None:
        super().__init__()
        n_genes, self.n_tokens = mask.shape
        self.embed_dim, self.scrambled_tokens = embed_dim, scrambled_tokens
        self.register_buffer("mask", mask.repeat_interleave(embed_dim, dim=1), persistent=False)
        bound = n_genes**-0.5
        weight = torch.empty(n_genes, self.n_tokens * embed_dim).uniform_(-bound, bound)
        self.weight = nn.Parameter(weight * self.mask)
        self.bias = nn.Parameter(torch.empty(self.n_tokens * embed_dim).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x @ (self.weight * self.mask) + self.bias
        if self.scrambled_tokens:
            return flat.reshape(len(x), self.embed_dim, self.n_tokens).transpose(1, 2)
        return flat.reshape(len(x), self.n_tokens, self.embed_dim)


class DropPath(nn.Module):
    """While training, leave a residual branch out for whole cells and scale up those that stay."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: torch.Tensor) -> torch.Tensor:
        if not self.training or self.rate == 0:
            return branch
        stays = torch.rand(len(branch), 1, 1, device=branch.device) >= self.rate
        return branch * stays / (1 - self.rate)


class SelfAttention(nn.Module):
    """Multi-head self-attention that also hands out its weights, (n, H, T, T), before dropout."""

    def __init__(self, dim: int, n_heads: int, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        if dim % n_heads:
            raise ValueError(f"embed_dim {dim} cannot be shared out evenly to {n_heads} heads.")
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attention_dropout = nn.Dropout(attention_dropout)
        self.proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        by_head = self.qkv(t).unflatten(-1, (3, self.n_heads, self.head_dim))
        query, key, value = (part.transpose(1, 2) for part in by_head.unbind(2))
        scores = query @ key.transpose(-1, -2) * self.head_dim**-0.5
        weights = scores.softmax(dim=-1)
        mixed = (self.attention_dropout(weights) @ value).transpose(1, 2).flatten(-2)
        return self.dropout(self.proj(mixed)), weights.detach()


class Mlp(nn.Module):
    """Two linear layers with an exact GELU between them and dropout after each."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(nn.functional.gelu(self.fc1(t)))
        return self.dropout(self.fc2(hidden))


class Block(nn.Module):
    """Pre-norm Transformer block."""

    def __init__(
        self, dim: int, n_heads: int, mlp_ratio: float, dropout: float, attention_dropout: float, drop_path: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.attn = SelfAttention(dim, n_heads, dropout, attention_dropout)
        self.norm2 = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(dim, round(dim * mlp_ratio), dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        branch, weights = self.attn(self.norm1(t))
        t = t + self.drop_path(branch)
        return t + self.drop_path(self.mlp(self.norm2(t))), weights


def rollout(attentions: Sequence[torch.Tensor]) -> torch.Tensor:
    """Attention rollout, first layer first: L tensors (n, H, T, T) to one (n, T, T)."""
    joint = None
    for weights in attentions:
        mean = weights.mean(dim=1)
        layer = mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        layer = layer / layer.sum(dim=-1, keepdim=True)
        joint = layer if joint is None else layer @ joint
    if joint is None:
        raise ValueError("Rollout needs the attention of at least one layer.")
    return joint


class LiteralTOSICA(nn.Module):
    """Masked embedding, class token, pre-norm blocks, linear head.

    Parameters
    ----------
    mask
        (G, P), true where a gene belongs to a token.
    n_labels
        Number of labels K.
    drop_path
        Rate of the last block; it grows linearly from 0 in the first.
    scrambled_tokens
        Deal the embedding out to tokens as the authors' code does, see `MaskedEmbedding`.
    """

    def __init__(
        self,
        mask: np.ndarray | torch.Tensor,
        n_labels: int,
        *,
        embed_dim: int = 48,
        n_heads: int = 4,
        n_layers: int = 2,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
        scrambled_tokens: bool = False,
    ) -> None:
        super().__init__()
        mask = torch.as_tensor(mask).to(torch.get_default_dtype())
        self.embedding = MaskedEmbedding(mask, embed_dim, scrambled_tokens)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.blocks = nn.ModuleList(
            Block(embed_dim, n_heads, mlp_ratio, dropout, attention_dropout, rate)
            for rate in torch.linspace(0, drop_path, n_layers).tolist()
        )
        self.norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.head = nn.Linear(embed_dim, n_labels)

        nn.init.trunc_normal_(self.cls_token, std=0.02)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.trunc_normal_(part.weight, std=0.01)
                nn.init.zeros_(part.bias)

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """All tokens after the last block, (n, 1 + P, d), and the attention of every layer."""
        t = torch.cat([self.cls_token.expand(len(x), -1, -1), self.embedding(x)], dim=1)
        attentions = []
        for block in self.blocks:
            t, weights = block(t)
            attentions.append(weights)
        return t, attentions

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Cells x (n, G) to latent (n, d), logits (n, K) and attention (n, P)."""
        t, attentions = self.encode(x)
        latent = self.norm(t)[:, 0]
        return latent, self.head(latent), rollout(attentions)[:, 0, 1:]


def from_original(
    state_dict: Mapping[str, torch.Tensor], mask: np.ndarray | torch.Tensor, n_heads: int
) -> LiteralTOSICA:
    """The authors' weights in a `LiteralTOSICA`, ready to predict.

    Parameters
    ----------
    state_dict
        What ``torch.load("model.pth", weights_only=True)`` gives.
    mask
        Their ``mask.npy``, (G, P).
    n_heads
        The one number of the architecture that leaves no trace in the weights.

    Raises
    ------
    KeyError
        If tensors are missing, or there are tensors that this architecture has no place for.
    ValueError
        If the mask is not the one that the weights were trained with.
    """
    source = dict(state_dict)
    if "feature_embed.fe.mask" not in source:
        raise KeyError("The state_dict has no 'feature_embed.fe.mask': no model of the original.")
    mask = torch.as_tensor(mask)
    embed_dim = source["cls_token"].shape[-1]
    trained_mask = source.pop("feature_embed.fe.mask").T
    if not torch.equal(mask.bool().repeat_interleave(embed_dim, dim=1), trained_mask.bool()):
        raise ValueError("The mask is not the one inside the state_dict.")

    hidden_dim = source["blocks.0.mlp.fc1.weight"].shape[0]
    model = LiteralTOSICA(
        mask,
        source["head.weight"].shape[0],
        embed_dim=embed_dim,
        n_heads=n_heads,
        n_layers=len({key.split(".")[1] for key in source if key.startswith("blocks.")}),
        mlp_ratio=hidden_dim / embed_dim,
        scrambled_tokens=True,
    )
    target = {
        "embedding.weight": source.pop("feature_embed.fe.weight").T,
        "embedding.bias": source.pop("feature_embed.fe.bias"),
        **source,
    }
    wrong = sorted(set(target) ^ set(model.state_dict()))
    if wrong:
        raise KeyError(f"Tensors that are missing, or have no place in the model: {wrong}.")
    model.load_state_dict(target)
    return model.eval()
