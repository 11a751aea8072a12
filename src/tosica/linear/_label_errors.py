"""Find cells of the reference whose labels the other cells contradict."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from tosica.data._align import BLOCK
from tosica.linear._cross_fit import MOST_CELLS, cross_fit
from tosica.linear._logistic_regression import gene_scale
from tosica.linear._subsample import draw, read

if TYPE_CHECKING:
    from tosica.data._cell_matrix import CellMatrix
    from tosica.data._normalize import ModalitySlice

# Weights are held so small that no regression learns single wrong labels by heart.
_C, _MAX_ITER = 0.3, 200
# A label this improbable, beside one that is more probable than all others together, is suspect.
_IMPROBABLE, _PROBABLE = 0.05, 0.5
# So many hard cells any reference may have.
_USUAL_SHARE = 0.07
# Hard cells come in all degrees, wrong labels are contradicted sharply: so large a part of all
# labels that the classifier would not have given.
_SHARP = 0.4
# No more of a label's cells are left out.
_MOST_OF_A_LABEL = 0.5
# Of a label with fewer cells, too few would be left to judge the others by.
_FEWEST = 5


def find_label_errors(
    rows: CellMatrix, cells: np.ndarray, labels: np.ndarray, section: ModalitySlice
) -> np.ndarray:
    """Cells whose label the other cells contradict, if they are more than a few.

    A cell is suspect if a classifier of the other folds' cells gives its label a probability under
    5 % and another one more than 50 % (after Northcutt et al., *J. Artif. Intell. Res.* 70, 2021).
    Some cells whose labels are right look so as well. They are taken for hard cells, which are
    worth most to a network, and none is returned, unless suspects are more than 7 % of the cells,
    and more than 40 % of those to which the classifier would have given another label: where types
    are hard to tell apart, it is often wrong, but in all degrees.

    Parameters
    ----------
    rows
        Expression of the reference.
    cells
        Positions of the labelled cells, in order, shape ``(n_cells,)``.
    labels
        Label of each of them as a number, shape ``(n_cells,)``.
    section
        How expression is normalised.

    Returns
    -------
    Those of `cells` that are suspect, in their order: of each label at most half, the least
    probable ones, and of a label with fewer than five cells none.
    """
    suspect, disputed = find_suspects(rows, cells, labels, section)
    many = suspect.mean() > _USUAL_SHARE and suspect.sum() > _SHARP * disputed.sum()
    return cells[suspect] if many else cells[:0]


def find_suspects(
    rows: CellMatrix, cells: np.ndarray, labels: np.ndarray, section: ModalitySlice
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each cell's label is suspect, and whether the classifier would give another one.

    Both are of shape ``(n_cells,)``.
    """
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if sizes.max() < 2:
        # No cell can be held out.
        return np.zeros(len(labels), dtype=bool), np.zeros(len(labels), dtype=bool)
    given, best = _cross_validated(rows, cells, codes, section)
    suspect = (given < _IMPROBABLE) & (best > _PROBABLE)
    for code, size in enumerate(sizes):
        of_label = np.flatnonzero((codes == code) & suspect)
        most = int(_MOST_OF_A_LABEL * size) if size >= _FEWEST else 0
        suspect[of_label[np.argsort(given[of_label], kind="stable")[most:]]] = False
    return suspect, given < best


def _cross_validated(
    rows: CellMatrix, cells: np.ndarray, codes: np.ndarray, section: ModalitySlice
) -> tuple[np.ndarray, np.ndarray]:
    """Probability of the given and of the best label by regressions of other cells."""
    drawn = draw(codes, MOST_CELLS)
    x, known = read(rows, cells[drawn], section), codes[drawn]
    given, best = np.empty(len(cells)), np.empty(len(cells))
    fitted = []
    for held, regression in cross_fit(x, known, _fit):
        of_fold = drawn[held]
        given[of_fold], best[of_fold] = _judge(x[held], regression, known[held])
        fitted.append(regression)
    # The single cell of a label is contradicted by no other.
    single = drawn[np.bincount(known)[known] == 1]
    given[single] = best[single] = 1.0
    # Cells that were not drawn have been seen by none of them.
    others = np.setdiff1d(np.arange(len(cells)), drawn)
    weights, biases = zip(*fitted, strict=True)
    mean = np.mean(weights, axis=0), np.mean(biases, axis=0)
    for start in range(0, len(others), BLOCK):
        block = others[start : start + BLOCK]
        x = read(rows, cells[block], section)
        given[block], best[block] = _judge(x, mean, codes[block])
    return given, best


def _fit(x: sp.csr_matrix, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights and biases of a multinomial regression: labels compete for each cell.

    It may follow what differs within labels: where labels are wrong, cells of a label differ as
    labels do.
    """
    scale = gene_scale(x)
    regression = LogisticRegression(C=_C, class_weight="balanced", max_iter=_MAX_ITER)
    with warnings.catch_warnings():
        # Near the optimum is good enough to tell contradictions from doubts.
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit(sp.csr_matrix(x.astype(np.float64) @ sp.diags(1 / scale)), labels)
    weights, biases = regression.coef_ / scale, regression.intercept_
    if len(weights) > 1:
        return weights, biases
    # Of two labels there is one score, for the second against the first.
    return np.vstack([-weights, weights]) / 2, np.append(-biases, biases) / 2


def _judge(
    x: sp.csr_matrix, regression: tuple[np.ndarray, np.ndarray], codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    weights, biases = regression
    probability = softmax(x @ weights.T + biases, axis=1)
    return probability[np.arange(len(codes)), codes], probability.max(1)
