"""The masked embedding, against a dense product, and the part of it that training draws."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from tosica.module import MaskedEmbedding

DIM = 5


def make(
    sizes: list[int], n_genes: int, seed: int = 0, dim: int = DIM
) -> MaskedEmbedding:
    """Make an embedding in double precision with random sets of these sizes."""
    rng = np.random.default_rng(seed)
    sets = [np.sort(rng.choice(n_genes, size, replace=False)) for size in sizes]
    torch.manual_seed(seed)
    genes = np.concatenate(sets).astype(np.int64)
    embedding = MaskedEmbedding(np.cumsum([0, *sizes]), genes, n_genes, dim).double()
    for weight in embedding.weights:
        torch.nn.init.normal_(weight)
    torch.nn.init.normal_(embedding.bias)
    return embedding


def cells(n_genes: int, n_cells: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return 0.1 + torch.rand(n_cells, n_genes, generator=generator, dtype=torch.float64)


def dense(embedding: MaskedEmbedding, x: torch.Tensor) -> torch.Tensor:
    """The same, one token after the other."""
    tokens, weights = [], embedding.pair_weights()
    for p, (start, stop) in enumerate(pairwise(embedding.indptr.tolist())):
        values = x[:, embedding.genes[start:stop]]
        tokens.append(values @ weights[start:stop] + embedding.bias[p])
    return torch.stack(tokens, 1)


# A set with one gene, with every gene, and sizes on both sides of every bucket's edge.
MIXED = [1, 90, 16, 17, 2, 21, 22, 60, 90, 45, 3, 30, 89]


def test_a_token_without_genes_is_its_bias() -> None:
    embedding = make([0, 3, 0, 20, *MIXED], 90)
    embedding.reset_parameters()
    torch.nn.init.normal_(embedding.bias)
    got = embedding(cells(90))
    torch.testing.assert_close(got[:, 2], embedding.bias[2].expand(4, -1))
    torch.testing.assert_close(got, dense(embedding, cells(90)))


@pytest.mark.parametrize("genes", [[0, 2, 1, 3], [0, 1, 1, 3], [3, 2, 0, 1]])
def test_genes_of_a_token_must_ascend(genes: list[int]) -> None:
    with pytest.raises(
        ValueError, match="genes of each token must be in ascending order"
    ):
        MaskedEmbedding(np.array([0, 4, 6]), np.array([*genes, 0, 1]), 4, DIM)


# ------------------------------------------------------------------ weights


def test_variance_of_a_token_does_not_follow_the_size_of_its_set() -> None:
    torch.manual_seed(0)
    sizes = [1, 4, 16, 64, 256] * 10
    genes = np.concatenate([np.arange(size) for size in sizes])
    embedding = MaskedEmbedding(np.cumsum([0, *sizes]), genes, 256, 48)
    tokens = embedding(torch.ones(1, 256))[0]
    spread = tokens.view(10, 5, 48).std((0, 2))
    torch.testing.assert_close(spread, torch.full((5,), 3**-0.5), rtol=0.15, atol=0)
    # A multiple of one vector has but a sign after a norm, so single genes start with a bias.
    single = torch.tensor(sizes) == 1
    assert (embedding.bias[~single] == 0).all()
    torch.testing.assert_close(
        embedding.bias[single].std(), torch.tensor(6**-0.5), rtol=0.15, atol=0
    )


def test_pairs_are_saved_in_the_order_of_the_mask() -> None:
    embedding = make(MIXED, 90)
    saved = embedding.state_dict()
    assert saved["weight"].shape == (sum(MIXED), DIM)
    assert sum(weight[..., 0].numel() for weight in embedding.weights) > sum(MIXED)
    other = make(MIXED, 90)
    pairs = torch.arange(sum(MIXED) * DIM, dtype=torch.float64).view(-1, DIM)
    other.load_state_dict({**saved, "weight": pairs})
    assert torch.equal(other.pair_weights(), pairs)
    assert (
        sum(weight.sum() for weight in other.weights) == pairs.sum()
    )  # nothing in the padding
    # What was given is left as it was.
    assert set(saved) == {"weight", "bias"}
    assert torch.equal(saved["weight"], embedding.pair_weights())


@pytest.mark.parametrize("as_padded", [False, True])
def test_weights_of_another_mask_are_refused(as_padded: bool) -> None:
    embedding = make(MIXED, 90)
    before = embedding.pair_weights().clone()
    n_padded = sum(weight[..., 0].numel() for weight in embedding.weights)
    n_pairs = n_padded if as_padded else sum(MIXED) + 5
    weight = torch.ones(n_pairs, DIM, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        embedding.load_state_dict({"weight": weight, "bias": embedding.bias})
    assert torch.equal(embedding.pair_weights(), before)
    with pytest.raises(RuntimeError, match="Missing key"):
        embedding.load_state_dict({"bias": embedding.bias})


# ------------------------------------------------------------------ a start from scores


def started(
    n_labels: int = 3,
    *,
    dim: int = 16,
    seed: int = 0,
    same_for_all: float = 0.0,
    noise: float = 0.3,
) -> tuple[MaskedEmbedding, torch.Tensor, torch.Tensor]:
    """An embedding that started from scores, the scores, and the cells that it was measured by."""
    embedding = make(MIXED, 90, dim=dim).float()
    embedding.reset_parameters()
    rng = np.random.default_rng(3)
    scores = torch.from_numpy(rng.normal(size=(n_labels, sum(MIXED)))).float()
    x = torch.from_numpy(rng.gamma(1.0, size=(50, 90))).float()
    torch.manual_seed(seed)
    embedding.init_from_linear(scores + same_for_all, x, x.mean(0), noise=noise)
    return embedding, scores, x


def said(
    embedding: MaskedEmbedding, scores: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    """Score of each label through each token, less the labels' mean: (labels, cells, tokens)."""
    centred = scores - scores.mean(0)
    above = (x - x.mean(0))[:, embedding.genes]
    parts = [
        above[:, start:stop] @ centred[:, start:stop].T
        for start, stop in pairwise(embedding.indptr.tolist())
    ]
    return torch.stack(parts).permute(2, 1, 0)


@torch.no_grad()
def test_the_mean_cell_is_a_drawn_bias() -> None:
    embedding, _, x = started()
    vectors = embedding(x.mean(0, keepdim=True))[0]
    half = 0.5**0.5
    assert vectors.abs().max() < half + 1e-4
    assert abs(vectors.mean()) < 0.1
    # A uniform distribution's, which is half of a third.
    torch.testing.assert_close(vectors.var(), torch.tensor(1 / 6), rtol=0.15, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("n_labels", [2, 3, 16])
def test_cells_differ_by_what_their_genes_say_of_labels(n_labels: int) -> None:
    embedding, scores, x = started(n_labels, noise=0.0)
    vectors = embedding(x) - embedding(x.mean(0, keepdim=True))
    evidence = said(embedding, scores, x)
    # Directions are orthogonal, so products of vectors are those of scores.
    found = torch.einsum("ctd,etd->tce", vectors, vectors)
    expected = torch.einsum("kct,ket->tce", evidence, evidence)
    expected *= 16 / 6 / evidence.square().sum(0).mean()
    torch.testing.assert_close(
        found, expected, rtol=1e-3, atol=1e-3 * float(expected.max())
    )
    # As much as the bias, and both together are what tokens are drawn with.
    assert vectors.square().mean() == pytest.approx(1 / 6, rel=1e-3)


@torch.no_grad()
def test_tokens_keep_some_of_what_was_drawn() -> None:
    some, _, x = started()
    none, _, _ = started(noise=0.0)
    drawn = make(MIXED, 90, dim=16).float()
    drawn.reset_parameters()
    rest = some.pair_weights() - none.pair_weights()
    torch.testing.assert_close(rest, 0.3 * drawn.pair_weights(), atol=1e-5, rtol=1e-3)
    bias = some.bias - none.bias
    offset = torch.stack(
        [
            x.mean(0)[some.genes[start:stop]] @ rest[start:stop]
            for start, stop in pairwise(some.indptr.tolist())
        ]
    )
    torch.testing.assert_close(bias, -offset, atol=1e-4, rtol=1e-3)


@torch.no_grad()
def test_what_is_the_same_for_all_labels_says_nothing() -> None:
    (one, *_), (other, *_) = started(), started(same_for_all=5.0)
    torch.testing.assert_close(
        one.pair_weights(), other.pair_weights(), atol=1e-4, rtol=1e-3
    )
    before, _, x = started()
    state = {name: tensor.clone() for name, tensor in before.state_dict().items()}
    before.init_from_linear(torch.ones(3, sum(MIXED)), x, x.mean(0))
    for name, tensor in before.state_dict().items():
        assert torch.equal(tensor, state[name])


# ------------------------------------------------------------------ a random part of the tokens


def kept_tokens(
    embedding: MaskedEmbedding, drawn: torch.Tensor, x: torch.Tensor
) -> list[int]:
    """Say which tokens these are; their values must be those of the full embedding."""
    full = embedding(x)
    same = torch.isclose(drawn[:, :, None], full[:, None]).all(-1).all(0)
    assert (same.sum(1) == 1).all()
    return same.int().argmax(1).tolist()


@pytest.mark.parametrize(
    ("sizes", "n_genes", "keep", "expected"),
    [
        ([5] * 20, 30, 0.1, [2]),
        ([5] * 20 + [30] * 3, 30, 0.9, [18, 3]),
        # A quarter of each size, and one at least.
        ([2] * 12 + [40] * 8 + [70] * 4 + [90], 100, 0.25, [3, 2, 1, 1]),
        # Only tokens with every gene are spared.
        ([36] * 10 + [40] * 2, 40, 0.3, [3, 2]),
        ([3, 4], 30, 0.01, [1]),
    ],
)
def test_number_of_tokens_kept(
    sizes: list[int], n_genes: int, keep: float, expected: list[int]
) -> None:
    embedding, x = make(sizes, n_genes), cells(n_genes)
    before = x.clone()
    torch.manual_seed(0)
    for _ in range(5):
        kept = kept_tokens(embedding, embedding(x, keep=keep), x)
        assert len(set(kept)) == len(kept)
        of_size = dict.fromkeys(sizes, 0) if len(expected) > 1 else {0: 0}
        for token in kept:
            of_size[sizes[token] if len(expected) > 1 else 0] += 1
        assert list(of_size.values()) == expected
    assert torch.equal(x, before)


def test_draws_are_even_and_follow_torchs_seed() -> None:
    embedding, x = make([5] * 10 + [12] * 10, 60), cells(60, 2)
    torch.manual_seed(3)
    draws = [embedding(x, keep=0.5) for _ in range(200)]
    kept = [kept_tokens(embedding, drawn, x) for drawn in draws]
    assert len({tuple(sorted(tokens)) for tokens in kept}) > 150
    counts = np.bincount(np.concatenate(kept), minlength=20)
    assert counts.sum() == 200 * 10
    assert 70 < counts.min() <= counts.max() < 130
    torch.manual_seed(3)
    assert torch.equal(embedding(x, keep=0.5), draws[0])


def test_what_is_dropped_gets_no_gradient() -> None:
    sizes = [1] * 6 + [20] * 5 + [24, 40]
    embedding, x = make(sizes, 40), cells(40).requires_grad_()
    torch.manual_seed(0)
    drawn = embedding(x, keep=0.5)
    kept = np.isin(np.arange(13), kept_tokens(embedding, drawn, x.detach()))
    assert kept.sum() == 7
    drawn.sum().backward()
    np.testing.assert_array_equal((embedding.bias.grad != 0).all(1), kept)
    np.testing.assert_array_equal((embedding.bias.grad != 0).any(1), kept)
    of_pairs = embedding.pair_weights([weight.grad for weight in embedding.weights])
    np.testing.assert_array_equal((of_pairs != 0).all(1), np.repeat(kept, sizes))
    np.testing.assert_array_equal((of_pairs != 0).any(1), np.repeat(kept, sizes))
    in_padding = torch.cat(
        [weight.grad.reshape(-1, DIM) for weight in embedding.weights]
    )
    assert len(in_padding) > len(of_pairs)
    in_padding[embedding._row_of_pair] = 0
    assert (in_padding == 0).all()
