"""Cells that are drawn, and folds with the classifiers that are fitted without them."""

import numpy as np
import scipy.sparse as sp
import scvi
from numpy.testing import assert_allclose, assert_array_equal

from tosica.linear import cross_fit, fit_regressions, subsample_by_label

# The last label has a single cell.
LABELS = np.repeat([0, 1, 2, 3], [50, 20, 2, 1])


def expression():
    rng = np.random.default_rng(0)
    return sp.csr_matrix(
        rng.gamma(1.0, size=(73, 30)) + np.eye(4)[LABELS] @ np.eye(4, 30)
    )


def folds():
    """Which cells are in each fold."""
    return np.array([fold for fold, _ in cross_fit(LABELS, lambda cells: None)])


def test_folds_are_stratified_by_label():
    masks = folds()
    assert len(masks) == 5
    # Each cell is held out once, but for the only cell of a label.
    assert_array_equal(masks.sum(0), LABELS < 3)
    for fold in masks:
        counts = np.bincount(LABELS[fold], minlength=4)
        # The other folds still have a cell of the label with two.
        assert (counts[0], counts[1], counts[2] <= 1) == (10, 4, True)


def test_every_classifier_has_every_label():
    label_sets = [
        set(labels) for _, labels in cross_fit(LABELS, lambda cells: LABELS[cells])
    ]
    assert label_sets == [{0, 1, 2, 3}] * 5


def test_a_classifier_is_fitted_to_the_other_folds_alone():
    x = expression()
    for fold, fitted in cross_fit(
        LABELS, lambda cells: fit_regressions(x[cells], LABELS[cells])
    ):
        changed = x.toarray()
        changed[fold] = 100
        expected = fit_regressions(sp.csr_matrix(changed)[~fold], LABELS[~fold])
        assert_allclose(fitted.lasso, expected.lasso)


def test_there_is_no_fold_without_cells():
    fold = [fold for fold, _ in cross_fit(np.array([0, 0, 1, 2]), lambda cells: None)]
    assert 1 <= len(fold) <= 2
    assert_array_equal(np.sum(fold, 0), [1, 1, 0, 0])
    assert not list(cross_fit(np.arange(3), lambda cells: None))


def test_folds_follow_the_seed():
    masks = folds()
    same = folds()
    assert_array_equal(masks, same)
    scvi.settings.seed = 1
    assert (folds() != masks).any()


# ------------------------------------------------------------------ subsamples


def test_rare_labels_are_kept_and_frequent_ones_cut_to_one_size():
    labels = np.repeat([0, 1, 2, 3], [5000, 300, 40, 2])
    subsample = subsample_by_label(labels, 500)
    assert len(np.unique(subsample)) == len(subsample) <= 500
    assert_array_equal(np.bincount(labels[subsample]), [229, 229, 40, 2])


def test_fewer_cells_than_the_subsample_are_all_taken():
    labels = np.repeat([0, 1, 2, 3], [5000, 300, 40, 2])
    assert_array_equal(subsample_by_label(labels, 6000), np.arange(len(labels)))
