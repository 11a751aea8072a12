"""Moments of groups, standardised differences, and tests of sample means."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tosica._statistics import group_moments, moderated_t, standardized_difference


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(6, 40))
def test_moments_of_groups_add_up_to_those_of_all_cells(seed, n_groups, n_cells):
    rng = np.random.default_rng(seed)
    values = rng.random((n_cells, 3), dtype=np.float32)
    codes = np.concatenate([np.arange(n_groups), rng.integers(n_groups, size=n_cells - n_groups)])
    moments = group_moments(values, pd.Categorical.from_codes(codes, list("abcdef"[:n_groups])))
    np.testing.assert_allclose(moments.mean_of_cells, values.mean(axis=0, dtype=float))
    np.testing.assert_allclose(
        moments.variance_of_cells, values.var(axis=0, dtype=float), atol=1e-12
    )
    assert (moments.variance_within <= moments.variance_of_cells + 1e-12).all()


def _three_groups():
    """Values of a common, a rare and a third group, and the cells of each."""
    rng = np.random.default_rng(0)
    sizes, means = [60, 6, 20], [[1.0, 5.0], [3.0, 5.0], [2.0, 1.0]]
    cells = [rng.normal(m, [0.5, 2.0], (n, 2)) for n, m in zip(sizes, means, strict=True)]
    groups = pd.Categorical.from_codes(np.repeat([0, 1, 2], sizes), list("abc"))
    return group_moments(np.concatenate(cells), groups), cells


@pytest.mark.parametrize(
    ("reference", "others"),
    [("rest", [1, 2]), (1, [1]), (2, [2])],
)
def test_difference_from_cells_in_deviations_of_both_sides(reference, others):
    moments, cells = _three_groups()
    side, other = cells[0], np.concatenate([cells[i] for i in others])
    pooled = (side.var(0) * len(side) + other.var(0) * len(other)) / (len(side) + len(other))
    expected = (side.mean(0) - other.mean(0)) / np.sqrt(pooled)
    found = standardized_difference(moments, 0, reference, within="both sides")
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("reference", ["rest", "other groups"])
def test_difference_in_deviations_within_all_groups(reference):
    moments, cells = _three_groups()
    if reference == "rest":
        other = np.concatenate(cells[1:]).mean(0)
    else:
        # The rare group counts as much as the other.
        other = (cells[1].mean(0) + cells[2].mean(0)) / 2
    within = np.sqrt(sum(part.var(0) * len(part) for part in cells) / 86)
    found = standardized_difference(moments, 0, reference, within="all groups")
    np.testing.assert_allclose(found, (cells[0].mean(0) - other) / within)


def test_difference_where_nothing_varies():
    groups = pd.Categorical(list("aabb"))
    # The first variable is constant in each group, the second everywhere, the third varies.
    values = np.array([[2.0, 1, 0], [2, 1, 2], [1, 1, 5], [1, 1, 7]])
    moments = group_moments(values, groups)
    both = standardized_difference(moments, 0, within="both sides")
    np.testing.assert_allclose(both, [0, 0, -5])
    np.testing.assert_allclose(standardized_difference(moments, 0, within="all groups"), [1, 0, -5])
    constant = group_moments(values[:, :2], groups)
    np.testing.assert_allclose(standardized_difference(constant, 0, within="all groups"), [1, 0])


@pytest.mark.parametrize("within", ["both sides", "all groups"])
def test_a_single_group_differs_by_its_mean(within):
    values = np.array([[1.0, 2.0], [3.0, 2.0]])
    moments = group_moments(values, pd.Categorical(["a", "a"]))
    np.testing.assert_array_equal(standardized_difference(moments, 0, within=within), [2.0, 2.0])


def _shares_below(df, prior, seed):
    """Share of p-values below each level where nothing differs."""
    rng = np.random.default_rng(seed)
    variance = prior / rng.chisquare(prior, 3_000)
    difference = rng.normal(0, np.sqrt(variance))
    observed = variance * rng.chisquare(df, 3_000) / df
    _, pvals = moderated_t(difference, observed, df, 1.0)
    return np.array([(pvals < level).mean() for level in LEVELS])


LEVELS = np.array([0.01, 0.05, 0.2])
SLACK = 5 * np.sqrt(LEVELS / 3_000) + 0.3 * LEVELS


@settings(max_examples=15)
@given(df=st.integers(2, 20), prior=st.floats(2, 30), seed=st.integers(0, 1000))
def test_moderated_p_values_are_uniform_where_nothing_differs(df, prior, seed):
    assert (np.abs(_shares_below(df, prior, seed) - LEVELS) < SLACK).all()


@pytest.mark.parametrize("prior", [2.0, 4.0, 10.0, 30.0])
def test_with_one_degree_of_freedom_they_are_so_on_average(prior):
    """Of variances that vary this much the prior is hard to estimate: one draw in 15 is off."""
    shares = np.mean([_shares_below(1, prior, seed) for seed in range(40)], axis=0)
    assert (np.abs(shares - LEVELS) < SLACK / 2).all()


def test_moderated_t_where_variances_are_equal_or_zero():
    t, pvals = moderated_t(np.zeros(4), np.zeros(4), 2, 1.0)
    assert (t == 0).all()
    assert (pvals == 1).all()
    # Equal variances are known exactly, so the normal distribution is what is left.
    t, pvals = moderated_t(np.full(500, 2.0), np.full(500, 1.0), 50, 1.0)
    np.testing.assert_allclose(t, 2 / np.sqrt(np.exp(-np.log(1) + 0.0)), rtol=0.05)
    assert (pvals < 0.06).all()
