"""Values that are neither counts nor logarithms of them; data that look alike are not refused."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pytest
from scipy.stats import rankdata

from tosica.data import CellMatrix
from tosica.data._odd_values import refuse_odd_values
from tosica.data._transforms import sample_cells

RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(RNG.lognormal(-0.5, 1.2, 300), (80, 300)) + 0.0
LOGS = np.log1p(1e4 * COUNTS / COUNTS.sum(1, keepdims=True))
LONG = np.log1p(1e4 * COUNTS * RNG.lognormal(0, 1, 300) / COUNTS.sum(1, keepdims=True))


def look(x, recognized=False) -> None:
    refuse_odd_values(
        sample_cells(CellMatrix(ad.AnnData(x))), "adata.X", "expression", recognized=recognized
    )


@pytest.mark.parametrize("method", ["average", "min", "max", "ordinal"])
@pytest.mark.parametrize("scale", [1, 1 / 300])
@pytest.mark.parametrize("with_zeros", [True, False])
def test_ranks(method, scale, with_zeros):
    ranks = rankdata(LOGS, axis=1, method=method) * scale
    x = np.where(LOGS > 0, ranks, 0) if with_zeros else ranks
    with pytest.raises(ValueError, match=r"^adata\.X holds ranks of genes within each cell: give"):
        look(x, recognized=True)


@pytest.mark.parametrize("method", ["average", "min", "ordinal"])
def test_ranks_of_more_genes(method):
    """Genes that were left out leave gaps, but nothing is zero."""
    x = rankdata(LOGS, axis=1, method=method)[:, 40:160]
    with pytest.raises(ValueError, match=r"^adata\.X holds no zero, but ranks or values that a"):
        look(x, recognized=True)


def standardized(x, max_value=np.inf):
    return np.clip((x - x.mean(0)) / np.maximum(x.std(0, ddof=1), 1e-9), 0, max_value)


@pytest.mark.parametrize("x", [LOGS, LONG])
@pytest.mark.parametrize("max_value", [np.inf, 10])
def test_standardized_genes(x, max_value):
    with pytest.raises(ValueError, match=r"scaled to a variance of 1, with negative values set"):
        look(standardized(x, max_value))
    with pytest.raises(ValueError, match=r"scaled to a variance of 1, with negative values set"):
        look(standardized(x, max_value)[:, 100:250])


def test_genes_scaled_to_their_maximum():
    with pytest.raises(ValueError, match=r"holds values of at most 1 that are no logarithm of"):
        look(LONG / LONG.max(0).clip(1e-9))


def test_too_large_for_a_logarithm():
    with pytest.raises(ValueError, match=r"holds fractions with values up to 1[6-9]"):
        look(LONG * 17 / LONG.max())


def test_equal_values():
    with pytest.raises(ValueError, match=r"holds the same value, 2\.5, for all genes of all cells"):
        look(np.full((4, 5), 2.5))


@pytest.mark.parametrize(
    "x",
    [
        COUNTS,
        COUNTS > 0,
        LOGS,
        LONG,
        LOGS[:1],
        LONG[:, :100],
        # Highly expressed genes of which none is ever zero.
        RNG.poisson(RNG.lognormal(5, 1.5, 60), (50, 60)) + 1.0,
        RNG.poisson(30.0, (50, 200)),
        # Small counts without gaps.
        RNG.poisson(8.0, (50, 200)),
        np.zeros((3, 4)),
    ],
)
def test_cells_that_are_not_odd(x):
    look(x.astype(np.float32), recognized=bool(np.all(x == np.rint(x))))
