from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import stats

import tosica

N_SETS = 200


def _cells(seed, *, n_samples=8, n_cells=60, sample_effect=0.15, raised=0, types=("B", "T")):
    """Attention of samples that differ; the first ``raised`` sets are raised in 'stim', in B."""
    rng = np.random.default_rng(seed)
    rows = []
    for cell_type in types:
        for sample in range(n_samples):
            condition = "stim" if sample % 2 else "ctrl"
            level = rng.normal(0, sample_effect, N_SETS)
            if condition == "stim" and cell_type == "B":
                level[:raised] += 1.0
            values = rng.gamma(4.0, size=(n_cells, N_SETS)) * np.exp(level)
            obs = {"cell_type": cell_type, "sample": f"{condition}{sample}", "condition": condition}
            rows.append((values, pd.DataFrame(obs, index=range(n_cells))))
    obs = pd.concat([frame for _, frame in rows], ignore_index=True)
    obs.index = [f"c{i}" for i in range(len(obs))]
    values = np.concatenate([values for values, _ in rows]) / (4 * N_SETS)
    adata = AnnData(np.zeros((len(obs), 1), np.float32), obs=obs)
    adata.obsm["X_tosica"] = values.astype(np.float32)
    adata.uns["tosica"] = {"gene_sets": np.array([f"set {i}" for i in range(N_SETS)])}
    return adata


def _stim(adata, **kwargs):
    kwargs = {"groups": ["stim"], "reference": "ctrl"} | kwargs
    tosica.tl.rank_gene_sets(adata, "condition", **kwargs)
    return tosica.get.rank_gene_sets_df(adata)


@pytest.mark.parametrize("method", ["moderated-t", "t-test", "wilcoxon"])
@pytest.mark.parametrize("n_samples", [4, 8])
def test_where_nothing_differs_hardly_anything_is_reported(method, n_samples):
    reported = []
    for seed in range(10):
        adata = _cells(seed, n_samples=n_samples, n_cells=20, types=("B",))
        table = _stim(adata, sample_key="sample", method=method)
        reported.append((table["pval_adj"] < 0.05).mean())
    assert np.mean(reported) <= 0.05


def test_cells_as_replicates_would_report_what_samples_differ_by():
    table = _stim(_cells(0, types=("B",)))
    assert (table["pval_adj"] < 0.05).mean() > 0.2


def test_what_is_raised_is_found_over_samples():
    table = _stim(_cells(0, raised=5, types=("B",)), sample_key="sample")
    assert set(table["gene_set"].head(5)) == {f"set {i}" for i in range(5)}
    assert (table["pval_adj"].head(5) < 0.05).all()
    assert table["logfoldchange"].head(5).between(1.0, 1.9).all()
    assert (table["effect_size"].head(5) > 0.5).all()


def test_two_samples_a_side_are_enough_for_the_moderated_test():
    adata = _cells(0, n_samples=4, raised=5, types=("B",))
    moderated = _stim(adata, sample_key="sample")
    assert set(moderated["gene_set"].head(5)) == {f"set {i}" for i in range(5)}


def test_each_cell_type_has_a_field_of_its_own():
    adata = _cells(0, raised=5)
    table = _stim(adata, within="cell_type", sample_key="sample")
    assert list(table["group"].cat.categories) == ["B", "T"]
    first = table.groupby("group", observed=True).head(5)
    assert set(first.loc[first["group"] == "B", "gene_set"]) == {f"set {i}" for i in range(5)}
    assert (table.loc[table["group"] == "T", "pval_adj"] < 0.05).mean() <= 0.05
    assert adata.uns["rank_gene_sets"]["params"]["within"] == "cell_type"


def test_within_agrees_with_the_cells_alone():
    adata = _cells(0, raised=5)
    table = _stim(adata, within="cell_type", sample_key="sample")
    alone = _stim(adata[adata.obs["cell_type"] == "B"].copy(), sample_key="sample")
    inside = table[table["group"] == "B"].reset_index(drop=True)
    pd.testing.assert_frame_equal(inside.drop(columns="group"), alone.drop(columns="group"))


def test_several_conditions_within_have_names_of_their_own():
    adata = _cells(0)
    tosica.tl.rank_gene_sets(adata, "condition", within="cell_type")
    names = adata.uns["rank_gene_sets"]["names"].dtype.names
    assert names == ("ctrl in B", "stim in B", "ctrl in T", "stim in T")


def test_samples_on_both_sides_are_paired():
    """Large differences between donors hide a small one between types, unless they are paired."""
    adata = _cells(0, sample_effect=0.0)
    rng = np.random.default_rng(1)
    donor = rng.lognormal(0, 1.0, (8, N_SETS))
    codes = adata.obs["sample"].astype("category").cat.codes.to_numpy()
    values = adata.obsm["X_tosica"] * donor[codes]
    values[(adata.obs["cell_type"] == "B").to_numpy(), :5] *= 1.4
    adata.obsm["X_tosica"] = values.astype(np.float32)
    tosica.tl.rank_gene_sets(adata, "cell_type", groups=["B"], sample_key="sample")
    table = tosica.get.rank_gene_sets_df(adata, "B")
    assert set(table["gene_set"].head(5)) == {f"set {i}" for i in range(5)}
    assert (table["pval_adj"].head(5) < 0.05).all()


def test_rank_by_absolute_score():
    adata = _cells(0, raised=5, types=("B",))
    kwargs = {"groups": ["ctrl"], "reference": "stim", "sample_key": "sample"}
    table = _stim(adata, rankby_abs=True, **kwargs)
    assert set(table["gene_set"].head(5)) == {f"set {i}" for i in range(5)}
    assert (table["score"].head(5) < 0).all()


def test_welch_is_scipys():
    adata = _cells(3, types=("B",))
    table = _stim(adata, sample_key="sample", method="t-test").set_index("gene_set")
    frame = pd.DataFrame(adata.obsm["X_tosica"].astype(float)).groupby(
        adata.obs["sample"].to_numpy()
    )
    means = np.log2(frame.mean())
    stim = means.index.str.startswith("stim")
    result = stats.ttest_ind(means[stim], means[~stim], equal_var=False)
    np.testing.assert_allclose(
        table.loc[[f"set {i}" for i in range(N_SETS)], "pval"], result.pvalue, rtol=1e-4
    )


def test_effect_size_is_cohens_d_of_cells():
    adata = _cells(0, raised=3, types=("B",))
    table = _stim(adata).set_index("gene_set")
    stim = (adata.obs["condition"] == "stim").to_numpy()
    x = adata.obsm["X_tosica"][:, 0].astype(float)
    pooled = np.sqrt((x[stim].var() * stim.sum() + x[~stim].var() * (~stim).sum()) / len(x))
    expected = (x[stim].mean() - x[~stim].mean()) / pooled
    assert table.loc["set 0", "effect_size"] == pytest.approx(expected, rel=1e-4)


def test_a_group_with_one_sample():
    adata = _cells(0, types=("B",))
    adata.obs.loc[adata.obs["condition"] == "stim", "sample"] = "only"
    with pytest.raises(ValueError, match=r"'stim' of adata\.obs\['condition'\] has 1 sample with"):
        _stim(adata, sample_key="sample")
    assert "rank_gene_sets" not in adata.uns


def test_samples_with_few_cells_do_not_count():
    adata = _cells(0, n_samples=4, n_cells=8, types=("B",))
    with pytest.raises(ValueError, match=r"has 0 samples with at least 10 cells.* lower min_cells"):
        _stim(adata, sample_key="sample")
    assert len(_stim(adata, sample_key="sample", min_cells=5)) == N_SETS


def test_a_condition_that_exists_in_one_cell_type_only():
    adata = _cells(0)
    kept = (adata.obs["cell_type"] == "B") | (adata.obs["condition"] == "ctrl")
    adata = adata[kept].copy()
    with pytest.warns(
        UserWarning, match=r"Left out 'T' of adata\.obs\['cell_type'\]; in 'T': .*no"
    ):
        table = _stim(adata, within="cell_type", sample_key="sample")
    assert list(table["group"].cat.categories) == ["B"]


def test_no_cell_type_with_both_conditions():
    adata = _cells(0)
    adata.obs["cell_type"] = np.where(adata.obs["condition"] == "stim", "B", "T")
    with pytest.raises(
        ValueError, match=r"No category of adata\.obs\['cell_type'\] can be compared"
    ):
        _stim(adata, within="cell_type", sample_key="sample")


def test_a_single_cell_within_a_type_is_left_out():
    adata = _cells(0)
    inside = (adata.obs["cell_type"] == "T") & (adata.obs["condition"] == "stim")
    drop = inside.to_numpy(copy=True)
    drop[np.flatnonzero(drop)[0]] = False
    with pytest.warns(UserWarning, match="Left out 'T'.*a single cell in 'stim'"):
        _stim(adata[~drop].copy(), within="cell_type")


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"method": "moderated-t"}, "'moderated-t' cannot be used without sample_key: of cells"),
        (
            {"method": "t-test_overestim_var", "sample_key": "sample"},
            "cannot be used with sample_key: of samples, it is one of",
        ),
        ({"method": "anova", "sample_key": "sample"}, "method must be one of 'moderated-t'"),
    ],
)
def test_methods_that_do_not_fit(kwargs, match):
    with pytest.raises(ValueError, match=match):
        _stim(_cells(0, n_cells=12), **kwargs)


def test_missing_columns():
    with pytest.raises(KeyError, match="no column 'donor'"):
        _stim(_cells(0, n_cells=12), sample_key="donor")
    with pytest.raises(KeyError, match="no column 'type'"):
        _stim(_cells(0, n_cells=12), within="type")
