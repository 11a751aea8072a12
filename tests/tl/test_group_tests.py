"""Moderated tests of groups."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from tosica.tl._group_tests import moderated_t


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


@settings(max_examples=10)
@given(df=st.integers(2, 20), prior=st.floats(2, 30), seed=st.integers(0, 1000))
def test_moderated_p_values_are_uniform_where_nothing_differs(df, prior, seed):
    assert (np.abs(_shares_below(df, prior, seed) - LEVELS) < SLACK).all()


def test_moderated_t_where_variances_are_equal_or_zero():
    t, pvals = moderated_t(np.zeros(4), np.zeros(4), 2, 1.0)
    assert (t == 0).all()
    assert (pvals == 1).all()
    # Equal variances are known exactly, so the normal distribution is what is left.
    t, pvals = moderated_t(np.full(500, 2.0), np.full(500, 1.0), 50, 1.0)
    assert_allclose(t, 2 / np.sqrt(np.exp(-np.log(1) + 0.0)), rtol=0.05)
    assert (pvals < 0.06).all()
