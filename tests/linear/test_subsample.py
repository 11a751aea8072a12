"""Some of a reference's cells."""

from __future__ import annotations

import numpy as np

from tosica.linear._subsample import draw


def test_of_very_many_cells_rare_labels_are_whole():
    labels = np.repeat([0, 1, 2, 3], [5000, 300, 40, 2])
    drawn = draw(labels, 500)
    assert len(np.unique(drawn)) == len(drawn) <= 500
    counts = np.bincount(labels[drawn])
    assert counts[2] == 40
    assert counts[3] == 2
    assert counts[0] == counts[1] == 229
    np.testing.assert_array_equal(draw(labels, 6000), np.arange(len(labels)))
