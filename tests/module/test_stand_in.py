"""Genes that stand in for others, against the conditional expectation written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tosica.module._stand_in import stand_in


def case(seed: int, n_genes: int, n_components: int, n_lost: int, dtype=torch.float64):
    torch.manual_seed(seed)
    measured = torch.ones(n_genes, dtype=torch.bool)
    measured[torch.randperm(n_genes)[:n_lost]] = False
    weight, bias = torch.randn(3, n_genes), torch.randn(3)
    mean, loadings = torch.rand(n_genes), 2 * torch.randn(n_genes, n_components)
    return *(t.to(dtype) for t in (weight, bias, mean, loadings)), measured


@given(st.integers(0, 99), st.integers(2, 30), st.integers(0, 8), st.integers(0, 29))
@settings(max_examples=60, deadline=None)
def test_is_the_score_of_what_is_expected(seed, n_genes, n_components, n_lost):
    n_lost = min(n_lost, n_genes - 1)
    weight, bias, mean, loadings, measured = case(seed, n_genes, n_components, n_lost)
    x = torch.rand(5, n_genes, dtype=torch.float64)
    covariance = (loadings @ loadings.T + torch.eye(n_genes)).numpy()
    o, m = measured.numpy(), ~measured.numpy()
    slope = covariance[np.ix_(m, o)] @ np.linalg.inv(covariance[np.ix_(o, o)])
    filled = x.numpy().copy()
    filled[:, m] = mean.numpy()[m] + (filled[:, o] - mean.numpy()[o]) @ slope.T
    carried, moved = stand_in(weight, bias, mean, loadings, measured)
    expected = filled @ weight.numpy().T + bias.numpy()
    np.testing.assert_allclose((x @ carried.T + moved).numpy(), expected, atol=1e-8)
    assert not carried[:, m].any()


def test_without_components_a_gene_counts_as_its_mean():
    weight, bias, mean, loadings, measured = case(0, 6, 4, 2)
    carried, moved = stand_in(weight, bias, mean, loadings[:, :0], measured)
    torch.testing.assert_close(carried, weight * measured)
    torch.testing.assert_close(moved, bias + (weight * ~measured) @ mean)


def test_the_same_in_half_precision():
    parts = case(0, 40, 5, 8, torch.float32)
    expected = stand_in(*parts)
    with torch.autocast("cpu", torch.bfloat16):
        found = stand_in(*parts)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_copy_stands_in_for_its_gene():
    mean = torch.zeros(3)
    loadings = torch.tensor([[100.0], [100.0], [0.0]])
    weight = torch.tensor([[2.0, 1.0, 5.0]])
    measured = torch.tensor([False, True, True])
    carried, moved = stand_in(weight, torch.zeros(1), mean, loadings, measured)
    np.testing.assert_allclose(carried.numpy(), [[0, 3, 5]], atol=1e-3)
    assert float(moved) == pytest.approx(0)
