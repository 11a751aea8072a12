"""Test whether labels depend on products of gene sets, which no linear branch can learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.stats import norm

if TYPE_CHECKING:
    from tosica._types import FloatArray, IntArray

# A medium effect is a correlation of 0.3 (Cohen, Statistical Power Analysis, 1988).
_MEDIUM_EFFECT = 0.3
_LEVEL = 0.05


class Interaction(NamedTuple):
    """The product of two gene sets that fits best to the errors of a classifier.

    Attributes
    ----------
    gene_sets
        Positions of the two gene sets; the same twice for a square.
    label
        Position of the label.
    correlation
        Between the product and the errors, between -1 and 1.
    pvalue
        Two-sided, adjusted for all products and labels (Bonferroni).
    pvalue_mistakes
        The same for the cells that the classifier labels wrongly.
    """

    gene_sets: tuple[int, int]
    label: int
    correlation: float
    pvalue: float
    pvalue_mistakes: float

    @property
    def matters(self) -> bool:
        """Whether the correlation is significant and not small, and labels are wrong because of it.

        Probabilities that are too low for cells with the right label have errors as well.
        """
        return (
            max(self.pvalue, self.pvalue_mistakes) <= _LEVEL
            and abs(self.correlation) >= _MEDIUM_EFFECT
        )


def strongest_interaction(
    set_scores: FloatArray,
    probabilities: FloatArray,
    labels: IntArray,
) -> Interaction:
    """Find the product of two gene sets that a linear classifier misses most.

    It is a score test (Rao, *Proc. Camb. Philos. Soc.* 44, 50, 1948): where labels are
    linear in the gene sets, the errors of the classifier on cells that it was not fitted to
    are uncorrelated with every product of two gene sets. The variance is estimated from the
    cells (White, *Econometrica* 50, 1, 1982), so that one cell with a large error decides
    nothing.

    Parameters
    ----------
    set_scores
        Shape ``(n_cells, n_gene_sets)``. Scores of gene sets, in any unit.
    probabilities
        Shape ``(n_cells, n_labels)``. By a classifier that was fitted to other cells.
    labels
        Shape ``(n_cells,)``. True labels, as positions in ``probabilities``.

    Returns
    -------
    The product with the lowest p-value.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> set_scores = rng.standard_normal((400, 3))
    >>> labels = (set_scores[:, 0] * set_scores[:, 2] > 0).astype(int)
    >>> interaction = strongest_interaction(set_scores, np.full((400, 2), 0.5), labels)
    >>> interaction.gene_sets, interaction.matters
    ((0, 2), True)
    """
    n_cells, n_sets = set_scores.shape
    n_labels = probabilities.shape[1]
    n_tests = n_labels * n_sets * (n_sets + 1) / 2
    centered = set_scores - set_scores.mean(0)
    truth = np.eye(n_labels)[labels]
    errors = truth - probabilities
    mistakes = truth - np.eye(n_labels)[probabilities.argmax(1)]
    best = Interaction((0, 0), 0, 0.0, 1.0, 1.0)
    highest = 0.0
    for label in range(n_labels):
        z = _standardized_sums(centered, centered, errors[:, label])
        row, column = np.unravel_index(np.abs(z).argmax(), z.shape)
        if abs(z[row, column]) > highest:
            highest = abs(z[row, column])
            z_mistakes = _standardized_sums(
                centered[:, [row]], centered[:, [column]], mistakes[:, label]
            )
            best = Interaction(
                gene_sets=(int(min(row, column)), int(max(row, column))),
                label=label,
                correlation=float(z[row, column] / np.sqrt(n_cells)),
                pvalue=_adjusted(highest, n_tests),
                pvalue_mistakes=_adjusted(abs(z_mistakes.item()), n_tests),
            )
    return best


def _adjusted(z: float, n_tests: float) -> float:
    """Compute the two-sided p-value of a normal score, times the number of tests."""
    return float(min(1.0, 2 * n_tests * norm.sf(z)))


def _standardized_sums(
    first: FloatArray,
    second: FloatArray,
    errors: FloatArray,
) -> FloatArray:
    """Sum score × score × error over cells, over the root of the sum of squares, ``(n_first, n_second)``."""
    weighted = first * errors[:, None]
    squares = np.square(weighted).T @ np.square(second)
    return (weighted.T @ second) / np.sqrt(np.where(squares > 0, squares, np.inf))
