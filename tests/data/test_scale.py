"""Which scales are taken, and which are refused."""

import re

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from _scaled import (
    N_CELLS,
    REFUSED,
    TAKEN,
    each_format,
    normalized,
    rows,
    sequenced,
    shares,
)
from _strategies import DTYPES

from tosica.data import (
    CellMatrix,
    describe_unscaled,
    detect,
    detect_values,
    sample_positions,
)
from tosica.data._reference_scale import fit_scale

COUNTS, RNG = sequenced(), np.random.default_rng(0)
REFUSAL = r"^adata\.X holds values that are neither counts nor log-normalized .*: give counts "


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("genes", [slice(None), slice(60, 200)], ids=["all", "fewer"])
@pytest.mark.parametrize("name", TAKEN)
def test_scales_that_are_taken(name, genes, form):
    kind, make = TAKEN[name]
    x = make(COUNTS)[:, genes].astype(np.float32)
    if "reads" in name and genes != slice(None):
        pytest.skip("Nothing tells the scale of reads without their totals.")
    formatted = form(x)
    assert detect(rows(formatted)).kind == kind
    assert detect_values(formatted, "adata.X") == kind
    np.testing.assert_array_equal(
        formatted.toarray() if sp.issparse(formatted) else formatted, x
    )


@pytest.mark.data
def test_reads_beside_counts(shared):
    reads = ad.read_h5ad(shared / "mouse_tissues.h5ad")
    counts = ad.read_h5ad(shared / "oligo_marques.h5ad")
    sc.pp.normalize_total(counts, target_sum=1e4)
    sc.pp.log1p(counts)
    assert fit_scale(CellMatrix(ad.concat([reads, counts]))).kind == "log1p"


@pytest.mark.parametrize("total", [1e3, 1e4, 1e6])
@pytest.mark.parametrize("step", [0.1, 0.02, 0.01])
def test_logarithms_of_few_decimals_are_no_counts(step, total):
    """They are multiples of a hundredth, as counts are that were divided."""
    x = (np.log1p(total * shares(COUNTS)) / step).round() * step
    matrix = rows(x.astype(np.float32))
    assert detect(matrix).kind == "log1p"
    scale = fit_scale(matrix)
    assert scale.over == "genes"
    assert scale.target_sum == pytest.approx(total, rel=step / 2)
    assert detect(rows(step * COUNTS)).kind == "counts"
    x[5] = COUNTS[5]
    with pytest.raises(ValueError, match=r"cell 5\)|not alike in all cells"):
        fit_scale(rows(x.astype(np.float32)))


@pytest.mark.data
def test_a_published_table_of_rounded_logarithms(shared):
    adata = ad.read_h5ad(shared / "mouse_tissues.h5ad")
    scale = fit_scale(CellMatrix(adata))
    assert (scale.kind, scale.over) == ("log1p", "genes")
    assert scale.target_sum == pytest.approx(1e4, rel=1e-3)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("name", REFUSED)
def test_scales_that_are_refused(name, form):
    x = form(REFUSED[name](COUNTS).astype(np.float32))
    with pytest.raises(ValueError, match=REFUSAL):
        detect_values(x, "adata.X")


@pytest.mark.parametrize("name", ["counts", "log1p of 1e3", "log1p of 1e4"])
def test_a_few_cells_are_enough_and_the_logarithm_is_undone(name):
    kind, make = TAKEN[name]
    x = make(COUNTS)
    for n in (1, 2, 5):
        detected = detect(rows(x[8:][:n].astype(np.float32)))
        # Totals of few cells may agree by accident.
        assert (detected.kind, detected.common_total()) == (kind, None)
    if kind != "counts":
        total, detected = float(name.rpartition(" ")[2]), detect(rows(x))
        assert detected.common_total() == pytest.approx(total, rel=1e-4)
        np.testing.assert_allclose(
            detected.counts.toarray(), total * shares(COUNTS), rtol=1e-4
        )


def test_nothing_tells_the_logarithm():
    """Such as reads without some of the genes: plausible values are taken as natural logarithms."""
    x = TAKEN["log1p of reads"][1](COUNTS)[:, :150]
    detected = detect(rows(x))
    assert (detected.kind, detected.is_certain) == ("log1p", False)
    with pytest.warns(UserWarning, match=r"adata\.X holds values that do not tell"):
        fit_scale(rows(x))
    for factor in (17, 0.9):
        with pytest.raises(ValueError, match=REFUSAL):
            detect(rows(x * factor / x.max()))


@pytest.mark.parametrize(
    "x",
    [
        # Highly expressed genes of which none is ever zero.
        np.random.default_rng(0).poisson(
            np.random.default_rng(1).lognormal(5, 1.5, 60), (50, 60)
        )
        + 1.0,
        # Small counts without gaps.
        RNG.poisson(8.0, (50, 200)),
        COUNTS > 0,
    ],
)
def test_counts_that_look_like_others(x):
    assert detect_values(x.astype(np.float32), "adata.X") == "counts"


# ------------------------------------------------------------------ blocks


@each_format
@pytest.mark.parametrize("dtype", DTYPES)
def test_counts(counts, format_, dtype):
    assert detect_values(format_(counts.astype(dtype)), "adata.X") == "counts"
    zeros = format_(np.zeros((3, 4), dtype=dtype))
    assert detect_values(zeros, "adata.X") is None
    with pytest.raises(ValueError, match=r"zero everywhere: name the layer"):
        detect(rows(zeros))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_precision(counts, dtype):
    assert detect_values(normalized(counts).astype(dtype), "adata.X") == "log1p"


def test_cells_and_values_without_expression():
    stored = sp.csr_matrix(np.ones((3, 4)))
    stored.data[:] = 0
    assert detect_values(stored, "adata.X") is None
    x = sp.lil_matrix((5000, 300))
    x[np.setdiff1d(np.arange(5000), sample_positions(5000))[:80]] = COUNTS
    assert detect(rows(x.tocsr())).kind == "counts"


@each_format
@pytest.mark.parametrize(
    ("value", "description"),
    [(np.nan, "NaN"), (np.inf, "infinity"), (-1, "negative values")],
)
def test_the_first_cell_with_a_wrong_value_is_named(
    counts, format_, value, description
):
    matrix = normalized(counts)
    matrix[[11, 31], [2, 5]] = value
    with pytest.raises(
        ValueError, match=rf"^adata\.X holds {description} \(first in cell 11\)"
    ):
        detect(rows(format_(matrix)))
    with pytest.raises(
        ValueError, match=rf"^adata\.layers\['a'\] holds {description} .*cell 111"
    ):
        detect_values(format_(matrix), "adata.layers['a']", first_cell=100)


def test_a_few_whole_numbers_among_logarithms_are_chance(counts):
    matrix = normalized(counts)
    matrix[20:40] = 0
    matrix[20:30, 4], matrix[25:30, 9] = 1, 2
    for form in (np.asarray, sp.csr_matrix):
        assert detect_values(form(matrix), "adata.X") == "log1p"


@pytest.mark.parametrize("n_obs", [1, 7, 8, 250, 300, 5000])
def test_cells_are_chosen_from_all_over(n_obs):
    positions = sample_positions(n_obs)
    assert (np.diff(positions) > 0).all()
    assert (positions[0], positions[-1]) == (0, n_obs - 1)
    assert min(n_obs, 200) <= len(positions) <= 256


# ------------------------------------------------------------------ where counts are kept

NOWHERE = "No unscaled matrix was found in .raw or in the layers; go back to one."
IN_LAYER = "adata.layers['counts'] (layer='counts')."
IN_RAW = "adata.raw (use_raw=True, or adata.raw.to_adata() for a reference)"


def test_where_unscaled_expression_is(counts, tmp_path):
    adata = ad.AnnData(
        counts - counts.mean(0),
        obs=pd.DataFrame(index=[f"cell{i}" for i in range(N_CELLS)]),
    )
    adata.layers["scaled"], adata.layers["empty"] = (
        adata.X.copy(),
        np.zeros_like(counts),
    )
    adata.raw = adata.copy()
    assert describe_unscaled(adata) == NOWHERE
    adata.raw = ad.AnnData(sp.csr_matrix(normalized(counts)), obs=adata.obs)
    adata.layers["counts"] = sp.csc_matrix(counts)
    sentence = f"Unscaled expression is in {IN_RAW} and in {IN_LAYER}"
    assert describe_unscaled(adata[::-1][:, :30]) == sentence
    with pytest.raises(
        ValueError, match=rf"log-normalized expression\. {re.escape(sentence)}$"
    ):
        detect(CellMatrix(adata))
    adata.write_h5ad(tmp_path / "a.h5ad")
    backed = ad.read_h5ad(tmp_path / "a.h5ad", backed="r")
    assert describe_unscaled(backed) == describe_unscaled(backed[5:30, :20]) == sentence
    backed.file.close()
    del adata.raw
    adata.layers["words"] = np.full(counts.shape, "a", dtype=object)
    assert describe_unscaled(adata) == f"Unscaled expression is in {IN_LAYER}"
    # To some versions of anndata, X is a layer under the name None.
    assert describe_unscaled(ad.AnnData(counts)) == NOWHERE
