"""Tokens that mix gene sets, against the original's numbering written out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from _literal import MaskedEmbedding as LiteralEmbedding
from hypothesis import given, settings
from hypothesis import strategies as st

from tosica.module import MaskedEmbedding, MixedEmbedding, TokenLayout, TOSICAModule


def embedding_pair(seed, n_genes, n_sets, width, n_full=1):
    """A mixed embedding and the literal one with the same weights, in double precision."""
    rng = np.random.default_rng(seed)
    mask = rng.random((n_genes, n_sets)) < 0.4
    mask[rng.integers(n_genes, size=n_sets), np.arange(n_sets)] = True
    mask = np.hstack([mask, np.ones((n_genes, n_full), dtype=bool)])
    columns = sp.csc_matrix(mask)
    columns.sort_indices()
    ours = MixedEmbedding(columns.indptr, columns.indices, n_genes, width).double()
    literal = LiteralEmbedding(torch.from_numpy(mask).double(), width, True).double()
    token = np.repeat(np.arange(mask.shape[1]), np.diff(columns.indptr))
    by_set = literal.weight.detach().view(n_genes, -1, width)
    bias = literal.bias.detach().view(-1, width)
    ours.load_state_dict({"weight": by_set[columns.indices, token], "bias": bias})
    return ours, literal, token, columns.indices


@settings(max_examples=15)
@given(
    seed=st.integers(0, 1000),
    n_genes=st.integers(1, 40),
    n_sets=st.integers(1, 9),
    width=st.integers(1, 6),
    n_full=st.integers(0, 2),
    n_cells=st.integers(0, 4),
)
def test_equals_the_literal_one(seed, n_genes, n_sets, width, n_full, n_cells):
    ours, literal, token, gene = embedding_pair(seed, n_genes, n_sets, width, n_full)
    x = torch.rand(n_cells, n_genes, dtype=torch.float64)
    factor = torch.randn(n_cells, n_sets + n_full, width, dtype=torch.float64)
    tokens, expected = ours(x), literal(x)
    torch.testing.assert_close(tokens, expected, rtol=0, atol=1e-12)
    (tokens * factor).sum().backward()
    (expected * factor).sum().backward()
    grad = literal.weight.grad.view(n_genes, -1, width)[gene, token]
    of_pairs = ours.of_pairs([weight.grad for weight in ours.weights])
    torch.testing.assert_close(of_pairs, grad, rtol=0, atol=1e-12)
    bias = literal.bias.grad.view(-1, width)
    torch.testing.assert_close(ours.bias.grad, bias, rtol=0, atol=1e-12)


def test_some_of_the_mixed_tokens_are_kept():
    torch.manual_seed(0)
    ours, _, _, _ = embedding_pair(0, 30, 11, 4)
    x = torch.rand(3, 30, dtype=torch.float64)
    full = ours(x).detach()
    seen = set()
    for _ in range(20):
        part = ours(x, keep=0.25)
        assert part.shape == (3, 3, 4)
        same = (part[:, :, None] - full[:, None]).abs().amax((0, 3)) < 1e-12
        assert same.sum(1).tolist() == [1, 1, 1]
        drawn = same.int().argmax(1).tolist()
        assert len(set(drawn)) == 3
        seen |= set(drawn)
    # No token is fully connected once mixed, so that none is spared.
    assert seen == set(range(12))
    assert ours(x, keep=0.01).shape == (3, 1, 4)


@pytest.mark.parametrize(("n_sets", "width"), [(1, 5), (6, 1)])
def test_nothing_is_mixed_where_there_is_one_set_or_one_number(n_sets, width):
    ours, _, _, _ = embedding_pair(3, 20, n_sets, width, n_full=0)
    x = torch.rand(4, 20, dtype=torch.float64)
    torch.testing.assert_close(ours(x), MaskedEmbedding.forward(ours, x), rtol=0, atol=0)


def test_modules_do_not_mix_unless_asked():
    pairs = np.array([0, 2, 4]), np.array([0, 1, 1, 2])
    for mixed, kind in ((False, MaskedEmbedding), (True, MixedEmbedding)):
        tokens = TokenLayout.of_one_modality(*pairs, 3, mixed=mixed)
        assert type(TOSICAModule(tokens, 2, embed_dim=4, n_heads=2).embedding) is kind
