"""The yardstick itself: against the authors' numbers, and against the model's definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anndata as ad
import numpy as np
import pytest
import torch
from _literal import DropPath, LiteralTOSICA, from_original, rollout

if TYPE_CHECKING:
    from pathlib import Path

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


# ------------------------------------------------------------------ the authors' numbers


@pytest.mark.data
def test_authors_numbers_are_reproduced(shared: Path) -> None:
    folder = shared / "legacy_project"
    expected, query = np.load(folder / "expected.npz"), ad.read_h5ad(folder / "query.h5ad")
    tensors = torch.load(folder / "project" / "model.pth", map_location="cpu", weights_only=True)
    model = from_original(tensors, np.load(folder / "project" / "mask.npy"), 4)
    with torch.no_grad():
        outputs = model(torch.as_tensor(query.X))
    # attention differs by some 1e-5 between cells, so it is held more closely than the rest
    tolerances = {"latent": 1e-5, "logits": 1e-5, "attention": 1e-7}
    for (name, atol), output in zip(tolerances.items(), outputs, strict=True):
        np.testing.assert_allclose(output, expected[name], rtol=0, atol=atol, err_msg=name)
    # Why `scrambled_tokens` has to exist: read set by set, the same weights give other numbers.
    model.embedding.scrambled_tokens = False
    with torch.no_grad():
        _, logits, _ = model(torch.as_tensor(query.X))
    assert np.abs(logits.numpy() - expected["logits"]).max() > 1


# ------------------------------------------------------------------ the mapping, without data


def original_names(model: LiteralTOSICA) -> dict[str, torch.Tensor]:
    """A state_dict as the authors' code would have saved it."""
    own = {key: value.detach().clone() for key, value in model.state_dict().items()}
    return {
        "feature_embed.fe.mask": model.embedding.mask.T.clone(),
        "feature_embed.fe.weight": own.pop("embedding.weight").T.contiguous(),
        "feature_embed.fe.bias": own.pop("embedding.bias"),
        **own,
    }


def test_from_original_finds_the_architecture(mask: np.ndarray, x: torch.Tensor) -> None:
    source = make(mask, n_layers=3, mlp_ratio=2.5, scrambled_tokens=True)
    model = from_original(original_names(source), mask.astype(float), n_heads=2).double()
    assert not model.training
    assert len(model.blocks) == 3
    for got, expected in zip(model(x.double()), source(x.double()), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


# ------------------------------------------------------------------ the definition, without data


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


# ------------------------------------------------------------------ what training needs


def test_drop_path_drops_whole_cells_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    out = DropPath(0.25).train()(torch.ones(4000, 3, 2))
    per_cell = out.flatten(1)
    assert (per_cell == per_cell[:, :1]).all()
    torch.testing.assert_close(per_cell.unique(), torch.tensor([0.0, 4 / 3]))
    assert abs(out.mean().item() - 1) < 0.05
