"""Cells that are drawn from statistics, and shifts of a query, label by label."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

from tosica.linear import (
    find_label_shifts,
    fit_statistics,
    replay_cells,
)

N_GENES = 60


def cells(n, seed):
    """Three labels with 15 genes of their own each, and mostly zeros."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    rate = np.full((n, N_GENES), 0.1)
    for label in range(3):
        rate[labels == label, 15 * label : 15 * label + 15] = 1.5
    rate *= rng.gamma(8, 1 / 8, (n, 1))
    return sp.csr_matrix(np.log1p(rng.poisson(rate)).astype(np.float32)), labels


@pytest.fixture(scope="module")
def statistics():
    fitted = fit_statistics(*cells(600, 0))
    assert fitted is not None
    return fitted


def test_drawn_cells_are_like_the_reference(statistics):
    x, labels = cells(600, 0)
    replayed, positions = replay_cells(statistics)
    assert replayed.shape == (300, N_GENES)
    assert replayed.min() >= 0
    for label in range(3):
        real = x[labels == label].toarray()
        simulated = replayed[positions == label].toarray()
        assert_allclose(simulated.mean(0), real.mean(0), atol=0.15)
        markers = slice(15 * label, 15 * label + 15)
        assert simulated[:, markers].std(0).mean() == pytest.approx(
            real[:, markers].std(0).mean(), rel=0.25
        )
        assert (simulated > 0).mean() == pytest.approx((real > 0).mean(), rel=0.25)


def test_drawn_cells_follow_the_shift_and_the_seed(statistics):
    shifts = np.zeros((3, N_GENES))
    shifts[:, -5:] = 2.0
    plain, _ = replay_cells(statistics, seed=1)
    shifted, _ = replay_cells(statistics, shifts, seed=1)
    # A random share between zero and one of the shift.
    assert (shifted - plain)[:, -5:].mean() == pytest.approx(1.0, abs=0.1)
    repeated, _ = replay_cells(statistics, seed=1)
    assert (repeated != plain).nnz == 0


def test_shifts_are_found_while_new_cells_are_among_them(statistics):
    x, labels = cells(400, 5)
    dense = x.toarray()
    dense[:, 50:] += 1.0
    # A fourth of the cells with the first label are of a new type.
    is_new = (labels == 0) & (np.arange(400) % 4 == 0)
    dense[is_new, 15:30] = 0
    dense[is_new, :15] = 0
    dense[is_new, 45:50] += 3.0
    new_mean = dense[is_new].mean(0)[None]
    shifted = find_label_shifts(
        sp.csr_matrix(dense), labels, np.zeros(400, dtype=bool), new_mean, statistics
    )
    assert (shifted.labels[is_new] == -1).mean() > 0.95
    assert (shifted.labels[~is_new] == labels[~is_new]).mean() > 0.95
    assert_allclose(shifted.shifts[:, 50:].mean(1), 1.0, atol=0.15)
    assert np.abs(shifted.shifts[:, :50]).mean() < 0.15


def test_labels_without_cells_shift_as_the_others_do(statistics):
    x, labels = cells(400, 6)
    dense = x.toarray()
    dense[:, 50:] += 1.0
    has_label = labels != 2
    shifted = find_label_shifts(
        sp.csr_matrix(dense[has_label]),
        labels[has_label],
        np.ones(int(has_label.sum()), dtype=bool),
        np.full((1, N_GENES), 9.0),
        statistics,
    )
    assert_allclose(shifted.shifts[2, 50:].mean(), 1.0, atol=0.15)
