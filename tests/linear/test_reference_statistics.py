"""Distances from labels: calibrated on known cells, large for new types."""

import numpy as np
import pytest
import scipy.sparse as sp

from tosica.linear import fit_statistics, pvalues

N_GENES = 60


def draw(n_cells, seed, rate=3.0, kinds=3):
    """Cells of types with ten genes each, and the number of each cell's type."""
    rng = np.random.default_rng(seed)
    kind = np.arange(n_cells) % kinds
    mean = np.full((n_cells, N_GENES), 0.5)
    for i in range(kinds):
        mean[np.ix_(kind == i, range(10 * i, 10 * i + 10))] = rate
    return sp.csr_matrix(np.log1p(rng.poisson(mean)).astype(np.float32)), kind


@pytest.fixture(scope="module")
def statistics():
    statistics = fit_statistics(*draw(300, seed=0))
    assert statistics is not None
    return statistics


def test_new_cells_of_known_types_score_as_the_references_did(statistics):
    scores, nearest = statistics.score_cells(draw(600, seed=1)[0])
    assert np.mean(scores) == pytest.approx(0, abs=0.15)
    share = (pvalues(scores, statistics.reference_scores) <= 0.05).mean()
    assert 0.02 < share < 0.09
    assert (nearest == np.arange(600) % 3).mean() > 0.95


def test_nothing_is_fitted_to_cells_that_are_alike_or_alone():
    x, kind = draw(30, seed=0)
    assert fit_statistics(sp.csr_matrix(np.ones((30, N_GENES))), kind) is None
    assert fit_statistics(x[:2], kind[:2]) is None
    assert fit_statistics(x, np.arange(30)) is None


def test_labels_keep_their_codes():
    x, kind = draw(60, seed=0)
    statistics = fit_statistics(x, kind * 2 + 1)
    assert statistics.labels.tolist() == [1, 3, 5]


@pytest.mark.parametrize("n_cells", [300, 600])
def test_p_values_hold_where_most_components_are_noise(n_cells):
    """Components that were fitted to fewer cells make other cells look nearer."""
    rng = np.random.default_rng(1)
    n_genes = 1000
    kind = np.arange(n_cells + 4000) % 4
    rates = rng.lognormal(-1.5, 1.2, n_genes) * rng.lognormal(0, 0.3, (4, n_genes))
    x = sp.csr_matrix(np.log1p(rng.poisson(rates[kind])).astype(np.float32))
    statistics = fit_statistics(x[:n_cells], kind[:n_cells])
    scores, _ = statistics.score_cells(x[n_cells:].toarray())
    p_values = pvalues(scores, statistics.reference_scores)
    for level in (0.05, 0.1, 0.2):
        spread = np.sqrt(level * (1 - level) / n_cells)
        assert (p_values <= level).mean() < level + 2 * spread
