"""Blocks of counts are normalised as minibatches are."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from tosica.data import log_normalize
from tosica.module import log_normalize as of_minibatch


@pytest.fixture
def counts() -> np.ndarray:
    counts = np.random.default_rng(0).poisson(0.7, (40, 30))
    counts[3] = 0  # a cell without counts
    return counts


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64])
@pytest.mark.parametrize("kind", [sp.csr_matrix, np.asarray])
def test_as_minibatches_are(counts, dtype, kind):
    given = kind(counts.astype(dtype))
    found = log_normalize(given, 5e3)
    assert type(found) is type(given)
    assert found.dtype == np.float64
    expected = of_minibatch(torch.from_numpy(counts).double(), 5e3).numpy()
    np.testing.assert_allclose(
        np.asarray(found.todense() if sp.issparse(found) else found), expected
    )
    # The counts are as they were.
    np.testing.assert_array_equal(given.todense() if sp.issparse(given) else given, counts)


def test_values_stay_in_their_places(counts):
    shuffled = sp.csr_matrix(counts)
    # Columns of a row in any order.
    for row in range(len(counts)):
        here = slice(shuffled.indptr[row], shuffled.indptr[row + 1])
        shuffled.indices[here] = shuffled.indices[here][::-1].copy()
        shuffled.data[here] = shuffled.data[here][::-1].copy()
    found = log_normalize(shuffled)
    np.testing.assert_array_equal(found.indices, shuffled.indices)
    np.testing.assert_allclose(found.toarray(), log_normalize(counts))
