"""How sure a line through the reference may be of cells that it has not seen."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ._calibration import fit_temperature
from ._held_out_lines import MOST_CELLS, held_out_lines
from ._line import fit_line, lift
from ._sample import draw, read

if TYPE_CHECKING:
    from tosica.module._normalize import Section
    from tosica.pp._rows import Rows

    from ._joint_rows import JointRows

# Lines ask for temperatures between one and three, by the reference: each label is told from the
# rest, and their scores were not made to be compared. What a handful of cells asks for is chance.
_EXPECTED, _SPREAD = 2.0, 0.5


def line_temperature(
    rows: Rows | JointRows,
    cells: np.ndarray,
    labels: np.ndarray,
    section: Section,
    shifts: np.ndarray | None = None,
) -> float:
    """Temperature at which a line's logits fit the labels of cells that it has not seen.

    It depends on the reference, and is higher where its types overlap. The network, which was
    taught smoothed labels, is about right as it is, so that neither drowns the other once the
    line's logits are divided by it.

    Parameters
    ----------
    rows
        Expression of the reference.
    cells
        Positions of the cells that train or validate the model. Of more than 4 000, about as many
        are drawn.
    labels
        Label of each of them as a number, shape ``(n_cells,)``. Those that occur occur twice.
    section
        How expression is normalised.
    shifts
        What the line's scores should not change with, shape ``(n_shifts, n_genes)``.

    Returns
    -------
    Temperature, near 2 if there are few cells.
    """
    drawn = draw(labels, MOST_CELLS)
    _, codes = np.unique(labels[drawn], return_inverse=True)
    x = read(rows, cells[drawn], section)
    logits = np.empty((len(codes), codes.max() + 1))
    fit = partial(fit_line, shifts=shifts)
    for held, (weights, biases) in held_out_lines(x, codes, fit):
        logits[held] = x[held] @ weights.T + biases
    # By the cells of the whole: a fold lacks more of a rare label, and would raise just its cells.
    return fit_temperature(logits + lift(codes), codes, expected=_EXPECTED, spread=_SPREAD)
