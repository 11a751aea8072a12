"""Which cells of a query teach, and how sure the model may become."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy.special import softmax

from tosica.linear import _self_training, limit_confidence
from tosica.linear._self_training import choose_teachers, nearest_cells

ALONE = np.arange(6)[:, None]
SURE = np.array([[5.0, 0], [4, 0], [3, 0], [2, 0], [0, 3], [0, 1]])


def test_the_most_certain_cells_of_each_label_teach(monkeypatch):
    monkeypatch.setattr(_self_training, "_TEACHER_SHARE", 0.5)
    monkeypatch.setattr(_self_training, "_FEWEST_TEACHERS", 1)
    teachers = choose_teachers(SURE, ALONE, np.zeros(6, dtype=bool))
    assert_array_equal(teachers, [0, 1, 4])


def test_a_few_cells_of_a_label_teach_in_any_case():
    teachers = choose_teachers(SURE, ALONE, np.zeros(6, dtype=bool))
    assert_array_equal(teachers, [0, 1, 2, 4, 5])


def test_doubted_cells_never_teach():
    teachers = choose_teachers(SURE, ALONE, np.arange(6) == 0)
    assert 0 not in teachers


def test_cells_whose_neighborhood_has_another_label_do_not_teach():
    neighbors = np.array(
        [[0, 1, 2], [1, 0, 2], [2, 0, 1], [3, 4, 5], [4, 3, 5], [5, 4, 3]]
    )
    logits = np.array([[4.0, 0], [4, 0], [4, 0], [1, 0], [0, 4], [0, 4]])
    teachers = choose_teachers(logits, neighbors, np.zeros(6, dtype=bool))
    assert 3 not in teachers
    assert {0, 1, 2, 4, 5} == set(teachers)


def test_order_of_the_cells_does_not_matter():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (40, 3))
    neighbors = np.stack([np.append(i, rng.permutation(40)[:4]) for i in range(40)])
    order = rng.permutation(40)
    inverse = np.argsort(order)
    nobody = np.zeros(40, dtype=bool)
    teachers = choose_teachers(logits, neighbors, nobody)
    shuffled = choose_teachers(logits[order], inverse[neighbors[order]], nobody)
    assert set(order[shuffled]) == set(teachers)


def test_nearest_cells_are_of_the_same_cluster():
    rng = np.random.default_rng(0)
    kind = np.arange(60) % 3
    x = sp.csr_matrix(
        rng.poisson(1 + 9 * (np.arange(30) // 10 == kind[:, None])).astype(np.float32)
    )
    neighbors = nearest_cells(x, 3)
    assert neighbors.shape == (60, 5)
    assert_array_equal(neighbors[:, 0], np.arange(60))
    assert (kind[neighbors] == kind[:, None]).mean() > 0.95


@pytest.mark.parametrize("n_cells", [1, 2, 11])
def test_few_cells_have_no_neighbors(n_cells):
    neighbors = nearest_cells(sp.csr_matrix(np.ones((n_cells, 4))), 3)
    assert_array_equal(neighbors, np.arange(n_cells)[:, None])


@given(highest=st.floats(0.4, 0.99), scale=st.floats(0.1, 20))
def test_the_mean_probability_is_limited(highest, scale):
    logits = scale * np.random.default_rng(0).normal(0, 1, (50, 3))
    temperature = limit_confidence(logits, highest)
    uncalibrated = softmax(logits, axis=1).max(1).mean()
    calibrated = softmax(logits / temperature, axis=1).max(1).mean()
    assert temperature >= 1
    assert calibrated == pytest.approx(min(uncalibrated, highest), abs=1e-3)
