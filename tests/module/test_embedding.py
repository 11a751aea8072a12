"""The masked embedding, against a dense product, and the part of it that training draws."""

from collections import Counter
from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tosica.module import MaskedEmbedding

DIM = 5


def make(sizes, n_genes, seed=0, dim=DIM):
    """Make an embedding in double precision with random sets of these sizes."""
    rng = np.random.default_rng(seed)
    sets = [np.sort(rng.choice(n_genes, size, replace=False)) for size in sizes]
    torch.manual_seed(seed)
    genes = np.concatenate(sets).astype(np.int64)
    embedding = MaskedEmbedding(np.cumsum([0, *sizes]), genes, n_genes, dim).double()
    torch.nn.init.normal_(embedding.weight)
    torch.nn.init.normal_(embedding.bias)
    return embedding


def cells(n_genes, n_cells=4):
    generator = torch.Generator().manual_seed(7)
    return 0.1 + torch.rand(n_cells, n_genes, generator=generator, dtype=torch.float64)


def dense(embedding, x):
    """The same, one token after the other."""
    tokens = []
    for token, pairs in enumerate(pairs_of_tokens(embedding)):
        values = x[:, embedding.genes[pairs]]
        tokens.append(values @ embedding.weight[pairs] + embedding.bias[token])
    return torch.stack(tokens, 1)


def pairs_of_tokens(embedding):
    return [slice(*ends) for ends in pairwise(embedding.indptr.tolist())]


# A set with one gene, with every gene, and sizes on both sides of every bucket's edge.
MIXED = [1, 90, 16, 17, 2, 21, 22, 60, 90, 45, 3, 30, 89]


def test_a_token_without_genes_is_its_bias():
    embedding = make([0, 3, 0, 20, *MIXED], 90)
    embedding.reset_parameters()
    torch.nn.init.normal_(embedding.bias)
    tokens = embedding(cells(90))
    assert_close(tokens[:, 2], embedding.bias[2].expand(4, -1))
    assert_close(tokens, dense(embedding, cells(90)))


@pytest.mark.parametrize("genes", [[0, 2, 1, 3], [0, 1, 1, 3], [3, 2, 0, 1]])
def test_genes_of_a_token_must_ascend(genes):
    with pytest.raises(
        ValueError, match="genes of each token must be in ascending order"
    ):
        MaskedEmbedding(np.array([0, 4, 6]), np.array([*genes, 0, 1]), 4, DIM)


# ------------------------------------------------------------------ weights


def test_variance_of_a_token_does_not_follow_the_size_of_its_set():
    torch.manual_seed(0)
    sizes = [1, 4, 16, 64, 256] * 10
    genes = np.concatenate([np.arange(size) for size in sizes])
    embedding = MaskedEmbedding(np.cumsum([0, *sizes]), genes, 256, 48)
    tokens = embedding(torch.ones(1, 256))[0]
    spread = tokens.view(10, 5, 48).std((0, 2))
    assert_close(spread, torch.full((5,), 3**-0.5), rtol=0.15, atol=0)
    # A multiple of one vector has but a sign after a norm, so single genes start with a bias.
    single = torch.tensor(sizes) == 1
    assert (embedding.bias[~single] == 0).all()
    assert_close(embedding.bias[single].std(), torch.tensor(6**-0.5), rtol=0.15, atol=0)


# ------------------------------------------------------------------ a start from scores


def started(
    n_labels=3,
    *,
    dim=16,
    seed=0,
    same_for_all=0.0,
    noise=0.3,
):
    """An embedding that started from scores, the scores, and the cells that it was measured by."""
    embedding = make(MIXED, 90, dim=dim).float()
    embedding.reset_parameters()
    rng = np.random.default_rng(3)
    scores = torch.from_numpy(rng.normal(size=(n_labels, sum(MIXED)))).float()
    x = torch.from_numpy(rng.gamma(1.0, size=(50, 90))).float()
    torch.manual_seed(seed)
    embedding.init_from_linear(scores + same_for_all, x, x.mean(0), noise=noise)
    return embedding, scores, x


def label_scores(embedding, scores, x):
    """Score of each label through each token, less the labels' mean: (labels, cells, tokens)."""
    centered = scores - scores.mean(0)
    above = (x - x.mean(0))[:, embedding.genes]
    token_scores = [
        above[:, pairs] @ centered[:, pairs].T for pairs in pairs_of_tokens(embedding)
    ]
    return torch.stack(token_scores).permute(2, 1, 0)


@torch.no_grad()
def test_the_mean_cell_is_a_drawn_bias():
    embedding, _, x = started()
    vectors = embedding(x.mean(0, keepdim=True))[0]
    half = 0.5**0.5
    assert vectors.abs().max() < half + 1e-4
    assert abs(vectors.mean()) < 0.1
    # A uniform distribution's, which is half of a third.
    assert_close(vectors.var(), torch.tensor(1 / 6), rtol=0.15, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("n_labels", [2, 3, 16])
def test_cells_differ_by_what_their_genes_say_of_labels(n_labels):
    embedding, scores, x = started(n_labels, noise=0.0)
    vectors = embedding(x) - embedding(x.mean(0, keepdim=True))
    evidence = label_scores(embedding, scores, x)
    # Directions are orthogonal, so products of vectors are those of scores.
    products = torch.einsum("ctd,etd->tce", vectors, vectors)
    expected = torch.einsum("kct,ket->tce", evidence, evidence)
    expected *= 16 / 6 / evidence.square().sum(0).mean()
    assert_close(products, expected, rtol=1e-3, atol=1e-3 * float(expected.max()))
    # As much as the bias, and both together are what tokens are drawn with.
    assert vectors.square().mean() == pytest.approx(1 / 6, rel=1e-3)


@torch.no_grad()
def test_what_is_the_same_for_all_labels_says_nothing():
    embedding, _, x = started()
    shifted, _, _ = started(same_for_all=5.0)
    assert_close(embedding.weight, shifted.weight, atol=1e-4, rtol=1e-3)
    state = deepcopy(embedding.state_dict())
    embedding.init_from_linear(torch.ones(3, sum(MIXED)), x, x.mean(0))
    for name, tensor in embedding.state_dict().items():
        assert torch.equal(tensor, state[name])


# ------------------------------------------------------------------ a random part of the tokens


def identify_tokens(embedding, subset, x):
    """Positions of tokens, whose values must be those of the full embedding."""
    full = embedding(x)
    same = torch.isclose(subset[:, :, None], full[:, None]).all(-1).all(0)
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
def test_number_of_tokens_kept(sizes, n_genes, keep, expected):
    embedding = make(sizes, n_genes)
    x = cells(n_genes)
    torch.manual_seed(0)
    for _ in range(5):
        tokens = identify_tokens(embedding, embedding(x, keep=keep), x)
        assert len(set(tokens)) == len(tokens)
        if len(expected) == 1:
            assert len(tokens) == expected[0]
            continue
        n_of_size = Counter(sizes[token] for token in tokens)
        assert [n_of_size[size] for size in dict.fromkeys(sizes)] == expected
    assert torch.equal(x, cells(n_genes))


def test_draws_are_even_and_follow_torchs_seed():
    embedding = make([5] * 10 + [12] * 10, 60)
    x = cells(60, 2)
    torch.manual_seed(3)
    draws = [embedding(x, keep=0.5) for _ in range(200)]
    subsets = [identify_tokens(embedding, subset, x) for subset in draws]
    assert len({frozenset(tokens) for tokens in subsets}) > 150
    counts = np.bincount(np.concatenate(subsets), minlength=20)
    assert counts.sum() == 200 * 10
    assert 70 < counts.min() <= counts.max() < 130
    torch.manual_seed(3)
    assert torch.equal(embedding(x, keep=0.5), draws[0])


def test_what_is_dropped_gets_no_gradient():
    sizes = [1] * 6 + [20] * 5 + [24, 40]
    embedding = make(sizes, 40)
    x = cells(40)
    torch.manual_seed(0)
    subset = embedding(x, keep=0.5)
    is_embedded = np.isin(np.arange(13), identify_tokens(embedding, subset, x))
    assert is_embedded.sum() == 7
    subset.sum().backward()
    for gradient, expected in (
        (embedding.bias.grad, is_embedded),
        (embedding.weight.grad, np.repeat(is_embedded, sizes)),
    ):
        np.testing.assert_array_equal((gradient != 0).all(1), expected)
        np.testing.assert_array_equal((gradient != 0).any(1), expected)
