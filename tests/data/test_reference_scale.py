"""How a reference is scaled: counts, the logarithm of counts per a total, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from _scaled import COUNTS_SCALE, each_format, normalised, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from tosica.data import CellMatrix
from tosica.data._reference_scale import scale_of
from tosica.data._scale import Scale

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# ------------------------------------------------------------------ a reference


@each_format
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_scale_of_counts(counts: np.ndarray, format_: Any, dtype: str, blocks: int) -> None:
    assert scale_of(rows(format_(counts.astype(dtype)))) == COUNTS_SCALE


@each_format
@pytest.mark.parametrize("target_sum", [1e4, 1e6, 37.0, None])
def test_target_sum_is_recovered(
    counts: np.ndarray, format_: Any, target_sum: float | None, blocks: int
) -> None:
    expected = np.median(counts.sum(1)[counts.sum(1) > 0]) if target_sum is None else target_sum
    kind, found, over, *_ = scale_of(rows(format_(normalised(counts, target_sum))))
    assert (kind, over) == ("log1p", "genes")
    assert found == pytest.approx(expected, rel=1e-5)


def test_target_sum_of_scanpy(counts: np.ndarray) -> None:
    adata = ad.AnnData(counts[4:].astype(np.float32))
    median = np.median(counts[4:].sum(1))
    sc.pp.normalize_total(adata)
    sc.pp.log1p(adata)
    assert scale_of(CellMatrix(adata))[:3] == ("log1p", pytest.approx(median, rel=1e-5), "genes")


@given(st.floats(0.5, 1e6), st.integers(0, 99))
@settings(max_examples=20)
def test_any_target_sum_is_recovered(target_sum: float, seed: int) -> None:
    counts = np.random.default_rng(seed).poisson(2.0, (30, 20)) + 0.0
    counts[:, 0] += 1
    scale = scale_of(rows(normalised(counts, target_sum)))
    assert scale == ("log1p", pytest.approx(target_sum, rel=1e-4), "genes", None, None)


@each_format
def test_genes_that_were_left_out_after_normalising(
    counts: np.ndarray, format_: Any, blocks: int
) -> None:
    matrix = normalised(counts)[:, :15]
    totals = np.expm1(matrix.astype(np.float64)).sum(1)
    low, median, high = np.quantile(totals[totals > 0], [0.01, 0.5, 0.99])
    scale = scale_of(rows(format_(matrix)))
    assert scale[:4] == ("log1p", pytest.approx(median, rel=1e-4), "median", None)
    assert scale.genes_range == pytest.approx([low, high], rel=1e-4)


def test_duplicate_entries_are_summed_before_the_exponential(counts: np.ndarray) -> None:
    tidy = sp.csr_matrix(normalised(counts))
    halves = [np.repeat(tidy.data / 2, 2), np.repeat(tidy.indices, 2), tidy.indptr * 2]
    assert scale_of(rows(sp.csr_matrix(tuple(halves), shape=tidy.shape))).over == "genes"


@each_format
def test_all_zero(format_: Any, blocks: int) -> None:
    with pytest.raises(ValueError, match=r"^adata\.X is zero everywhere\.$"):
        scale_of(rows(format_(np.zeros((20, 3)))))


@each_format
@pytest.mark.parametrize("counts_first", [True, False])
@pytest.mark.parametrize("changes_at", [10, 14])
def test_normalised_in_part(
    counts: np.ndarray, format_: Any, counts_first: bool, changes_at: int, blocks: int
) -> None:
    # In the middle of a block of 7, and at its edge.
    matrix = normalised(counts)
    whole = slice(changes_at) if counts_first else slice(changes_at, None)
    matrix[whole] = counts[whole]
    sentence = (
        r"^adata\.X holds counts in some cells and fractions in others \(it changes at about cell "
        rf"{changes_at}\): cells were normalised in part; give counts for all of them\.$"
    )
    with pytest.raises(ValueError, match=sentence):
        scale_of(rows(format_(matrix)))


def test_cells_normalised_here_and_there(counts: np.ndarray) -> None:
    matrix = normalised(counts)
    matrix[4::2] = counts[4::2]
    with pytest.raises(ValueError, match="it changes at about cell 4"):
        scale_of(rows(matrix))


def test_the_matrix_stays_as_it_is(counts: np.ndarray) -> None:
    for matrix in (sp.csr_matrix(normalised(counts)), sp.csc_matrix(counts), normalised(counts)):
        before = matrix.copy()
        scale_of(rows(matrix))
        same = matrix != before
        assert not (same.nnz if sp.issparse(same) else same.any())


# ------------------------------------------------------------------ genes that were left out


def sequenced(n_cells: int = 80, n_genes: int = 300, seed: int = 0) -> np.ndarray:
    """Counts of cells of two types that differ in depth, some genes much higher than others."""
    rng = np.random.default_rng(seed)
    rates = rng.lognormal(-0.5, 1.2, (2, n_genes))[np.arange(n_cells) % 2]
    depth = rng.lognormal(0, 0.5, (n_cells, 1))
    return rng.poisson(rates * depth) + 0.0


def reference(x: Any, **parts: Any) -> ad.AnnData:
    obs = pd.DataFrame(index=[f"cell{i}" for i in range(x.shape[0])])
    var = pd.DataFrame(index=[f"gene{i}" for i in range(x.shape[1])])
    return ad.AnnData(x, obs=obs, var=var, **parts)


@pytest.mark.parametrize("total", [1e4, 1e6, 1e3])
@pytest.mark.parametrize("source", ["raw", "raw counts", "total_counts", "nCount_RNA"])
def test_total_from_before_genes_were_left_out(total: float, source: str, tmp_path: Path) -> None:
    counts = sequenced()
    whole = reference(normalised(counts, total))
    adata = whole[:, 50:150].copy()
    if source.startswith("raw"):
        adata.raw = whole if source == "raw" else reference(sp.csr_matrix(counts))
    else:
        adata.obs[source] = counts.sum(1)
    of_genes = np.median(np.expm1(adata.X.astype(np.float64)).sum(1))
    expected = ("log1p", pytest.approx(total, rel=1e-3), "matrix", pytest.approx(of_genes))
    assert scale_of(CellMatrix(adata))[:4] == expected
    view = whole[5:]
    assert scale_of(CellMatrix(view)).over == "genes"
    adata.write_h5ad(tmp_path / "a.h5ad")
    backed = ad.read_h5ad(tmp_path / "a.h5ad", backed="r")
    assert scale_of(CellMatrix(backed))[:4] == expected
    backed.file.close()


def other_cells(adata: ad.AnnData) -> None:
    adata.obs["total_counts"] = np.random.default_rng(0).permutation(np.arange(80)) + 500


def after(adata: ad.AnnData) -> None:
    """Total counts of the genes that are left."""
    adata.obs["total_counts"] = sequenced()[:, 50:150].sum(1)


def missing(adata: ad.AnnData) -> None:
    adata.obs["total_counts"] = np.nan


def words(adata: ad.AnnData) -> None:
    adata.obs["total_counts"] = "many"


def cut_raw(adata: ad.AnnData) -> None:
    adata.raw = adata.copy()


def scaled_raw(adata: ad.AnnData) -> None:
    adata.raw = reference(sequenced() - 1)


def raw_of_other_genes(adata: ad.AnnData) -> None:
    whole = reference(sequenced())
    whole.var_names = [f"other{i}" for i in range(whole.n_vars)]
    adata.raw = whole


@pytest.mark.parametrize(
    "change", [other_cells, after, missing, words, cut_raw, scaled_raw, raw_of_other_genes]
)
def test_what_does_not_tell_the_total_is_not_believed(
    change: Callable[[ad.AnnData], None], caplog: pytest.LogCaptureFixture
) -> None:
    adata = reference(normalised(sequenced()))[:, 50:150].copy()
    change(adata)
    with caplog.at_level("INFO", logger="tosica"):
        assert scale_of(CellMatrix(adata)).over == "median"
    assert "neither raw nor obs tell the total" in caplog.text


# ------------------------------------------------------------------ other scales


def shares_of(counts: np.ndarray) -> np.ndarray:
    return np.asarray(counts / counts.sum(1, keepdims=True))


def half(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(one))[:, None] % 2 == 0, one, other)


def a_batch(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(one))[:, None] < len(one) // 6, one, other)


def z_scores(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip((x - x.mean(0)) / np.maximum(x.std(0), 1e-9), 0, 10))


REFUSED: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "log2": (lambda c: np.log2(1 + 1e4 * shares_of(c)), r"log2 .* multiply it by np\.log\(2\)"),
    "log10": (lambda c: np.log10(1 + 1e6 * shares_of(c)), r"log10 .* by np\.log\(10\)"),
    "twice": (lambda c: np.log1p(normalised(c)), r"logarithm of the logarithm .* np\.expm1 once"),
    "raw": (np.log1p, r"logarithm of counts that were not normalised: give"),
    "raw log2": (lambda c: np.log2(c + 1), r"log2 of expression"),
    "fractions": (shares_of, r"expression without a logarithm"),
    "square roots": (lambda c: np.sqrt(1e4 * shares_of(c)), r"square root|fractions with values"),
    "z-scores": (lambda c: z_scores(normalised(c)), r"scaled to a variance of 1"),
    "unit": (lambda c: normalised(c) / normalised(c).max(0).clip(1e-9), r"values of at most 1 "),
    "ranks": (lambda c: normalised(c).argsort(1).argsort(1) + 1.0, r"ranks of genes|no zero"),
    "ranks / n": (
        lambda c: (normalised(c).argsort(1).argsort(1) + 1.0) / c.shape[1],
        r"ranks of genes|no zero|values of at most 1|without a logarithm",
    ),
    "equal": (lambda c: np.full_like(c, 2.5), r"the same value, 2\.5, for all genes"),
    "1e4 and 1e6": (
        lambda c: half(normalised(c), normalised(c, 1e6)),
        r"scaled to different totals, (such as 1e\+04 and 1e\+06|one about)",
    ),
    "a batch of 1e6": (
        lambda c: a_batch(normalised(c, 1e6), normalised(c)),
        r"scaled to different totals, ",
    ),
    "counts and log1p": (lambda c: half(c, normalised(c)), r"counts in some cells and fractions"),
    "a batch of raw": (
        lambda c: a_batch(np.log1p(c), normalised(c)),
        r"not normalised in some cells, and of normalised ones in others",
    ),
    "log1p and log2": (
        lambda c: half(normalised(c), np.log2(1 + 1e4 * shares_of(c))),
        r"the natural logarithm in some cells and log2 in others|log2 in some cells and",
    ),
}


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("genes", [slice(None), slice(60, 200)], ids=["all", "fewer"])
@pytest.mark.parametrize("name", REFUSED)
def test_other_scales_are_refused(name: str, genes: slice, form: Any) -> None:
    change, sentence = REFUSED[name]
    x = change(sequenced())[:, genes].astype(np.float32)
    before = x.copy()
    with pytest.raises(ValueError, match=rf"^adata\.X holds .*({sentence})") as raised:
        scale_of(rows(form(x)))
    assert str(raised.value).endswith((".", "give counts for all of them."))
    np.testing.assert_array_equal(x, before)


def test_types_that_differ_in_genes_that_were_left_are_no_scales() -> None:
    """Red blood cells have nearly all of their counts in few genes, in the end all of them."""
    counts = sequenced(200)
    counts[::4, :3] *= 400
    x = normalised(counts)[:, :100]
    assert scale_of(rows(x)).over == "median"


def test_technologies_that_differ_in_depth_are_no_scales() -> None:
    counts = np.concatenate(
        [sequenced(100), np.random.default_rng(1).poisson(200 * sequenced(100))]
    )
    for x in (normalised(counts), normalised(counts)[:, :100], normalised(counts, None)[:, :100]):
        assert scale_of(rows(x)).kind == "log1p"


@pytest.mark.parametrize("total", [1e4, 1e6])
def test_reads_that_are_no_multiples_of_one_count(total: float) -> None:
    counts = sequenced() * np.random.default_rng(1).lognormal(0, 1, 300)
    x = normalised(counts, total)
    assert scale_of(rows(x)) == Scale("log1p", pytest.approx(total, rel=1e-4), "genes")
    assert scale_of(rows(x[:, :150])).over == "median"
    with pytest.raises(ValueError, match=r"log2 of expression"):
        scale_of(rows(x / np.log(2)))


def test_real_cells_whose_values_were_rounded() -> None:
    raw = sc.datasets.pbmc68k_reduced().raw.to_adata()
    # Its obs has the total counts.
    for adata in (raw, raw[:, ::3]):
        scale = scale_of(CellMatrix(adata))
        assert scale[:3] == ("log1p", pytest.approx(1e4, rel=0.01), "matrix")
    del raw.obs["n_counts"]
    assert scale_of(CellMatrix(raw)).over == "median"


@pytest.mark.parametrize("n_cells", [100, 1000, 5000])
@pytest.mark.parametrize("percent", [(2, 1), (3, 1.5), (5, 2)], ids=str)
def test_totals_that_vary_by_a_few_percent_are_no_scales(
    n_cells: int, percent: tuple[float, float]
) -> None:
    """Such as after mitochondrial genes were left out, which hold a few percent of the counts."""
    rng = np.random.default_rng(n_cells)
    counts = rng.poisson(rng.gamma(1, 10, (n_cells, 200))).astype(np.float64)
    total = counts.sum(1, keepdims=True)
    share = np.clip(rng.normal(*percent, (n_cells, 1)), 0, None) / 100
    counts = np.column_stack([counts, np.rint(total * share / (1 - share))])
    scale_of(rows(normalised(counts)[:, :-1]))
    halves = np.where(np.arange(n_cells)[:, None] % 2, np.expm1(normalised(counts)) * 100, 0)
    halves[::2] = np.expm1(normalised(counts))[::2]
    with pytest.raises(ValueError, match="different totals"):
        scale_of(rows(np.log1p(halves)[:, :-1].astype(np.float32)))
