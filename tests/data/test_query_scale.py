"""Queries on another scale than the reference: brought to it, or refused in one sentence."""

from __future__ import annotations

import logging

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from tosica.data import MODALITY_KINDS, Scale

GENES = pd.Index([f"G{i}" for i in range(60)])
SCALE = Scale("counts", 1e4, "genes")
COUNTS = np.random.default_rng(0).poisson(2.0, (40, 60)).astype(np.float64)
SHARES = COUNTS / COUNTS.sum(1, keepdims=True)
RIGHT = np.log1p(1e4 * SHARES)
WRONG = {
    "1e6": np.log1p(1e6 * SHARES),
    "1e3": np.log1p(1e3 * SHARES),
    "median": np.log1p(np.median(COUNTS.sum(1)) * SHARES),
    "log2": np.log2(1 + 1e4 * SHARES),
    "log10": np.log10(1 + 1e4 * SHARES),
}


def aligned(x, scale=SCALE, names=GENES, **settings):
    adata = ad.AnnData(x)
    adata.var_names = names[: adata.n_vars]
    return np.concatenate(
        [b.values for b in MODALITY_KINDS["rna"].align(adata, names, scale, **settings)]
    )


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("name", WRONG)
def test_another_scale_is_recognised(name, form, caplog):
    with caplog.at_level(logging.WARNING, logger="tosica"):
        found = aligned(form(WRONG[name].astype(np.float32)))
    np.testing.assert_allclose(found, RIGHT, rtol=1e-4, atol=1e-4)
    assert "they are brought to its scale" in caplog.text
    assert ("log2" in name) == ("before log2 was taken" in caplog.text)


def test_each_cell_is_scaled_by_itself():
    x = WRONG["1e6"]
    whole = aligned(x)
    order = np.random.default_rng(1).permutation(40)
    np.testing.assert_allclose(aligned(x[order], batch_size=7), whole[order], rtol=1e-6)
    np.testing.assert_allclose(aligned(x[:10]), whole[:10], rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "scale"),
    [
        (RIGHT, SCALE),
        # As the reference was scaled.
        (WRONG["1e6"], Scale("log1p", 1e6, "genes")),
        # Nobody knows what the reference was scaled to.
        (WRONG["1e6"], Scale("log1p", 1e4, "matrix")),
        # Genes were left out after the normalisation.
        (WRONG["1e6"][:, :50], SCALE),
        # Too few cells, or too few different ones, to know.
        (WRONG["1e6"][:7], SCALE),
        (WRONG["1e6"][:3].repeat(10, 0), SCALE),
        # A few cells more or less shallow are no other scale.
        (np.log1p(1.005e4 * SHARES), SCALE),
    ],
)
@pytest.mark.filterwarnings("ignore:The query has only")
def test_what_is_not_known_is_taken_as_it_is(x, scale, caplog):
    with caplog.at_level(logging.WARNING, logger="tosica"):
        found = aligned(x, scale)
    np.testing.assert_array_equal(found[:, : x.shape[1]], x.astype(np.float32))
    assert not caplog.text


def test_counts_are_left_alone(caplog):
    with caplog.at_level(logging.WARNING, logger="tosica"):
        np.testing.assert_array_equal(aligned(COUNTS), COUNTS)
    assert not caplog.text


def test_shares_are_refused():
    with pytest.raises(ValueError, match=r"adata\.X holds shares whose sum is the same .* give"):
        aligned(SHARES)


@pytest.mark.parametrize("log", [np.log1p, lambda x: np.log2(1 + x)], ids=["log1p", "log2"])
def test_the_logarithm_of_counts_is_refused(log):
    with pytest.raises(ValueError, match=r"logarithm of counts that were not normalised: give"):
        aligned(log(50 * COUNTS).astype(np.float32))


def test_cells_on_two_scales_that_were_not_looked_at():
    rng = np.random.default_rng(0)
    counts = rng.poisson(2.0, (3000, 60))
    x = np.log1p(1e6 * counts / counts.sum(1, keepdims=True))
    x[37] = np.log1p(1e4 * counts[37] / counts[37].sum())
    with pytest.raises(ValueError, match=r"scaled to different totals \(one is cell 37\): normal"):
        aligned(x)


def test_cells_without_expression_stay_so():
    x = WRONG["1e6"].copy()
    x[5] = 0
    with pytest.warns(UserWarning, match="1 cells of the query express none"):
        found = aligned(x)
    assert not found[5].any()
    np.testing.assert_allclose(found[6:], RIGHT[6:], rtol=1e-4, atol=1e-4)


def test_what_is_wrong_with_a_cell_is_said_of_that_cell():
    x = RIGHT.copy()
    x[33, 4] = np.nan
    with pytest.raises(ValueError, match=r"NaN \(first in cell 33\)"):
        aligned(x)
