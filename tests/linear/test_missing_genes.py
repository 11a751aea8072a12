"""How genes vary together in a reference."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from anndata import AnnData

from tosica.data._cell_matrix import CellMatrix
from tosica.data._normalize import ModalitySlice
from tosica.linear._missing_genes import fit_ppca


def found_in(matrix, cells=None):
    matrix = np.asarray(matrix, dtype=np.float32)
    cells = np.arange(len(matrix)) if cells is None else cells
    rows = CellMatrix(AnnData(sp.csr_matrix(matrix)))
    section = ModalitySlice(0, matrix.shape[1], None, 1.0)
    return fit_ppca(rows, cells, np.zeros(len(cells), dtype=np.int64), section)


def planted(n_cells=2000, n_genes=40, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    loadings = rng.normal(0, 1, (n_genes, 3))
    return 20 + rng.normal(size=(n_cells, 3)) @ loadings.T + rng.normal(
        0, noise, (n_cells, n_genes)
    ), loadings


def test_finds_what_was_planted():
    x, loadings = planted(3000, 150)
    mean, found = found_in(x)
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-5)
    # In units of the noise; directions beyond the planted ones hardly count.
    covariance = found @ found.T
    expected = loadings @ loadings.T
    np.testing.assert_allclose(0.3**2 * covariance, expected, atol=0.1 * expected.max())
    assert found.shape == (150, 20)


def test_genes_that_share_nothing_tell_nothing_of_each_other():
    rng = np.random.default_rng(0)
    mean, loadings = found_in(20 + rng.normal(size=(10_000, 40)))
    new = 20 + rng.normal(size=(2000, 40)) - mean
    lost, seen = loadings[:10], loadings[10:]
    expected = new[:, 10:] @ seen @ np.linalg.inv(np.eye(20) + seen.T @ seen) @ lost.T
    assert np.square(new[:, :10] - expected).mean() < 1.01 * np.square(new[:, :10]).mean()


def test_only_the_cells_asked_for():
    x, _ = planted(300)
    cells = np.arange(0, 300, 2)
    other = x.copy()
    other[1::2] = 0
    for a, b in zip(found_in(x, cells), found_in(other, cells), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("n_cells", "n_components"), [(9, 0), (10, 1), (57, 5), (400, 20)])
def test_few_cells_have_few_components(n_cells, n_components):
    mean, loadings = found_in(planted(n_cells)[0])
    assert mean.any()
    assert loadings.shape == (40, n_components)
    assert loadings.any() == (n_components > 0)


def test_the_same_at_every_call():
    x, _ = planted(100)
    for a, b in zip(found_in(x), found_in(x), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("value", [0.0, 2.5])
def test_cells_that_are_all_alike(value):
    mean, loadings = found_in(np.full((50, 6), value))
    np.testing.assert_allclose(mean, value, rtol=1e-6)
    assert loadings.shape == (6, 0)


def test_noise_is_never_nothing():
    x, _ = planted(60, noise=0)
    _, loadings = found_in(x)
    assert np.isfinite(loadings).all()
    # Three directions have all of the variance, and a hundredth of it counts as noise.
    assert np.square(loadings).sum() == pytest.approx(100 * 40, rel=0.05)
