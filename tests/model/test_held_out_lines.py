"""Lines through parts of a reference."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from tosica.model._held_out_lines import held_out_lines
from tosica.model._line import fit_line

LABELS = np.repeat([0, 1, 2], [50, 20, 2])


def expression():
    rng = np.random.default_rng(0)
    return sp.csr_matrix(rng.gamma(1.0, size=(72, 30)) + np.eye(3)[LABELS] @ np.eye(3, 30))


def test_each_cell_is_held_out_once():
    held = np.array([of_fold for of_fold, _ in held_out_lines(expression(), LABELS, fit_line)])
    np.testing.assert_array_equal(held.sum(0), 1)


def test_folds_have_equal_parts_of_each_label():
    for held, _ in held_out_lines(expression(), LABELS, fit_line):
        found = np.bincount(LABELS[held], minlength=3)
        assert found[0] == 10
        assert found[1] == 4
        # So that the others still have one.
        assert found[2] <= 1


def test_lines_have_not_seen_the_fold():
    x = expression()
    for held, line in held_out_lines(x, LABELS, fit_line):
        spoilt = x.toarray()
        spoilt[held] = 100
        expected = fit_line(sp.csr_matrix(spoilt)[~held], LABELS[~held])
        for values, known in zip(line, expected, strict=True):
            np.testing.assert_allclose(values, known)
