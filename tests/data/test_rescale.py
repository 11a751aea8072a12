"""The total of a reference, and queries on another scale: brought to it, or refused."""

import logging

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from _scaled import each_format, half, normalized, reads, rows, sequenced, shares
from numpy.testing import assert_allclose, assert_array_equal

import tosica
from tosica.data import MODALITY_KINDS, AlignedCells, CellMatrix, Scale

RNA = MODALITY_KINDS["rna"]


def fit_scale(matrix):
    scale = RNA.detect_scale(matrix)
    assert isinstance(scale, Scale)
    return scale


# ------------------------------------------------------------------ a reference


@each_format
@pytest.mark.parametrize("target_sum", [1e4, 1e6, 37.0, None])
def test_target_sum_is_recovered(counts, format_, target_sum):
    assert fit_scale(rows(format_(counts))) == Scale("counts", 1e4, "genes")
    expected = (
        np.median(counts.sum(1)[counts.sum(1) > 0])
        if target_sum is None
        else target_sum
    )
    kind, total, over, *_ = fit_scale(rows(format_(normalized(counts, target_sum))))
    assert (kind, over) == ("log1p", "genes")
    assert total == pytest.approx(expected, rel=1e-5)


@each_format
def test_genes_that_were_left_out(counts, format_):
    matrix = normalized(counts)[:, :15]
    totals = np.expm1(matrix.astype(np.float64)).sum(1)
    low, median, high = np.quantile(totals[totals > 0], [0.01, 0.5, 0.99])
    scale = fit_scale(rows(format_(matrix)))
    assert scale[:4] == ("log1p", pytest.approx(median, rel=1e-4), "median", None)
    assert scale.genes_range == pytest.approx([low, high], rel=1e-4)


@pytest.mark.parametrize("counts_first", [True, False])
def test_cells_that_were_not_sampled(counts_first):
    counts = sequenced(2000, 60)
    of_most, of_cell_37 = (
        (counts, normalized(counts)) if counts_first else (normalized(counts), counts)
    )
    x = np.where(np.arange(2000)[:, None] == 37, of_most, of_cell_37)
    with pytest.raises(ValueError, match=r"all cells \(see cell 37\)"):
        fit_scale(rows(x))


def reference(x, **attributes):
    obs = pd.DataFrame(index=[f"cell{i}" for i in range(x.shape[0])])
    var = pd.DataFrame(index=[f"gene{i}" for i in range(x.shape[1])])
    return ad.AnnData(x, obs=obs, var=var, **attributes)


@pytest.mark.parametrize("total", [1e4, 1e6, 1e3])
@pytest.mark.parametrize("source", ["raw", "raw counts", "total_counts", "nCount_RNA"])
def test_total_from_before_genes_were_left_out(total, source, tmp_path):
    counts = sequenced()
    complete = reference(normalized(counts, total))
    adata = complete[:, 50:150].copy()
    if source.startswith("raw"):
        adata.raw = complete if source == "raw" else reference(sp.csr_matrix(counts))
    else:
        adata.obs[source] = counts.sum(1)
    of_genes = np.median(np.expm1(adata.X.astype(np.float64)).sum(1))
    expected = (
        "log1p",
        pytest.approx(total, rel=1e-3),
        "matrix",
        pytest.approx(of_genes),
    )
    assert fit_scale(CellMatrix(adata))[:4] == expected
    assert fit_scale(CellMatrix(complete[5:])).over == "genes"
    adata.write_h5ad(tmp_path / "a.h5ad")
    backed = ad.read_h5ad(tmp_path / "a.h5ad", backed="r")
    assert fit_scale(CellMatrix(backed))[:4] == expected
    backed.file.close()


def of_other_genes():
    renamed = reference(sequenced())
    renamed.var_names = [f"other{i}" for i in range(renamed.n_vars)]
    return renamed


CELLS = np.random.default_rng(0).permutation(np.arange(80)) + 500
UNBELIEVABLE = {
    "other cells": lambda a: a.obs.insert(0, "total_counts", CELLS),
    # Of the genes that are left.
    "after": lambda a: a.obs.insert(0, "total_counts", sequenced()[:, 50:150].sum(1)),
    "missing": lambda a: a.obs.insert(0, "total_counts", np.nan),
    "words": lambda a: a.obs.insert(0, "total_counts", "many"),
    "cut raw": lambda a: setattr(a, "raw", a.copy()),
    "scaled raw": lambda a: setattr(a, "raw", reference(sequenced() - 1)),
    "raw of other genes": lambda a: setattr(a, "raw", of_other_genes()),
}


@pytest.mark.parametrize("name", UNBELIEVABLE)
def test_what_does_not_tell_the_total(name):
    adata = reference(normalized(sequenced()))[:, 50:150].copy()
    UNBELIEVABLE[name](adata)
    assert fit_scale(CellMatrix(adata)).over == "median"


def test_real_cells_whose_values_were_rounded():
    raw = sc.datasets.pbmc68k_reduced().raw.to_adata()
    # Its obs has the total counts.
    for adata in (raw, raw[:, ::3]):
        scale = fit_scale(CellMatrix(adata))
        assert scale[:3] == ("log1p", pytest.approx(1e4, rel=0.01), "matrix")
    del raw.obs["n_counts"]
    assert fit_scale(CellMatrix(raw)).over == "median"


# ------------------------------------------------------------------ a query

GENES = pd.Index([f"G{i}" for i in range(60)])
SCALE = Scale("counts", 1e4, "genes")
COUNTS = np.random.default_rng(0).poisson(2.0, (40, 60)).astype(np.float64)
SHARES = shares(COUNTS)
RIGHT = np.log1p(1e4 * SHARES)
TPM = shares(reads(COUNTS))
WRONG = {
    "1e6": np.log1p(1e6 * SHARES),
    "1e3": np.log1p(1e3 * SHARES),
    "1": np.log1p(SHARES),
    "median": np.log1p(np.median(COUNTS.sum(1)) * SHARES),
}


def aligned(x, scale=SCALE, names=GENES, columns=GENES, **settings):
    """Values that the model gets."""
    adata = ad.AnnData(x)
    adata.var_names = columns[: adata.n_vars]
    batches = AlignedCells(RNA, CellMatrix(adata), names, scale, **settings)
    return np.concatenate([batch.values for batch in batches])


@pytest.fixture
def warning_text(caplog):
    """Warnings of the logger."""
    with caplog.at_level(logging.WARNING, logger="tosica"):
        yield lambda: caplog.text


def over_genes(of_genes, genes=slice(None), total=1e4):
    """Shares of some genes, log-normalized over these."""
    return np.log1p(total * shares(of_genes[:, genes]))


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("name", WRONG)
def test_another_scale_is_recognized(name, form, warning_text):
    actual = aligned(form(WRONG[name].astype(np.float32)))
    assert_allclose(actual, RIGHT, rtol=2e-4, atol=2e-4)
    assert (
        "they are brought to the reference's scale, the natural logarithm"
        in warning_text()
    )
    assert "of a total of 10000" in warning_text()
    for n_obs in (1, 5):
        actual = aligned(WRONG[name][:n_obs].astype(np.float32))
        assert_allclose(actual, RIGHT[:n_obs], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("factor", [1, 1e4, 1e6])
def test_values_without_a_logarithm_are_taken_as_counts(factor, warning_text):
    assert_allclose(aligned(factor * SHARES), RIGHT, rtol=1e-5)
    assert_allclose(aligned(factor * TPM), np.log1p(1e4 * TPM), rtol=1e-5)
    assert_allclose(aligned(COUNTS), RIGHT, rtol=1e-6)
    assert not warning_text()


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("columns", [slice(48)])
@pytest.mark.filterwarnings("ignore:The query has only")
def test_another_scale_with_genes_that_were_left_out(name, columns, warning_text):
    actual = aligned(WRONG[name][:, columns])
    # Counts of these genes are brought to the same.
    assert_allclose(actual, aligned(COUNTS[:, columns]), rtol=1e-4, atol=1e-4)
    assert (
        "brought to the reference's scale, the natural logarithm of a total of 10000"
        in warning_text()
    )


def test_totals_are_those_of_the_models_genes(warning_text):
    """Counts of a reference of some genes are scaled over these; the query has more genes."""
    actual = aligned(RIGHT, names=GENES[:30])
    assert_allclose(actual, over_genes(SHARES, slice(30)), rtol=1e-5)
    assert_allclose(actual, aligned(COUNTS, names=GENES[:30]), rtol=1e-5)
    assert "about 10000 over all genes: they are brought" in warning_text()
    assert "of 10000 over the model's genes" in " ".join(warning_text().split())


def test_reads_that_are_no_multiples_of_one_count(warning_text):
    scaled = np.log1p(1e6 * TPM)
    assert_allclose(aligned(scaled), np.log1p(1e4 * TPM), rtol=1e-4)
    assert "hold the natural logarithm of a total of about 1e+06" in warning_text()
    same = aligned(scaled, Scale("log1p", 1e6, "genes"))
    assert_array_equal(same, scaled.astype(np.float32))


def test_each_cell_is_scaled_by_itself():
    x = WRONG["1e6"]
    rescaled = aligned(x)
    order = np.random.default_rng(1).permutation(40)
    assert_allclose(aligned(x[order], batch_size=7), rescaled[order], rtol=1e-6)
    assert_allclose(aligned(x[:10]), rescaled[:10], rtol=1e-6)
    assert_allclose(aligned(half(RIGHT, x)), RIGHT, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "scale"),
    [
        (RIGHT, SCALE),
        (RIGHT[:1], SCALE),
        # As the reference was scaled.
        (WRONG["1e6"], Scale("log1p", 1e6, "genes")),
        # Nobody knows what the reference was scaled to.
        (WRONG["1e6"], Scale("log1p", 1e4, "matrix")),
        # Genes were left out after the normalization.
        (RIGHT[:, :50], SCALE),
        (RIGHT[:4, :50], SCALE),
        # A few cells more or less shallow are no other scale.
        (np.log1p(1.005e4 * SHARES), SCALE),
        # A reference that was cut to the same genes.
        (RIGHT, Scale("log1p", 1e4, "median")),
        (RIGHT, Scale("log1p", 8e3, "median")),
        (RIGHT, Scale("log1p", 1e4, "matrix", 8e3)),
        # All cells of the query are of a type that has more counts in these genes than others.
        (RIGHT, Scale("log1p", 2e3, "median", genes_range=[5e2, 9e3])),
    ],
)
@pytest.mark.filterwarnings("ignore:The query has only")
def test_what_is_right_or_not_known_is_taken_as_it_is(x, scale, warning_text):
    actual = aligned(x, scale)
    assert_array_equal(actual[:, : x.shape[1]], x.astype(np.float32))
    assert not warning_text()


@pytest.mark.parametrize(
    "scale", [Scale("log1p", 1e5, "matrix", 5e3), Scale("log1p", 5e3, "median")]
)
@pytest.mark.parametrize(
    "x", [COUNTS, COUNTS[:, :30], WRONG["1e6"], WRONG["1e6"][:, :30]]
)
def test_what_is_left_of_a_query_is_brought_to_what_is_left_of_the_reference(x, scale):
    """The reference was cut to the model's genes, whether or not its total is known."""
    x = x[:, :30] if scale.over == "matrix" else x
    expected = over_genes(SHARES, slice(30), 5e3)
    assert_allclose(aligned(x, scale, names=GENES[:30]), expected, rtol=1e-5)


def test_a_scale_that_cannot_be_told_is_warned_of_unless_plausible(recwarn):
    x = np.log1p(1e6 * TPM[:, :40])
    for scale in (SCALE, Scale("log1p", 1e3, "median")):
        with pytest.warns(
            UserWarning, match=r"adata\.X holds cells whose total .* give counts\.$"
        ):
            actual = aligned(x, scale, names=GENES[:40])
        assert_array_equal(actual, x.astype(np.float32))
    recwarn.clear()
    plausible = Scale("log1p", float(np.median(1e6 * TPM[:, :40].sum(1))), "median")
    assert_array_equal(aligned(x, plausible, names=GENES[:40]), x.astype(np.float32))
    assert not len(recwarn)


def test_cells_on_two_scales_that_were_not_looked_at():
    counts = np.random.default_rng(0).poisson(2.0, (3000, 60)) + 0.0
    x = normalized(counts)
    x[37] = normalized(counts, 1e6)[37]
    with pytest.raises(ValueError, match=r"all cells \(see cell 37\)"):
        aligned(x)
    # All cells are rescaled, each by itself.
    x = normalized(counts, 1e6)
    x[37] = normalized(counts)[37]
    assert_allclose(aligned(x), normalized(counts), rtol=1e-4, atol=1e-4)


def test_cells_without_expression_stay_so():
    x = WRONG["1e6"].copy()
    x[5] = 0
    with pytest.warns(UserWarning, match="1 cells of the query express none"):
        actual = aligned(x)
    assert not actual[5].any()
    assert_allclose(actual[6:], RIGHT[6:], rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="zero everywhere"):
        aligned(np.zeros((40, 60)))


# ------------------------------------------------------------------ from reference to labels


def test_a_model_of_any_scale_annotates_queries_of_any_scale(train):
    kinds = np.arange(120) % 3
    rates = np.ones((120, 60))
    for kind in range(3):
        rates[kinds == kind, 15 * kind : 15 * (kind + 1)] = 5
    counts = np.random.default_rng(0).poisson(rates) + 0.0
    matrices = {
        "counts": counts,
        "log1p of 1e6": normalized(counts, 1e6),
        "per million": 1e6 * shares(counts),
        "log1p": normalized(counts),
    }

    def cells(x):
        adata = reference(x.astype(np.float32))
        adata.var_names = GENES
        adata.obs["kind"] = pd.Categorical(np.array(["a", "b", "c"])[kinds])
        return adata

    adata = cells(matrices["log1p of 1e6"])
    sets = {f"s{i}": list(GENES[15 * i : 15 * i + 15]) for i in range(4)}
    tosica.pp.build_mask(adata, sets, max_gene_sets=3)
    model = train(adata, max_epochs=10)
    expected = model.predict(cells(matrices["log1p of 1e6"]), soft=True)
    for x in matrices.values():
        actual = model.predict(cells(x), soft=True)
        assert_allclose(actual, expected, atol=1e-3)
    assert (expected.idxmax(axis=1) == adata.obs["kind"]).mean() > 0.95
