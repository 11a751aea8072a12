"""Fixtures of the tests of matrices."""

import numpy as np
import pytest
from _scaled import N_CELLS, N_GENES


@pytest.fixture
def counts():
    """Counts of cells that differ tenfold in depth; the fourth is empty."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.uniform(0.3, 3, (N_CELLS, 1)), (N_CELLS, N_GENES)) + 0.0
    counts[:, 0] += 3
    counts[3] = 0
    return counts
