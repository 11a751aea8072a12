from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from get.annotated_pbmc import annotated_pbmc
from scipy import stats

import tosica


def _staged():
    adata = annotated_pbmc()
    rng = np.random.default_rng(0)
    adata.obs["age"] = rng.uniform(0, 10, adata.n_obs)
    adata.obsm["X_tosica"][:, 40] *= np.exp(adata.obs["age"] / 10).to_numpy()
    return adata


def test_is_scipys_spearman():
    adata = _staged()
    tosica.tl.correlate_gene_sets(adata, "age")
    table = adata.uns["correlate_gene_sets"].set_index("gene_set")
    for i in (0, 7, 40):
        expected = stats.spearmanr(adata.obsm["X_tosica"][:, i], adata.obs["age"])
        row = table.loc[f"gene set {i:02d}"]
        assert row["correlation"] == pytest.approx(expected.statistic, abs=1e-9)
        assert row["pval"] == pytest.approx(expected.pvalue, rel=1e-6)
    assert table.index[0] == "gene set 40"
    np.testing.assert_allclose(table["pval_adj"], stats.false_discovery_control(table["pval"]))
    assert (table["group"] == "all").all()


def test_in_each_group():
    adata = _staged()
    tosica.tl.correlate_gene_sets(adata, "age", groupby="phase")
    table = adata.uns["correlate_gene_sets"]
    assert list(table["group"].cat.categories) == ["G1", "G2M", "S"]
    inside = adata[adata.obs["phase"] == "S"]
    expected = stats.spearmanr(inside.obsm["X_tosica"][:, 3], inside.obs["age"]).statistic
    row = table[(table["group"] == "S") & (table["gene_set"] == "gene set 03")]
    assert row["correlation"].item() == pytest.approx(expected, abs=1e-9)
    assert row["n"].item() == inside.n_obs


def test_samples_as_replicates():
    adata = _staged()
    adata.obs["donor"] = (np.arange(adata.n_obs) % 6).astype(str)
    adata.obs["age"] = adata.obs["donor"].astype(int) * 10.0
    tosica.tl.correlate_gene_sets(adata, "age", sample_key="donor")
    table = adata.uns["correlate_gene_sets"]
    assert (table["n"] == 6).all()
    assert (table["pval_adj"] < 0.05).mean() <= 0.05
    tosica.tl.correlate_gene_sets(adata, "age")
    assert (adata.uns["correlate_gene_sets"]["n"] == 700).all()


def test_a_stage_is_an_order():
    adata = _staged()
    stages = ["late", "middle", "early"]
    adata.obs["stage"] = pd.Categorical.from_codes(
        (adata.obs["age"] // 3.4).astype(int), stages[::-1], ordered=True
    )
    tosica.tl.correlate_gene_sets(adata, "stage")
    first = adata.uns["correlate_gene_sets"].iloc[0]
    assert first["gene_set"] == "gene set 40"
    assert first["correlation"] > 0
    adata.obs["stage"] = adata.obs["stage"].cat.as_unordered()
    with pytest.raises(TypeError, match="categories without an order"):
        tosica.tl.correlate_gene_sets(adata, "stage")


def test_attention_that_is_the_same_everywhere_has_no_correlation():
    adata = _staged()
    adata.obsm["X_tosica"][:, 5] = 0.01
    tosica.tl.correlate_gene_sets(adata, "age")
    row = adata.uns["correlate_gene_sets"].set_index("gene_set").loc["gene set 05"]
    assert row["correlation"] == 0
    assert row["pval"] == 1


def test_missing_numbers_are_left_out_with_a_warning():
    adata = _staged()
    adata.obs.loc[adata.obs_names[:30], "age"] = np.nan
    with pytest.warns(UserWarning, match="missing or infinite in 30 of 700 cells"):
        tosica.tl.correlate_gene_sets(adata, "age")
    assert (adata.uns["correlate_gene_sets"]["n"] == 670).all()


def test_groups_that_cannot_be_correlated_are_left_out_with_a_warning():
    adata = _staged()
    adata.obs["group"] = np.where(np.arange(adata.n_obs) < 2, "two", "many")
    with pytest.warns(UserWarning, match="Left out 'two': fewer than 4 cells"):
        tosica.tl.correlate_gene_sets(adata, "age", groupby="group")
    adata.obs["age"] = 1.0
    with pytest.raises(ValueError, match="nothing to correlate in 'all'"):
        tosica.tl.correlate_gene_sets(adata, "age")


def test_wrong_columns():
    adata = _staged()
    with pytest.raises(KeyError, match="no column 'pseudotime'"):
        tosica.tl.correlate_gene_sets(adata, "pseudotime")
    with pytest.raises(TypeError, match="categories without an order"):
        tosica.tl.correlate_gene_sets(adata, "phase")
    adata.obs["words"] = "a"
    with pytest.raises(TypeError, match="not numbers or an order"):
        tosica.tl.correlate_gene_sets(adata, "words")
    adata.obs["nothing"] = np.nan
    with pytest.raises(ValueError, match="no value in any cell"):
        tosica.tl.correlate_gene_sets(adata, "nothing")


def test_copy_and_file(tmp_path):
    import anndata

    adata = _staged()
    result = tosica.tl.correlate_gene_sets(adata, "age", copy=True, key_added="with_age")
    assert "with_age" not in adata.uns
    result.write_h5ad(tmp_path / "a.h5ad")
    back = anndata.read_h5ad(tmp_path / "a.h5ad").uns["with_age"]
    assert list(back["gene_set"]) == list(result.uns["with_age"]["gene_set"])
