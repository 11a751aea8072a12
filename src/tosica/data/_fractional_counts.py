"""Recognize counts that are not whole, because ambient RNA was removed or reads were shared out.

alevin, kallisto and STARsolo share reads that fit several genes among these, so that most values
stay whole: :func:`~tosica.data._scale.detect_values` recognizes them in each cell. SoupX and
DecontX subtract a part of nearly every value. Their counts are recognized here, by what logarithms
and normalized values do not have together:

- no transform of normalized counts fits, neither all cells nor some
  (:func:`~tosica.data._transforms.recognize`);
- totals differ between cells, as sequencing depth does;
- most values are about 1, since most genes have one or two molecules in a cell;
- as logarithms, the totals of cells would differ by orders of magnitude.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from tosica._logging import logger
from tosica.data._odd_values import are_odd
from tosica.data._scale import detect_values
from tosica.data._transforms import has_logarithms, n_different, recognize, sample_positions

if TYPE_CHECKING:
    from tosica.data._cell_matrix import Block

# Of fewer different cells, totals may differ or agree by accident.
_FEWEST = 8
# Standard deviation of the logarithm of totals. In five data sets at three depths it was 0.42 to
# 1.5 for corrected counts, and under 0.35 for most normalized values cut to some genes.
_LEAST_SPREAD = 0.2
# Median of the values above zero. It was 0.83 to 2.3, but 7.6 in the variable genes of deep data.
_MEDIAN = 0.05, 3.0
# The same standard deviation, if values are taken as logarithms. It was 2 to 180 for corrected
# counts, at least 2.5 times their own, and at most 1.7 for logarithms, which was up to 1.9 times.
_SPREAD_OF_LOGARITHMS, _RATIO = 1.9, 2.5


def are_fractional_counts(block: Block) -> bool:
    """Say whether values are counts of which not all are whole.

    Parameters
    ----------
    block
        Some cells, or a whole matrix, of which up to 256 cells from all over are looked at.

    Returns
    -------
    ``False`` also for whole counts, and where it cannot be known.
    """
    cells = sp.csr_matrix(block[sample_positions(block.shape[0])])
    cells.eliminate_zeros()
    cells = cells[np.diff(cells.indptr) > 0]
    values = cells.data
    if not values.size or not np.issubdtype(values.dtype, np.inexact):
        return False
    if not np.isfinite(values).all() or values.min() < 0:
        return False
    whole = values == np.rint(values)
    if whole.all():
        return False
    if _are_counts(cells):
        return True
    if n_different(cells) < _FEWEST or not _MEDIAN[0] < np.median(values) < _MEDIAN[1]:
        return False
    plain = cells.astype(np.float64)
    spread = float(np.log(np.asarray(plain.sum(1)).ravel()).std())
    of_logarithms = float(_log_totals_of_logarithms(plain).std())
    if spread < _LEAST_SPREAD or of_logarithms < max(_SPREAD_OF_LOGARITHMS, _RATIO * spread):
        return False
    return recognize(cells) is None and not has_logarithms(cells) and not are_odd(cells)


def log_fractional(where: str) -> None:
    """Say in the log that values of a matrix are taken as counts although not all are whole."""
    logger.info(
        "%s holds counts that are not whole, as SoupX, CellBender or alevin leave them; they are "
        "taken as they are",
        where,
    )


def _are_counts(cells: sp.csr_matrix) -> bool:
    try:
        return detect_values(cells, "") == "counts"
    except ValueError:
        return False


def _log_totals_of_logarithms(cells: sp.csr_matrix) -> np.ndarray:
    """Logarithm of each cell's sum of ``expm1(x)``, which need not be finite, ``(n_cells,)``."""
    starts = cells.indptr[:-1]
    largest = np.maximum.reduceat(cells.data, starts)
    relative = np.exp(cells.data - np.repeat(largest, np.diff(cells.indptr)))
    sums = np.add.reduceat(relative, starts) - np.diff(cells.indptr) * np.exp(-largest)
    return largest + np.log(np.maximum(sums, 1e-12))
