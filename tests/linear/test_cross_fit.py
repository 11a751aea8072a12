"""Cross-fitting: folds, and the classifiers that are fitted without them."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import scvi

from tosica.linear import fit_logistic_regression
from tosica.linear._cross_fit import cross_fit

# The last label has a single cell.
LABELS = np.repeat([0, 1, 2, 3], [50, 20, 2, 1])


def expression():
    rng = np.random.default_rng(0)
    return sp.csr_matrix(rng.gamma(1.0, size=(73, 30)) + np.eye(4)[LABELS] @ np.eye(4, 30))


def folds():
    """Which cells are in each fold."""
    return np.array([held for held, _ in cross_fit(expression(), LABELS, lambda x, labels: None)])


def test_each_cell_is_held_out_once():
    held = folds()
    assert len(held) == 5
    np.testing.assert_array_equal(held[:, :72].sum(0), 1)


def test_the_only_cell_of_a_label_is_in_no_fold():
    np.testing.assert_array_equal(folds()[:, 72], False)


def test_folds_are_stratified_by_label():
    for held in folds():
        found = np.bincount(LABELS[held], minlength=4)
        assert found[0] == 10
        assert found[1] == 4
        # The other folds still have one.
        assert found[2] <= 1


def test_every_classifier_has_every_label():
    known = [set(labels) for _, labels in cross_fit(expression(), LABELS, lambda _, of: of)]
    assert known == [{0, 1, 2, 3}] * 5


def test_a_classifier_is_fitted_to_the_other_folds_alone():
    x = expression()
    for held, found in cross_fit(x, LABELS, fit_logistic_regression):
        changed = x.toarray()
        changed[held] = 100
        expected = fit_logistic_regression(sp.csr_matrix(changed)[~held], LABELS[~held])
        np.testing.assert_allclose(found.weights, expected.weights)


def test_there_is_no_fold_without_cells():
    x, labels = expression()[[0, 1, 50, 72]], np.array([0, 0, 1, 2])
    held = [held for held, _ in cross_fit(x, labels, lambda x, labels: None)]
    assert 1 <= len(held) <= 2
    np.testing.assert_array_equal(np.sum(held, 0), [1, 1, 0, 0])
    assert not list(cross_fit(x[[0, 2, 3]], np.arange(3), lambda x, labels: None))


def test_folds_follow_the_seed():
    one, same = folds(), folds()
    np.testing.assert_array_equal(one, same)
    scvi.settings.seed = 1
    assert (folds() != one).any()


def test_number_of_folds():
    folds = list(cross_fit(expression(), LABELS, lambda x, labels: None, n_folds=10))
    assert len(folds) == 10
    assert {held[LABELS == 0].sum() for held, _ in folds} == {5}
