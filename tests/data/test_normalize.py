"""Library-size normalization, against scanpy's."""

import anndata as ad
import numpy as np
import pytest
import scanpy as sc
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from tosica.data import CenteredLogRatio, LogNormalization


@pytest.fixture
def counts():
    rng = np.random.default_rng(0)
    depth = rng.lognormal(5, 2, (40, 1))
    counts = rng.poisson(depth * rng.dirichlet(np.full(200, 0.1))).astype(np.float32)
    counts[:, 0] += 1  # no cell is empty
    return counts


def scanpys(counts, target_sum):
    adata = ad.AnnData(counts.copy())
    sc.pp.normalize_total(adata, target_sum=target_sum)
    sc.pp.log1p(adata)
    return adata.X


@pytest.mark.parametrize("target_sum", [1e4, 1e6, 37.5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_as_scanpy_does(counts, target_sum, dtype, form):
    block = form(counts.astype(dtype))
    normalized = LogNormalization(target_sum).normalize_block(block)
    assert normalized.dtype == dtype
    dense = normalized.toarray() if sp.issparse(normalized) else normalized
    assert_allclose(dense, scanpys(counts, target_sum), rtol=2e-6)


def test_an_empty_cell_stays_zero():
    counts = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 3.0]])
    normalized = LogNormalization(8).normalize_block(counts)
    assert_allclose(normalized, np.log1p(counts * 2))


def test_totals_over_some_genes():
    counts = sp.csr_matrix(np.array([[2.0, 5.0, 6.0]]))
    columns = np.array([True, False, True])
    normalized = LogNormalization(16).normalize_block(counts, columns)
    assert_allclose(normalized.toarray(), np.log1p([[4.0, 10.0, 12.0]]))
    ratio = CenteredLogRatio().normalize_block(counts, columns)[:, columns]
    assert_allclose(ratio.mean(), 0, atol=1e-12)


def test_order_of_the_genes_leaves_no_trace(counts):
    order = np.random.default_rng(1).permutation(200)
    counts = counts * np.float32(1000.1)
    normalization = LogNormalization()
    assert_array_equal(
        normalization.normalize_block(counts[:, order]),
        normalization.normalize_block(counts)[:, order],
    )
