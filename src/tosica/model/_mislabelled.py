"""Find cells of the reference whose labels the other cells contradict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import softmax
from scvi import settings

from ._direct import draw, fit_line, read

if TYPE_CHECKING:
    from tosica.module._normalize import Section
    from tosica.pp._rows import Rows

_FOLDS = 5
# A line that has not learnt single wrong labels by heart.
_STRENGTH = 3.0
# A label this improbable, beside one that is more probable than all others together, is suspect.
_IMPROBABLE, _PROBABLE = 0.05, 0.5
# So many hard cells any reference may have.
_USUAL_SHARE = 0.05
# Of a label with fewer cells, too few would be left to judge the others by.
_FEWEST = 5
_MOST_CELLS = 4_000
_BLOCK = 4_096


def find_mislabelled(
    rows: Rows, cells: np.ndarray, labels: np.ndarray, section: Section
) -> np.ndarray:
    """Cells whose label the other cells contradict, if they are more than a few.

    A cell is suspect if a line through the other folds' cells gives its label a probability under
    5 % and another one more than 50 % (after Northcutt et al., *J. Artif. Intell. Res.* 70, 2021).
    Of labels that are right some cells look so as well: up to 5 % they are taken for hard cells,
    which are worth most to a network, and none is returned.

    Parameters
    ----------
    rows
        Expression of the reference.
    cells
        Positions of the labelled cells, shape ``(n_cells,)``.
    labels
        Label of each of them, from 0 on, shape ``(n_cells,)``. Each occurs twice or more.
    section
        How expression is normalised.

    Returns
    -------
    Those of `cells` that are suspect, in their order. Two cells or more of each label are left.
    """
    probability = _cross_validated(rows, cells, labels, section)
    given = probability[np.arange(len(labels)), labels]
    suspect = (given < _IMPROBABLE) & (probability.max(1) > _PROBABLE)
    for label, size in enumerate(np.bincount(labels)):
        of_label = labels == label
        if size < _FEWEST or size - suspect[of_label].sum() < 2:
            suspect[of_label] = False
    return cells[suspect] if suspect.mean() > _USUAL_SHARE else cells[:0]


def _cross_validated(
    rows: Rows, cells: np.ndarray, labels: np.ndarray, section: Section
) -> np.ndarray:
    """Probability of each label for each cell, by lines that have not seen the cell."""
    drawn = draw(labels, _MOST_CELLS)
    x, known = read(rows, cells[drawn], section), labels[drawn]
    found = np.empty((len(cells), labels.max() + 1))
    fold = _deal(known)
    lines = []
    for i in range(_FOLDS):
        weights, biases = fit_line(x[fold != i], known[fold != i], _STRENGTH)
        found[drawn[fold == i]] = softmax(x[fold == i] @ weights.T + biases, axis=1)
        lines.append((weights, biases))
    # Cells that were not drawn have been seen by none of them.
    others = np.setdiff1d(np.arange(len(cells)), drawn)
    mean_weights, mean_biases = (np.mean(parts, axis=0) for parts in zip(*lines, strict=True))
    for start in range(0, len(others), _BLOCK):
        block = others[start : start + _BLOCK]
        scores = read(rows, cells[block], section) @ mean_weights.T + mean_biases
        found[block] = softmax(scores, axis=1)
    return found


def _deal(labels: np.ndarray) -> np.ndarray:
    """Fold of each cell: the cells of a label go to all folds in turn."""
    rng = np.random.default_rng(settings.seed)
    fold = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        of_label = rng.permutation(np.flatnonzero(labels == label))
        fold[of_label] = (np.arange(len(of_label)) + rng.integers(_FOLDS)) % _FOLDS
    return fold
