"""The network and training of the authors' code, for comparison."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from tosica.module import MixedEmbedding
from tosica.module._module import dropout_16_bit

# The implementation is part of the tests, which compare the module with it.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from _literal import LiteralTOSICA

if TYPE_CHECKING:
    import scipy.sparse as sp

WIDTH = 48
BATCH_SIZE = 8
N_EPOCHS = 10
DROPOUTS = {"dropout": 0.5, "attention_dropout": 0.5, "drop_path": 0.5}
SGD = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-5}


def oversampled(codes: np.ndarray, seed: int) -> np.ndarray:
    """Positions of cells, every label as often as the most frequent one."""
    rng = np.random.default_rng(seed)
    cells = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    n_most = max(map(len, cells))
    return np.concatenate(
        [np.r_[rows, rng.choice(rows, n_most - len(rows))] for rows in cells]
    )


def train_original(
    expression: np.ndarray, codes: np.ndarray, mask: sp.sparray, seed: int
) -> LiteralTOSICA:
    """Labels oversampled, batches of 8, ten epochs of SGD with a cosine, and all its dropouts.

    To make this feasible its dense embedding is replaced by the sparse one with the same outputs
    and gradients, dropout draws integers of 16 bits, and the last layer computes no token but the
    class token, which is all that is read.
    """
    torch.manual_seed(seed)
    cells = oversampled(codes, seed)
    x = torch.from_numpy(expression[cells])
    y = torch.from_numpy(codes[cells].astype(np.int64))
    columns = mask.tocsc()
    columns.sort_indices()
    model = LiteralTOSICA(np.zeros((1, 1)), len(np.unique(codes)), **DROPOUTS)
    embedding = MixedEmbedding(columns.indptr, columns.indices, mask.shape[0], WIDTH)
    # Initial range of a dense linear layer.
    bound = mask.shape[0] ** -0.5
    for parameter in embedding.parameters():
        torch.nn.init.uniform_(parameter, -bound, bound)
    model.embedding = embedding
    for block in model.blocks:
        block.attn.attention_dropout = _Dropout()
        block.attn.dropout = _Dropout()
        block.mlp.dropout = _Dropout()
    optimizer = torch.optim.SGD(model.parameters(), **SGD)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda epoch: (1 + np.cos(epoch * np.pi / N_EPOCHS)) / 2 * 0.99 + 0.01,
    )
    for _ in range(N_EPOCHS):
        model.train()
        for step in torch.randperm(len(x)).split(BATCH_SIZE):
            logits = class_token_logits(model, x[step])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits, y[step]).backward()
            optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def probabilities(model: LiteralTOSICA, expression: np.ndarray) -> np.ndarray:
    """Of each label for each cell, ``(n_cells, n_labels)``."""
    batches = torch.from_numpy(expression).split(64)
    logits = torch.cat([class_token_logits(model, batch) for batch in batches])
    return logits.softmax(1).numpy()


class _Dropout(torch.nn.Module):
    """Dropout of one half."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return dropout_16_bit(x, 0.5) if self.training else x


def class_token_logits(model: LiteralTOSICA, x: torch.Tensor) -> torch.Tensor:
    """The logits of ``model(x)``, by the class token alone in the last block."""
    class_tokens = model.cls_token.expand(len(x), -1, -1)
    tokens = torch.cat([class_tokens, model.embedding(x)], dim=1)
    *blocks, last_block = model.blocks
    for block in blocks:
        tokens, _ = block(tokens)
    attention = last_block.attn
    # (n_cells, n_tokens, 3, n_heads, head_dim)
    qkv = attention.qkv(last_block.norm1(tokens)).unflatten(
        -1, (3, attention.n_heads, -1)
    )
    query, key, value = (matrix.transpose(1, 2) for matrix in qkv.unbind(2))
    scores = query[:, :, :1] @ key.transpose(-1, -2) * attention.head_dim**-0.5
    weights = attention.attention_dropout(scores.softmax(-1))
    mixed = (weights @ value).transpose(1, 2).flatten(-2)
    mixed = attention.dropout(attention.proj(mixed))
    token = tokens[:, :1] + last_block.drop_path(mixed)
    token = token + last_block.drop_path(last_block.mlp(last_block.norm2(token)))
    return model.head(model.norm(token)[:, 0])
