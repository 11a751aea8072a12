"""Recognize by whole multiples or by totals which transform cells went through."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp

from tosica.data import CellMatrix
from tosica.data._transforms import NONE, TRANSFORMS, recognize, sample_cells, sample_positions

COUNTS = np.random.default_rng(0).poisson(
    np.random.default_rng(1).lognormal(-0.5, 1, 200), (60, 200)
)
SHARES = COUNTS / COUNTS.sum(1, keepdims=True)
READS = COUNTS * np.random.default_rng(2).lognormal(0, 1, 200)
READS /= READS.sum(1, keepdims=True)
# In the order of TRANSFORMS.
DO = [
    lambda x: x,
    np.log1p,
    lambda x: np.log2(1 + x),
    lambda x: np.log10(1 + x),
    lambda x: np.log1p(np.log1p(x)),
    np.sqrt,
]
each_transform = pytest.mark.parametrize(
    ("transform", "do"), [*zip(TRANSFORMS, DO, strict=True)], ids=[t.name for t in TRANSFORMS]
)


def sample(x) -> sp.csr_matrix:
    return sample_cells(CellMatrix(ad.AnnData(x)))


@each_transform
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("genes", [slice(None), slice(0, 200, 4)], ids=["all genes", "few"])
@pytest.mark.parametrize("total", [1, 1e3, 1e4, 1e6])
def test_whole_multiples(transform, do, dtype, genes, total):
    found = recognize(sample(do(total * SHARES)[:, genes].astype(dtype)))
    assert (found.transform.name, found.whole_multiples, found.other) == (
        transform.name,
        True,
        None,
    )
    expected = total * SHARES[:, genes]
    np.testing.assert_allclose(found.plain.toarray(), expected, rtol=1e-4)
    if genes == slice(None):
        assert found.common_total() == pytest.approx(total, rel=1e-4)
    else:
        assert found.common_total() is None


@each_transform
def test_one_cell(transform, do):
    for cell in range(10):
        found = recognize(sample(do(1e4 * SHARES[[cell]]).astype("float32")))
        assert found.transform.name == transform.name
        assert found.common_total() is None


@each_transform
def test_totals(transform, do):
    x = do(1e4 * READS)
    found = recognize(sample(x))
    assert (found.transform.name, found.whole_multiples) == (transform.name, False)
    # Without some genes, nothing is known; nor of few cells.
    assert recognize(sample(x[:, :150])) is None
    assert recognize(sample(x[:7])) is None


def test_values_that_were_rounded():
    x = np.log1p(1e4 * SHARES).round(3)
    assert recognize(sample(x)).transform.name == "the natural logarithm"
    assert recognize(sample(x[:, ::3])).transform.name == "the natural logarithm"
    half = np.log1p(1e4 * SHARES).astype(np.float16).astype(np.float32)
    assert recognize(sample(half)).transform.name == "the natural logarithm"


@pytest.mark.parametrize("share", [0.15, 0.5])
def test_two_transforms(share):
    one, other = np.log1p(1e4 * SHARES), np.log2(1 + 1e4 * SHARES)
    x = np.where(np.arange(60)[:, None] < 60 * share, other, one)
    found = recognize(sample(x))
    assert {found.transform.name, found.other.name} == {"the natural logarithm", "log2"}


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((5, 4)),
        # A cell of few values, or of equal ones, fits anything.
        np.log1p(1e4 * SHARES[:1, :5]),
        np.where(COUNTS[:3] > 0, 2.3, 0),
    ],
)
def test_too_little_to_know(x):
    assert recognize(sample(x)) is None


def test_unscaled_counts():
    assert recognize(sample(np.log1p(COUNTS))).unscaled().all()
    assert recognize(sample(np.log1p(COUNTS[:2]))).unscaled().all()
    assert not recognize(sample(np.log1p(1e4 * SHARES))).unscaled().any()
    assert recognize(sample(COUNTS / 2)).transform is NONE


@pytest.mark.parametrize("n_obs", [1, 7, 8, 250, 300, 5000])
def test_cells_are_chosen_from_all_over(n_obs):
    found = sample_positions(n_obs)
    assert (np.diff(found) > 0).all()
    assert found[0] == 0
    assert found[-1] == n_obs - 1
    assert min(n_obs, 200) <= len(found) <= 256


def test_the_matrix_stays_as_it_is():
    x = sp.csr_matrix(np.log1p(1e4 * SHARES))
    x.data[::7] = 0
    before = x.copy()
    recognize(sample(x))
    np.testing.assert_array_equal(x.data, before.data)
    np.testing.assert_array_equal(x.indptr, before.indptr)
