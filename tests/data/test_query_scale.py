"""Queries on another scale than the reference: brought to it, or refused in one sentence."""

from __future__ import annotations

import logging

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from tosica.data import MODALITY_KINDS, CellMatrix, Scale

GENES = pd.Index([f"G{i}" for i in range(60)])
SCALE = Scale("counts", 1e4, "genes")
COUNTS = np.random.default_rng(0).poisson(2.0, (40, 60)).astype(np.float64)
SHARES = COUNTS / COUNTS.sum(1, keepdims=True)
RIGHT = np.log1p(1e4 * SHARES)
# Reads are longer or shorter by gene, so that they are no multiples of anything.
READS = COUNTS * np.random.default_rng(1).lognormal(0, 1, 60)
TPM = READS / READS.sum(1, keepdims=True)
WRONG = {
    "1e6": np.log1p(1e6 * SHARES),
    "1e3": np.log1p(1e3 * SHARES),
    "1": np.log1p(SHARES),
    "median": np.log1p(np.median(COUNTS.sum(1)) * SHARES),
    "log2": np.log2(1 + 1e4 * SHARES),
    "log10": np.log10(1 + 1e4 * SHARES),
    "log10 1e6": np.log10(1 + 1e6 * SHARES),
    "twice": np.log1p(RIGHT),
}


def aligned(x, scale=SCALE, names=GENES, columns=GENES, **settings):
    """Values that the model gets, log-normalized if they are still counts."""
    adata = ad.AnnData(x)
    adata.var_names = columns[: adata.n_vars]
    kind = MODALITY_KINDS["rna"]
    parts = []
    for batch in kind.align(CellMatrix(adata), names, scale, **settings):
        values = batch.values
        if batch.is_counts:
            total = values.sum(1, dtype=np.float64) if batch.total is None else batch.total
            factor = np.divide(scale.target_sum, total, out=np.zeros_like(total), where=total > 0)
            values = np.log1p(values * factor[:, None])
        parts.append(values)
    return np.concatenate(parts)


@pytest.fixture
def said(caplog):
    """Warnings of the logger."""
    with caplog.at_level(logging.WARNING, logger="tosica"):
        yield lambda: caplog.text


def over_genes(shares, genes=slice(None), total=1e4):
    """Shares of some genes, log-normalized over these."""
    shares = shares[:, genes]
    return np.log1p(total * shares / shares.sum(1, keepdims=True))


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("name", WRONG)
def test_another_scale_is_recognised(name, form, said):
    found = aligned(form(WRONG[name].astype(np.float32)))
    np.testing.assert_allclose(found, RIGHT, rtol=2e-4, atol=2e-4)
    same_total = name in ("log2", "log10", "twice")
    sentence = "replaced by the natural logarithm" if same_total else "brought to its scale"
    assert sentence in said()
    assert ("hold log2" in said()) == (name == "log2")


@pytest.mark.parametrize("n_obs", [1, 3, 5])
@pytest.mark.parametrize("name", WRONG)
def test_a_few_cells_are_enough(name, n_obs, said):
    found = aligned(WRONG[name][:n_obs].astype(np.float32))
    np.testing.assert_allclose(found, RIGHT[:n_obs], rtol=2e-4, atol=2e-4)
    assert said()


@pytest.mark.parametrize("name", ["1e6", "1e3", "1", "median", "log10 1e6"])
@pytest.mark.parametrize("columns", [slice(48), slice(58)])
@pytest.mark.filterwarnings("ignore:The query has only")
def test_another_scale_with_genes_that_were_left_out(name, columns, said):
    found = aligned(WRONG[name][:, columns])
    # Counts of these genes are brought to the same.
    np.testing.assert_allclose(found, aligned(COUNTS[:, columns]), rtol=1e-4, atol=1e-4)
    assert "over the model's genes before" in said()


@pytest.mark.parametrize("name", ["log2", "log10", "twice"])
@pytest.mark.filterwarnings("ignore:The query has only")
def test_another_logarithm_with_genes_that_were_left_out(name):
    """The total is as it should be without these genes, and stays."""
    found = aligned(WRONG[name][:, :48])
    np.testing.assert_allclose(found[:, :48], RIGHT[:, :48], rtol=1e-4, atol=1e-4)


def test_totals_are_those_of_the_models_genes(said):
    """Counts of a reference of some genes are scaled over these; the query has more genes."""
    found = aligned(RIGHT, names=GENES[:30])
    np.testing.assert_allclose(found, over_genes(SHARES, slice(30)), rtol=1e-5)
    np.testing.assert_allclose(found, aligned(COUNTS, names=GENES[:30]), rtol=1e-5)
    assert "had a total of 5" in said()


def test_reads_that_are_no_multiples_of_one_count(said):
    scaled = np.log1p(1e6 * TPM)
    np.testing.assert_allclose(aligned(scaled), np.log1p(1e4 * TPM), rtol=1e-4)
    assert "a total of 1e+06 before the natural logarithm" in said()
    np.testing.assert_array_equal(
        aligned(scaled, Scale("log1p", 1e6, "genes")), scaled.astype(np.float32)
    )


def test_each_cell_is_scaled_by_itself():
    x = WRONG["1e6"]
    whole = aligned(x)
    order = np.random.default_rng(1).permutation(40)
    np.testing.assert_allclose(aligned(x[order], batch_size=7), whole[order], rtol=1e-6)
    np.testing.assert_allclose(aligned(x[:10]), whole[:10], rtol=1e-6)


def test_cells_on_two_scales():
    x = np.where(np.arange(40)[:, None] % 2 == 0, RIGHT, WRONG["1e6"])
    np.testing.assert_allclose(aligned(x), RIGHT, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "scale"),
    [
        (RIGHT, SCALE),
        (RIGHT[:1], SCALE),
        # As the reference was scaled.
        (WRONG["1e6"], Scale("log1p", 1e6, "genes")),
        # Nobody knows what the reference was scaled to.
        (WRONG["1e6"], Scale("log1p", 1e4, "matrix")),
        # Genes were left out after the normalisation.
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
def test_what_is_right_or_not_known_is_taken_as_it_is(x, scale, said):
    found = aligned(x, scale)
    np.testing.assert_array_equal(found[:, : x.shape[1]], x.astype(np.float32))
    assert not said()


def test_counts_are_left_alone(said):
    np.testing.assert_allclose(aligned(COUNTS), RIGHT, rtol=1e-6)
    assert not said()


@pytest.mark.parametrize("name", ["1e6", "log2"])
def test_reference_whose_total_is_known(name):
    """A query with all genes is scaled over all of them, as the reference was."""
    scale = Scale("log1p", 1e4, "matrix", 5e3)
    found = aligned(WRONG[name], scale, names=GENES[:30])
    np.testing.assert_allclose(found, RIGHT[:, :30], rtol=1e-5)
    np.testing.assert_allclose(aligned(COUNTS, scale, names=GENES[:30]), RIGHT[:, :30], rtol=1e-5)


@pytest.mark.parametrize("x", [COUNTS, WRONG["1e6"]])
def test_query_that_was_cut_as_the_reference(x, said):
    """What is left of its counts is brought to what is left of the reference's."""
    scale = Scale("log1p", 1e5, "matrix", 5e3)
    expected = over_genes(SHARES, slice(30), 5e3)
    np.testing.assert_allclose(aligned(x[:, :30], scale, names=GENES[:30]), expected, rtol=1e-5)
    assert said()


@pytest.mark.parametrize("x", [COUNTS, COUNTS[:, :30], WRONG["1e6"], WRONG["1e6"][:, :30]])
def test_reference_whose_total_is_not_known(x):
    scale = Scale("log1p", 5e3, "median")
    expected = over_genes(SHARES, slice(30), 5e3)
    np.testing.assert_allclose(aligned(x, scale, names=GENES[:30]), expected, rtol=1e-5)


UNTELLABLE = np.log1p(1e6 * TPM[:, :40])


@pytest.mark.parametrize("scale", [Scale("counts", 1e4, "genes"), Scale("log1p", 1e3, "median")])
def test_a_scale_that_cannot_be_told_is_warned_of(scale):
    with pytest.warns(UserWarning, match=r"adata\.X holds cells whose total .* give counts\.$"):
        found = aligned(UNTELLABLE, scale, names=GENES[:40])
    np.testing.assert_array_equal(found, UNTELLABLE.astype(np.float32))


def test_a_plausible_scale_is_not_warned_of():
    scale = Scale("log1p", float(np.median(1e6 * TPM[:, :40].sum(1))), "median")
    found = aligned(UNTELLABLE, scale, names=GENES[:40])
    np.testing.assert_array_equal(found, UNTELLABLE.astype(np.float32))


HALF = np.arange(40)[:, None] % 2 == 0


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (SHARES, "expression without a logarithm, not .* give the counts, or call"),
        (10 * SHARES[:, :40], "expression without a logarithm"),
        (np.sqrt(1e3 * SHARES), "the square root of expression"),
        (np.log1p(COUNTS), "logarithm of counts that were not normalised: give"),
        (np.log1p(50 * COUNTS), "logarithm of counts that were not normalised: give"),
        (np.log2(1 + COUNTS[:2]), "logarithm of counts that were not normalised: give"),
        (np.where(HALF, RIGHT, WRONG["log2"]), "log(2|arithm) in some cells and .* in others"),
        (np.where(HALF, RIGHT, np.log1p(COUNTS)), "not normalised in some cells, and of norm"),
        (np.where(HALF, RIGHT, COUNTS), "holds counts in some cells and fractions in others"),
        (RIGHT.argsort(1).argsort(1) + 1.0, "holds ranks of genes within each cell: give counts"),
        (RIGHT.argsort(1).argsort(1) / 60, "holds ranks of genes within each cell: give counts"),
        (RIGHT / RIGHT.max(0), "holds values of at most 1 .* scaled to its maximum: give counts"),
        (np.full((40, 60), 2.5), "holds the same value, 2.5, for all genes"),
    ],
)
@pytest.mark.filterwarnings("ignore:The query has only")
def test_what_cannot_be_brought_to_the_scale_is_refused(x, sentence):
    before = x.copy()
    with pytest.raises(ValueError, match=rf"^adata\.X .*{sentence}"):
        aligned(x.astype(np.float32))
    np.testing.assert_array_equal(x, before)


def test_cells_on_two_scales_that_were_not_looked_at():
    rng = np.random.default_rng(0)
    counts = rng.poisson(2.0, (3000, 60))
    shares = counts / counts.sum(1, keepdims=True)
    x = np.log1p(1e4 * shares)
    x[37] = np.log1p(1e6 * shares[37])
    with pytest.raises(ValueError, match=r"scaled to different totals \(one is cell 37\): normal"):
        aligned(x)
    # All cells are rescaled, each by itself.
    x = np.log1p(1e6 * shares)
    x[37] = np.log1p(1e4 * shares[37])
    np.testing.assert_allclose(aligned(x), np.log1p(1e4 * shares), rtol=1e-4, atol=1e-4)


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


def test_query_on_disk(tmp_path, said):
    ad.AnnData(sp.csr_matrix(WRONG["1e6"]), var=pd.DataFrame(index=GENES)).write_h5ad(
        tmp_path / "a.h5ad"
    )
    backed = ad.read_h5ad(tmp_path / "a.h5ad", backed="r")
    batches = MODALITY_KINDS["rna"].align(CellMatrix(backed), GENES, SCALE)
    np.testing.assert_allclose(
        np.concatenate([b.values for b in batches]), RIGHT, rtol=1e-4, atol=1e-4
    )
    assert said()
    backed.file.close()
