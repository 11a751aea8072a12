"""The published model, written out in plain torch: the yardstick of the fast engine.

Nothing here is clever. The embedding is one dense ``G x (P*d)`` weight times a mask, every token
goes through every block, attention is a written-out ``(P+1) x (P+1)`` matrix, and rollout
multiplies these matrices whole. Tests hold the fast module against it.
"""

import torch
from torch import nn

LAYER_NORM_EPS = 1e-6


class MaskedEmbedding(nn.Module):
    """Genes to tokens by one linear layer whose dense weight is multiplied by the mask.

    Column ``p * d + j`` of weight, mask and bias is number ``j`` of gene set ``p``.

    The authors' code makes the mask in this order too, but deals the ``P * d`` outputs out as if
    number ``j`` of token ``p`` were at ``j * P + p``. So its token ``p`` is not gene set ``p``, but
    ``d`` numbers that belong to many sets. ``scrambled_tokens`` does the same: without it, weights
    that were trained that way mean nothing.
    """

    def __init__(self, mask, embed_dim, scrambled_tokens):
        super().__init__()
        n_genes, self.n_tokens = mask.shape
        self.embed_dim = embed_dim
        self.scrambled_tokens = scrambled_tokens
        self.register_buffer(
            "mask", mask.repeat_interleave(embed_dim, dim=1), persistent=False
        )
        bound = n_genes**-0.5
        weight = torch.empty(n_genes, self.n_tokens * embed_dim).uniform_(-bound, bound)
        self.weight = nn.Parameter(weight * self.mask)
        self.bias = nn.Parameter(
            torch.empty(self.n_tokens * embed_dim).uniform_(-bound, bound)
        )

    def forward(self, x):
        flat = x @ (self.weight * self.mask) + self.bias
        if self.scrambled_tokens:
            return flat.reshape(len(x), self.embed_dim, self.n_tokens).transpose(1, 2)
        return flat.reshape(len(x), self.n_tokens, self.embed_dim)


class SelfAttention(nn.Module):
    """Multi-head self-attention that also hands out its weights, (n, H, T, T)."""

    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, t):
        by_head = self.qkv(t).unflatten(-1, (3, self.n_heads, self.head_dim))
        query, key, value = by_head.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) * self.head_dim**-0.5
        weights = scores.softmax(dim=-1)
        mixed = (weights @ value).transpose(1, 2).flatten(-2)
        return self.proj(mixed), weights.detach()


class Mlp(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, dim):
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, t):
        return self.fc2(nn.functional.gelu(self.fc1(t)))


class Block(nn.Module):
    """Pre-norm Transformer block."""

    def __init__(self, dim, n_heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.attn = SelfAttention(dim, n_heads)
        self.norm2 = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(dim)

    def forward(self, t):
        branch, weights = self.attn(self.norm1(t))
        t = t + branch
        return t + self.mlp(self.norm2(t)), weights


def rollout(attentions):
    """Attention rollout, first layer first: L tensors (n, H, T, T) to one (n, T, T)."""
    joint = torch.eye(attentions[0].shape[-1], dtype=attentions[0].dtype)
    for weights in attentions:
        layer = weights.mean(dim=1) + torch.eye(weights.shape[-1], dtype=weights.dtype)
        joint = layer / layer.sum(dim=-1, keepdim=True) @ joint
    return joint


class LiteralTOSICA(nn.Module):
    """Masked embedding, class token, pre-norm blocks, linear head.

    Parameters
    ----------
    mask
        (G, P), true where a gene belongs to a token.
    n_labels
        Number of labels K.
    scrambled_tokens
        Deal the embedding out to tokens as the authors' code does, see `MaskedEmbedding`.
    """

    def __init__(
        self,
        mask,
        n_labels,
        *,
        embed_dim=48,
        n_heads=4,
        n_layers=2,
        scrambled_tokens=False,
    ):
        super().__init__()
        mask = torch.as_tensor(mask).to(torch.get_default_dtype())
        self.embedding = MaskedEmbedding(mask, embed_dim, scrambled_tokens)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.blocks = nn.ModuleList(Block(embed_dim, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.head = nn.Linear(embed_dim, n_labels)

    def forward(self, x):
        """Cells x (n, G) to latent (n, d), logits (n, K) and attention (n, P)."""
        t = torch.cat([self.cls_token.expand(len(x), -1, -1), self.embedding(x)], dim=1)
        attentions = []
        for block in self.blocks:
            t, weights = block(t)
            attentions.append(weights)
        latent = self.norm(t)[:, 0]
        return latent, self.head(latent), rollout(attentions)[:, 0, 1:]
