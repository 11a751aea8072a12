"""The linear branch, against the conditional expectation written out in numpy."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from tosica.data import ModalitySlice
from tosica.module._module import LinearBranch

N_LABELS = 3


def make(n_genes, *, n_components=0, seed=0):
    """A branch in double precision."""
    rng = np.random.default_rng(seed)
    branch = LinearBranch((ModalitySlice(0, n_genes),), N_LABELS).double()
    branch.weights.copy_(torch.from_numpy(rng.normal(size=branch.weights.shape)))
    branch.bias.copy_(torch.from_numpy(rng.normal(size=N_LABELS)))
    branch.mean.copy_(torch.from_numpy(rng.random(n_genes)))
    branch.loadings = torch.from_numpy(2 * rng.normal(size=(n_genes, n_components)))
    return branch


def cells(n_genes, n_cells=5):
    rng = np.random.default_rng(9)
    return torch.from_numpy(rng.gamma(1.0, size=(n_cells, n_genes)))


def logits(branch, x):
    return x @ branch.weights.numpy().T + branch.bias.numpy()


def expected_given_others(x, branch, measured):
    """Genes that were not measured at the mean of a normal distribution given the others."""
    mean = branch.mean.numpy()
    loadings = branch.loadings.numpy()
    covariance = loadings @ loadings.T + np.eye(len(mean))
    within = covariance[np.ix_(measured, measured)]
    slope = covariance[np.ix_(~measured, measured)] @ np.linalg.inv(within)
    filled = x.copy()
    above_mean = filled[:, measured] - mean[measured]
    filled[:, ~measured] = mean[~measured] + above_mean @ slope.T
    return filled


def test_more_than_the_largest_value_counts_as_the_largest():
    branch = make(6)
    x = cells(6)
    branch.clip_max.copy_(x.median(0).values)
    bounded = np.minimum(x.numpy(), branch.clip_max.numpy())
    assert (bounded < x.numpy()).any()
    assert_array_equal(branch.clip_and_impute(x), bounded)
    assert_allclose(branch(x), logits(branch, bounded), atol=1e-10)
    # Nothing is expected of genes by a value that does not count.
    branch.loadings = torch.ones(6, 2).double()
    measured = np.arange(6) != 2
    imputed = branch.clip_and_impute(x, torch.from_numpy(measured)).numpy()
    assert_allclose(
        imputed, expected_given_others(bounded, branch, measured), atol=1e-10
    )


@given(st.integers(0, 99), st.integers(2, 30), st.integers(0, 8), st.integers(1, 29))
@settings(max_examples=25)
def test_genes_that_a_query_lacks_are_expected_given_the_others(
    seed, n_genes, n_components, n_missing
):
    branch = make(n_genes, n_components=n_components)
    measured = np.ones(n_genes, dtype=bool)
    genes = np.random.default_rng(seed).permutation(n_genes)
    measured[genes[: min(n_missing, n_genes - 1)]] = False
    x = cells(n_genes)
    expected = expected_given_others(x.numpy(), branch, measured)
    mask = torch.from_numpy(measured)
    assert_allclose(branch.clip_and_impute(x, mask), expected, atol=1e-8)
    scores = branch(x, mask)
    assert_allclose(scores, logits(branch, expected), atol=1e-7)
    # Values of genes that were not measured are not read.
    x[:, ~mask] = 7
    torch.testing.assert_close(branch(x, mask), scores, rtol=0, atol=0)
