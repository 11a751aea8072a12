"""The yardstick itself, against the model's definition; tests/legacy holds it against the authors' numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from _literal import DropPath, LiteralTOSICA, rollout

N_CELLS, N_GENES, N_TOKENS, N_LABELS, DIM = 7, 30, 6, 3, 8


@pytest.fixture
def mask() -> np.ndarray:
    """Thirty genes, five per set, the last token fully connected, genes 25 to 29 in no set."""
    mask = np.zeros((N_GENES, N_TOKENS), dtype=bool)
    for token in range(N_TOKENS - 1):
        mask[5 * token : 5 * token + 5, token] = True
    mask[:, -1] = True
    return mask


@pytest.fixture
def x() -> torch.Tensor:
    return 3 * torch.rand(N_CELLS, N_GENES, generator=torch.Generator().manual_seed(0))


def make(mask: np.ndarray, **kwargs: object) -> LiteralTOSICA:
    """Small model in double precision with weights far enough from 0 to matter."""
    torch.manual_seed(0)
    kwargs = {"embed_dim": DIM, "n_heads": 2, **kwargs}
    model = LiteralTOSICA(mask, N_LABELS, **kwargs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


def test_blocks_agree_with_torchs_own_encoder_layer(mask: np.ndarray, x: torch.Tensor) -> None:
    model = make(mask)
    t = torch.cat([model.cls_token.expand(N_CELLS, -1, -1), model.embedding(x.double())], dim=1)
    for block in model.blocks:
        reference = torch.nn.TransformerEncoderLayer(
            DIM, 2, 4 * DIM, dropout=0, activation="gelu", layer_norm_eps=1e-6,
            batch_first=True, norm_first=True, dtype=torch.float64,
        )  # fmt: skip
        names = {"attn.qkv.": "self_attn.in_proj_", "attn.proj.": "self_attn.out_proj."}
        names |= {"mlp.fc1.": "linear1.", "mlp.fc2.": "linear2."}
        state = block.state_dict()
        for own, other in names.items():
            for kind in ("weight", "bias"):
                state[other + kind] = state.pop(own + kind)
        reference.load_state_dict(state)
        # in training mode torch keeps to its plain path, and at dropout 0 nothing is random
        expected = reference.train()(t)
        t, weights = block(t)
        torch.testing.assert_close(t, expected)
        _, expected_weights = reference.self_attn(*3 * [reference.norm1(expected)], average_attn_weights=False)
        _, weights = block.attn(block.norm1(t))
        torch.testing.assert_close(weights, expected_weights.detach())


def test_rollout_by_hand() -> None:
    first = torch.tensor([[0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)
    second = torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    per_head = torch.tensor([[0.1, -0.1], [-0.1, 0.1]], dtype=torch.float64)
    heads = torch.stack([first + per_head, first - per_head])[None]  # two heads with mean `first`
    joint = rollout([heads, second[None, None]])
    # rows of (A + 1) / 2: [.6 .4] and [.3 .7] first, [.75 .25] and [.5 .5] on top of it
    expected = torch.tensor([[[0.525, 0.475], [0.45, 0.55]]], dtype=torch.float64)
    torch.testing.assert_close(joint, expected)


def test_drop_path_drops_whole_cells_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    out = DropPath(0.25).train()(torch.ones(4000, 3, 2))
    per_cell = out.flatten(1)
    assert (per_cell == per_cell[:, :1]).all()
    torch.testing.assert_close(per_cell.unique(), torch.tensor([0.0, 4 / 3]))
    assert abs(out.mean().item() - 1) < 0.05
