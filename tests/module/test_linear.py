"""The linear branch, against its sums and the conditional expectation written out in numpy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tosica.data import ModalitySlice
from tosica.module._module import LinearBranch

N_LABELS = 3


def make(
    sizes: list[int], n_genes: int, *, n_components: int = 0, seed: int = 0
) -> tuple[LinearBranch, np.ndarray]:
    """A branch in double precision, and where the pairs of each token begin and end."""
    rng = np.random.default_rng(seed)
    sets = [np.sort(rng.choice(n_genes, size, replace=False)) for size in sizes]
    genes = torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int64), *sets]))
    branch = LinearBranch(genes, (ModalitySlice(0, n_genes, None),), N_LABELS).double()
    branch.weight.copy_(torch.from_numpy(rng.normal(size=branch.weight.shape)))
    branch.bias.copy_(torch.from_numpy(rng.normal(size=N_LABELS)))
    branch.mean.copy_(torch.from_numpy(rng.random(n_genes)))
    branch.loadings = torch.from_numpy(2 * rng.normal(size=(n_genes, n_components)))
    return branch, np.cumsum([0, *sizes])


def cells(n_genes: int, n_cells: int = 5) -> torch.Tensor:
    return torch.from_numpy(
        np.random.default_rng(9).gamma(1.0, size=(n_cells, n_genes))
    )


def summed(branch: LinearBranch, indptr: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The logits, one token and gene after the other."""
    logits = np.tile(branch.bias.numpy(), (len(x), 1))
    for start, stop in pairwise(indptr):
        for pair in range(start, stop):
            gene = int(branch.genes[pair])
            logits += x[:, [gene]] * branch.weight[:, pair].numpy()
    return logits


def expected_given_others(
    x: np.ndarray, branch: LinearBranch, measured: np.ndarray
) -> np.ndarray:
    """Genes that were not measured at the mean of a normal distribution given the others."""
    mean, loadings = branch.mean.numpy(), branch.loadings.numpy()
    covariance = loadings @ loadings.T + np.eye(len(mean))
    o, m = measured, ~measured
    slope = covariance[np.ix_(m, o)] @ np.linalg.inv(covariance[np.ix_(o, o)])
    filled = x.copy()
    filled[:, m] = mean[m] + (filled[:, o] - mean[o]) @ slope.T
    return filled


SHAPES = st.tuples(
    st.integers(1, 30).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(1, n), max_size=8))
    ),
    st.integers(0, 99),
)


@given(SHAPES)
@example(((9, []), 0))
@example(((9, [9, 9, 1]), 0))
@settings(max_examples=15)
def test_logits_are_a_sum_over_tokens_and_their_genes(shape):
    (n_genes, sizes), seed = shape
    branch, indptr = make(sizes, n_genes, seed=seed)
    x = cells(n_genes)
    np.testing.assert_allclose(branch(x), summed(branch, indptr, x.numpy()), atol=1e-10)


def test_more_than_the_largest_value_counts_as_the_largest():
    branch, indptr = make([3, 5], 6)
    x = cells(6)
    branch.clip_max.copy_(x.median(0).values)
    bounded = np.minimum(x.numpy(), branch.clip_max.numpy())
    assert (bounded < x.numpy()).any()
    np.testing.assert_array_equal(branch.expression(x), bounded)
    np.testing.assert_allclose(branch(x), summed(branch, indptr, bounded), atol=1e-10)
    # Nothing is expected of genes by a value that does not count.
    branch.loadings = torch.ones(6, 2).double()
    measured = np.arange(6) != 2
    found = branch.expression(x, torch.from_numpy(measured)).numpy()
    np.testing.assert_allclose(
        found, expected_given_others(bounded, branch, measured), atol=1e-10
    )


@given(st.integers(0, 99), st.integers(2, 30), st.integers(0, 8), st.integers(1, 29))
@settings(max_examples=25)
def test_genes_that_a_query_lacks_are_expected_given_the_others(
    seed, n_genes, n_components, n_lost
):
    branch, indptr = make(
        [n_genes, max(1, n_genes // 2)], n_genes, n_components=n_components
    )
    measured = np.ones(n_genes, dtype=bool)
    lost = np.random.default_rng(seed).permutation(n_genes)[: min(n_lost, n_genes - 1)]
    measured[lost] = False
    x = cells(n_genes)
    expected = expected_given_others(x.numpy(), branch, measured)
    given_measured = torch.from_numpy(measured)
    np.testing.assert_allclose(
        branch.expression(x, given_measured), expected, atol=1e-8
    )
    logits = branch(x, given_measured)
    np.testing.assert_allclose(logits, summed(branch, indptr, expected), atol=1e-7)
    # Whatever stands for genes that were not measured is not read.
    x[:, ~given_measured] = 7
    torch.testing.assert_close(branch(x, given_measured), logits, rtol=0, atol=0)
