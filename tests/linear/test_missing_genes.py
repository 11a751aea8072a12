"""Probabilistic PCA, from which genes that a query lacks are imputed."""

import numpy as np
import pytest
import scipy.sparse as sp
from anndata import AnnData
from numpy.testing import assert_allclose, assert_array_equal

from tosica import linear
from tosica.data import CellMatrix, ModalitySlice
from tosica.linear import LabeledRows, fit_ppca


def fit(matrix, cells=None):
    matrix = np.asarray(matrix, dtype=np.float32)
    cells = np.arange(len(matrix)) if cells is None else cells
    rows = CellMatrix(AnnData(sp.csr_matrix(matrix)))
    modality_slice = ModalitySlice(0, matrix.shape[1])
    return fit_ppca(
        LabeledRows(
            rows, cells, np.zeros(len(cells), dtype=np.int64), (modality_slice,)
        )
    )


def simulate(n_cells=2000, n_genes=40, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    loadings = rng.normal(0, 1, (n_genes, 3))
    return 20 + rng.normal(size=(n_cells, 3)) @ loadings.T + rng.normal(
        0, noise, (n_cells, n_genes)
    ), loadings


def test_finds_the_simulated_components():
    x, loadings = simulate(3000, 150)
    mean, components = fit(x)
    assert_allclose(mean, x.mean(0), rtol=1e-5)
    # In units of the noise. Further components are short.
    covariance = components @ components.T
    expected = loadings @ loadings.T
    assert_allclose(0.3**2 * covariance, expected, atol=0.1 * expected.max())
    assert components.shape == (150, 20)


def test_only_the_given_cells_are_used():
    x, _ = simulate(300)
    cells = np.arange(0, 300, 2)
    zeroed = x.copy()
    zeroed[1::2] = 0
    for a, b in zip(fit(x, cells), fit(zeroed, cells), strict=True):
        assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("n_cells", "n_components"), [(9, 0), (10, 1), (57, 5), (400, 20)]
)
def test_few_cells_have_few_components(n_cells, n_components):
    mean, loadings = fit(simulate(n_cells)[0])
    assert mean.any()
    assert loadings.shape == (40, n_components)
    assert loadings.any() == (n_components > 0)


@pytest.mark.parametrize("value", [0.0, 2.5])
def test_identical_cells_have_no_components(value):
    mean, loadings = fit(np.full((50, 6), value))
    assert_allclose(mean, value, rtol=1e-6)
    assert loadings.shape == (6, 0)


def test_noise_has_a_least_variance(monkeypatch):
    x, _ = simulate(60, noise=0)
    _, loadings = fit(x)
    assert np.isfinite(loadings).all()
    # Three components have all of the variance, and a hundredth of it counts as noise.
    assert np.square(loadings).sum() == pytest.approx(100 * 40, rel=0.05)
    monkeypatch.setattr(linear._classifier, "_MIN_NOISE", 0.1)
    _, shorter = fit(x)
    assert np.square(shorter).sum() == pytest.approx(10 * 40, rel=0.1)
