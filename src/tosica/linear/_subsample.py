"""Some of a reference's cells, for what is worked out of a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from scvi import settings

from tosica.data._log_normalize import log_normalize

if TYPE_CHECKING:
    from tosica.data._cell_matrix import CellMatrix
    from tosica.data._mudata import JointMatrix
    from tosica.data._normalize import ModalitySlice

# A line through more cells than these is hardly another line; nor are their covariation and what
# their batches differ by.
MOST_CELLS = 10_000


def read(
    rows: CellMatrix | JointMatrix, cells: np.ndarray, section: ModalitySlice
) -> sp.csr_matrix:
    """Expression of some cells, normalised as the network's minibatches are, but not dense."""
    x = sp.csr_matrix(rows.take(cells))
    return x if section.how is None else log_normalize(x, section.target_sum)


def draw(labels: np.ndarray, most: int) -> np.ndarray:
    """Positions of at most `most` cells: rare labels whole, frequent ones cut to one size."""
    if len(labels) <= most:
        return np.arange(len(labels))
    rng = np.random.default_rng(settings.seed)
    sizes = np.sort(np.bincount(labels))[::-1]
    # Cut to this size, the i largest labels and all smaller ones together are `most` cells.
    below = np.append(np.cumsum(sizes[::-1])[::-1][1:], 0)
    limits = (most - below) // np.arange(1, len(sizes) + 1)
    fits = limits >= np.append(sizes[1:], 0)
    limit = max(int(limits[np.argmax(fits)]), 1)
    kept = [rng.permutation(np.flatnonzero(labels == label))[:limit] for label in np.unique(labels)]
    return np.sort(np.concatenate(kept))
