"""Library-size normalisation, against scanpy's."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pytest
import scanpy as sc
import torch

from tosica.data import LogNormalization


def log_normalize(
    counts: torch.Tensor, target_sum: float, total: torch.Tensor | None = None
) -> torch.Tensor:
    return LogNormalization(target_sum).normalize(counts, total=total)


@pytest.fixture
def counts() -> np.ndarray:
    rng = np.random.default_rng(0)
    depth = rng.lognormal(5, 2, (40, 1))
    counts = rng.poisson(depth * rng.dirichlet(np.full(200, 0.1))).astype(np.float32)
    counts[:, 0] += 1  # no cell is empty
    return counts


def scanpys(counts: np.ndarray, target_sum: float) -> np.ndarray:
    adata = ad.AnnData(counts.copy())
    sc.pp.normalize_total(adata, target_sum=target_sum)
    sc.pp.log1p(adata)
    return adata.X


@pytest.mark.parametrize("target_sum", [1e4, 1e6, 37.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_as_scanpy_does(
    counts: np.ndarray, target_sum: float, dtype: torch.dtype
) -> None:
    got = log_normalize(torch.from_numpy(counts).to(dtype), target_sum)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, scanpys(counts, target_sum), rtol=2e-6)


@pytest.mark.parametrize("total", [None, torch.tensor([0.0, 8.0], dtype=torch.float64)])
def test_an_empty_cell_stays_zero(total: torch.Tensor | None) -> None:
    counts = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 3.0]])
    got = log_normalize(counts, 8, total)
    factor = 1 if total is not None else 2
    expected = torch.tensor(
        [[0.0, 0.0, 0.0], [1.0 * factor, 0.0, 3.0 * factor]]
    ).log1p()
    torch.testing.assert_close(got, expected)


def test_order_of_the_genes_leaves_no_trace(counts: np.ndarray) -> None:
    order = np.random.default_rng(1).permutation(200)
    x = torch.from_numpy(counts * np.float32(1000.1))
    assert torch.equal(log_normalize(x[:, order], 1e4), log_normalize(x, 1e4)[:, order])
