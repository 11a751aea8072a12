"""Find cells of the reference whose labels the other cells contradict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import softmax
from scvi import settings

from tosica.pp._align import BLOCK

from ._direct import draw, fit_line, read

if TYPE_CHECKING:
    import scipy.sparse as sp

    from tosica.module._normalize import Section
    from tosica.pp._rows import Rows

_FOLDS = 5
# A line that has not learnt single wrong labels by heart, and is fair to rare ones.
_JUDGE = {"C": 0.3, "class_weight": "balanced"}
# A label this improbable, beside one that is more probable than all others together, is suspect.
_IMPROBABLE, _PROBABLE = 0.05, 0.5
# So many hard cells any reference may have.
_USUAL_SHARE = 0.07
# No more of a label's cells are left out.
_MOST_OF_A_LABEL = 0.5
# Of a label with fewer cells, too few would be left to judge the others by.
_FEWEST = 5
_MOST_CELLS = 4_000


def find_mislabelled(
    rows: Rows, cells: np.ndarray, labels: np.ndarray, section: Section
) -> np.ndarray:
    """Cells whose label the other cells contradict, if they are more than a few.

    A cell is suspect if a line through the other folds' cells gives its label a probability under
    5 % and another one more than 50 % (after Northcutt et al., *J. Artif. Intell. Res.* 70, 2021).
    Some cells whose labels are right look so as well: up to a share of 7 % they are taken for hard
    cells, which are worth most to a network, and none is returned.

    Parameters
    ----------
    rows
        Expression of the reference.
    cells
        Positions of the labelled cells, in order, shape ``(n_cells,)``.
    labels
        Label of each of them as a number, shape ``(n_cells,)``. Those that occur occur twice.
    section
        How expression is normalised.

    Returns
    -------
    Those of `cells` that are suspect, in their order: of each label at most half, the least
    probable ones, and of a label with fewer than five cells none.
    """
    suspect = find_suspects(rows, cells, labels, section)
    return cells[suspect] if suspect.mean() > _USUAL_SHARE else cells[:0]


def find_suspects(
    rows: Rows, cells: np.ndarray, labels: np.ndarray, section: Section
) -> np.ndarray:
    """Whether each cell's label is suspect, however few are, ``(n_cells,)``."""
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    probability = _suspect_probability(rows, cells, codes, section)
    suspect = np.zeros(len(cells), dtype=bool)
    for code, size in enumerate(sizes):
        if size >= _FEWEST:
            of_label = np.flatnonzero(codes == code)
            # Cells that are not suspect come last.
            lowest = of_label[np.argsort(probability[of_label], kind="stable")]
            suspect[lowest[: int(_MOST_OF_A_LABEL * size)]] = True
    return suspect & np.isfinite(probability)


def _suspect_probability(
    rows: Rows, cells: np.ndarray, codes: np.ndarray, section: Section
) -> np.ndarray:
    """Probability of suspect labels by lines that have not seen the cell, infinite for others."""
    drawn = draw(codes, _MOST_CELLS)
    x, known = read(rows, cells[drawn], section), codes[drawn]
    found = np.empty(len(cells))
    fold = _fold(known)
    lines = []
    for i in range(_FOLDS):
        line = fit_line(x[fold != i], known[fold != i], **_JUDGE)
        found[drawn[fold == i]] = _judge(x[fold == i], line, known[fold == i])
        lines.append(line)
    # Cells that were not drawn have been seen by none of them.
    others = np.setdiff1d(np.arange(len(cells)), drawn)
    weights, biases = zip(*lines, strict=True)
    mean = np.mean(weights, axis=0), np.mean(biases, axis=0)
    for start in range(0, len(others), BLOCK):
        block = others[start : start + BLOCK]
        found[block] = _judge(read(rows, cells[block], section), mean, codes[block])
    return found


def _judge(x: sp.csr_matrix, line: tuple[np.ndarray, np.ndarray], codes: np.ndarray) -> np.ndarray:
    weights, biases = line
    probability = softmax(x @ weights.T + biases, axis=1)
    given = probability[np.arange(len(codes)), codes]
    suspect = (given < _IMPROBABLE) & (probability.max(1) > _PROBABLE)
    return np.where(suspect, given, np.inf)


def _fold(labels: np.ndarray) -> np.ndarray:
    """Fold of each cell: the cells of a label go to all folds in turn."""
    rng = np.random.default_rng(settings.seed)
    fold = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        of_label = rng.permutation(np.flatnonzero(labels == label))
        fold[of_label] = (np.arange(len(of_label)) + rng.integers(_FOLDS)) % _FOLDS
    return fold
