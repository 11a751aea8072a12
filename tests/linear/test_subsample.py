"""Subsamples that keep rare labels."""

from __future__ import annotations

import numpy as np

from tosica.linear import subsample_by_label


def test_rare_labels_are_kept_and_frequent_ones_cut_to_one_size():
    labels = np.repeat([0, 1, 2, 3], [5000, 300, 40, 2])
    subsample = subsample_by_label(labels, 500)
    assert len(np.unique(subsample)) == len(subsample) <= 500
    np.testing.assert_array_equal(np.bincount(labels[subsample]), [229, 229, 40, 2])


def test_fewer_cells_than_the_subsample_are_all_taken():
    labels = np.repeat([0, 1, 2, 3], [5000, 300, 40, 2])
    np.testing.assert_array_equal(subsample_by_label(labels, 6000), np.arange(len(labels)))
