"""The yardstick itself: against the authors' numbers, and against the model's definition."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import torch
from _literal import DropPath, LiteralTOSICA, from_original, rollout

if TYPE_CHECKING:
    from pathlib import Path

N_CELLS, N_GENES, N_TOKENS, N_LABELS, DIM = 7, 30, 6, 3, 8


class Legacy(NamedTuple):
    """What the authors' code left behind, and what it computed from the query."""

    state_dict: dict[str, torch.Tensor]
    mask: np.ndarray
    n_heads: int
    project: Path
    query: ad.AnnData
    expected: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def legacy(shared: Path) -> Legacy:
    folder = shared / "legacy_project"
    if not folder.is_dir():
        pytest.skip("needs the authors' trained project in shared/data/legacy_project")
    project = folder / "project"
    with np.load(folder / "expected.npz") as arrays:
        expected = dict(arrays)
    return Legacy(
        state_dict=torch.load(project / "model.pth", map_location="cpu", weights_only=True),
        mask=np.load(project / "mask.npy"),
        n_heads=json.loads((folder / "hyperparameters.json").read_text())["num_heads"],
        project=project,
        query=ad.read_h5ad(folder / "query.h5ad"),
        expected=expected,
    )


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
def test_authors_numbers_are_reproduced(legacy: Legacy) -> None:
    model = from_original(legacy.state_dict, legacy.mask, legacy.n_heads)
    with torch.no_grad():
        outputs = model(torch.as_tensor(legacy.query.X))
    # attention differs by some 1e-5 between cells, so it is held more closely than the rest
    tolerances = {"latent": 1e-5, "logits": 1e-5, "attention": 1e-7}
    for (name, atol), output in zip(tolerances.items(), outputs, strict=True):
        np.testing.assert_allclose(output, legacy.expected[name], rtol=0, atol=atol, err_msg=name)


@pytest.mark.data
def test_authors_labels_follow_the_dictionary(legacy: Legacy) -> None:
    labels = pd.read_csv(legacy.project / "label_dictionary.csv", index_col=0, dtype=str)
    model = from_original(legacy.state_dict, legacy.mask, legacy.n_heads)
    with torch.no_grad():
        probability, code = model(torch.as_tensor(legacy.query.X))[1].softmax(1).max(1)
    np.testing.assert_allclose(probability, legacy.expected["probability"], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(labels.iloc[:, 0].to_numpy()[code], legacy.expected["prediction"].astype(object))


@pytest.mark.data
def test_authors_gene_weights_are_the_maximum_over_the_width(legacy: Legacy) -> None:
    table = pd.read_csv(legacy.project / "gene2token_weights.csv", index_col=0)
    tokens = pd.read_csv(legacy.project / "pathway.csv", index_col=0, dtype=str).iloc[:, 0]
    model = from_original(legacy.state_dict, legacy.mask, legacy.n_heads)
    weight = model.embedding.weight.detach().unflatten(1, (legacy.mask.shape[1], -1))
    np.testing.assert_allclose(table.T, weight.abs().amax(-1), rtol=0, atol=1e-6)
    assert list(table.columns) == list(legacy.query.var_names)
    assert list(table.index) == list(tokens)
    assert list(tokens[:-1]) == list(legacy.expected["attention_tokens"])


@pytest.mark.data
def test_authors_tokens_are_not_their_gene_sets(legacy: Legacy) -> None:
    """Why `scrambled_tokens` has to exist: read set by set, the same weights give other numbers."""
    model = from_original(legacy.state_dict, legacy.mask, legacy.n_heads)
    model.embedding.scrambled_tokens = False
    with torch.no_grad():
        _, logits, _ = model(torch.as_tensor(legacy.query.X))
    assert np.abs(logits.numpy() - legacy.expected["logits"]).max() > 1


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


def test_defaults_are_the_papers(mask: np.ndarray) -> None:
    model = LiteralTOSICA(mask, N_LABELS)
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert shapes["embedding.weight"] == (N_GENES, 48 * N_TOKENS)
    assert shapes["blocks.1.mlp.fc1.weight"] == (192, 48)
    assert shapes["blocks.1.attn.qkv.bias"] == (144,)
    assert len(model.blocks) == 2
    assert model.blocks[0].attn.n_heads == 4
    assert {m.eps for m in model.modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-6}


def test_embedding_is_the_sum_over_the_genes_of_a_set(mask: np.ndarray, x: torch.Tensor) -> None:
    embedding, x = make(mask).embedding, x.double()
    weight = embedding.weight.unflatten(1, (N_TOKENS, DIM))
    bias = embedding.bias.unflatten(0, (N_TOKENS, DIM))
    got = embedding(x)
    for p in range(N_TOKENS):
        genes = np.flatnonzero(mask[:, p])
        torch.testing.assert_close(got[:, p], x[:, genes] @ weight[genes, p] + bias[p])


def test_scrambled_tokens_leak_genes_into_other_sets(mask: np.ndarray, x: torch.Tensor) -> None:
    mask = mask[:, :-1]
    embedding, x = make(mask, scrambled_tokens=True).embedding, x.double()
    changed = x.clone()
    changed[:, 12] += 1
    moved = (embedding(changed) - embedding(x)).abs().amax(dim=(0, 2)) > 1e-9
    np.testing.assert_array_equal(mask[12].nonzero()[0], [2])
    assert moved.all()  # 8 numbers of set 2, dealt out to 5 tokens in turn


def test_masked_weights_have_no_effect_and_no_gradient(mask: np.ndarray, x: torch.Tensor) -> None:
    model, x = make(mask), x.double()
    before = model(x)
    before[1].sum().backward()
    outside = model.embedding.mask == 0
    assert outside.any()
    assert (model.embedding.weight.grad[outside] == 0).all()
    assert (model.embedding.weight.grad[~outside] != 0).any()
    with torch.no_grad():
        model.embedding.weight[outside] = 100.0
    for got, expected in zip(model(x), before, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


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


def test_rollout_rows_sum_to_one(mask: np.ndarray, x: torch.Tensor) -> None:
    model = make(mask, n_layers=3)
    _, attentions = model.encode(x.double())
    joint = rollout(attentions)
    assert joint.shape == (N_CELLS, N_TOKENS + 1, N_TOKENS + 1)
    torch.testing.assert_close(joint.sum(-1), torch.ones_like(joint[..., 0]))
    assert (joint >= 0).all()
    torch.testing.assert_close(model(x.double())[2].sum(1), 1 - joint[:, 0, 0])


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


def test_it_learns(mask: np.ndarray) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(90, N_GENES), torch.arange(90) % N_LABELS
    for label in range(N_LABELS):
        x[y == label, 5 * label : 5 * label + 5] += 2
    model = LiteralTOSICA(mask, N_LABELS, embed_dim=DIM, n_heads=2, dropout=0.1, drop_path=0.1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x)[1], y).backward()
        optimiser.step()
    outside = model.embedding.mask == 0
    assert (model.embedding.weight[outside] == 0).all()
    assert (model.eval()(x)[1].argmax(1) == y).float().mean() > 0.95
