import logging

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from anndata import AnnData
from get.annotated_pbmc import N_GENE_SETS, annotated_pbmc, planted
from numpy.testing import assert_allclose
from scipy import stats

import tosica


@pytest.mark.parametrize("method", [None, "wilcoxon", "t-test", "t-test_overestim_var"])
def test_statistics_are_scanpys_and_a_planted_gene_set_is_first(method):
    adata = annotated_pbmc()
    # Clusters, which are no labels of the model.
    adata.obs["cluster"] = adata.obs["bulk_labels"].cat.rename_categories(
        "in {}".format
    )
    tosica.tl.rank_gene_sets(adata, "cluster", method=method)
    attention = tosica.get.contributions(adata)
    sc.tl.rank_genes_groups(attention, "cluster", method=method or "wilcoxon")
    result, expected = adata.uns["rank_gene_sets"], attention.uns["rank_genes_groups"]
    groups = tuple(adata.obs["cluster"].cat.categories)
    assert result["names"].dtype.names == expected["names"].dtype.names == groups
    for i, group in enumerate(groups):
        assert result["names"][group][0] == planted(i)
        assert result["logfoldchanges"][group][0] > 0
        assert list(result["names"][group]) == list(expected["names"][group])
        for field in ("scores", "pvals", "pvals_adj"):
            assert_allclose(result[field][group], expected[field][group])
            assert result[field].dtype == expected[field].dtype


def test_logfoldchange_is_that_of_the_odds():
    adata = annotated_pbmc()
    # Contributions are signed.
    adata.obsm["X_tosica_attribution"] -= 0.5
    values = pd.DataFrame(
        adata.obsm["X_tosica_attribution"],
        columns=adata.uns["tosica"]["gene_sets"],
        dtype=float,
    )
    means = values.groupby(adata.obs["phase"].to_numpy()).mean()
    in_group = (adata.obs["phase"] == "S").to_numpy()
    mean_of_rest = adata.obsm["X_tosica_attribution"][~in_group].mean(
        axis=0, dtype=float
    )
    expected = {
        "rest": dict(
            zip(means.columns, (means.loc["S"] - mean_of_rest) / np.log(2), strict=True)
        ),
        "G1": dict((means.loc["S"] - means.loc["G1"]) / np.log(2)),
    }
    for reference, ratios in expected.items():
        tosica.tl.rank_gene_sets(adata, "phase", groups=["S"], reference=reference)
        result = adata.uns["rank_gene_sets"]
        got = dict(
            zip(result["names"]["S"], result["logfoldchanges"]["S"], strict=True)
        )
        assert got == pytest.approx(ratios, abs=1e-4)


def test_values_that_are_zero_everywhere_and_names_that_occur_twice():
    adata = annotated_pbmc()
    adata.obsm["X_tosica_attribution"][:, 5] = 0
    adata.uns["tosica_attribution"]["gene_sets"][1] = planted(0)
    tosica.tl.rank_gene_sets(adata, "bulk_labels")
    table = tosica.get.rank_gene_sets_df(adata)
    rows = table.loc[
        table["gene_set"] == planted(5), ["logfoldchange", "score", "pval"]
    ]
    assert (rows == [0, 0, 1]).all(axis=None)
    for group in list(adata.obs["bulk_labels"].cat.categories)[:2]:
        top_row = table[table["group"] == group].iloc[0]
        assert top_row["gene_set"] == planted(0)
        assert top_row["logfoldchange"] > 0


@pytest.mark.parametrize("rankby_abs", [False, True])
def test_groups_reference_and_number(rankby_abs):
    adata = annotated_pbmc()
    options = {
        "groups": ["Dendritic", "CD34+", "Dendritic", "CD19+ B"],
        "reference": "CD19+ B",
    }
    tosica.tl.rank_gene_sets(
        adata, "bulk_labels", **options, n_gene_sets=3, rankby_abs=rankby_abs
    )
    result = adata.uns["rank_gene_sets"]
    for field in set(result) - {"params"}:
        assert result[field].dtype.names == ("Dendritic", "CD34+")
        assert len(result[field]) == 3
    assert result["params"]["reference"] == "CD19+ B"
    assert result["params"]["groupby"] == "bulk_labels"
    # The gene set of the reference is far below all others.
    of_reference = planted(
        list(adata.obs["bulk_labels"].cat.categories).index("CD19+ B")
    )
    assert (of_reference in result["names"]["CD34+"]) is rankby_abs
    tosica.tl.rank_gene_sets(adata, "bulk_labels", n_gene_sets=10_000)
    assert len(adata.uns["rank_gene_sets"]["names"]) == N_GENE_SETS


def test_groups_with_one_cell_are_left_out_of_all_groups():
    adata = annotated_pbmc()
    names = np.array(["a", "b"], dtype=object)[np.arange(adata.n_obs) % 2]
    names[:2] = ["lonely", "lost"]
    adata.obs["group"] = pd.Categorical(names)
    with pytest.warns(
        UserWarning, match=r"a single cell in 'lonely', 'lost' or .*: left out\.$"
    ):
        tosica.tl.rank_gene_sets(adata, "group")
    assert adata.uns["rank_gene_sets"]["names"].dtype.names == ("a", "b")
    for options in ({"groups": ["lost"]}, {"groups": ["a"], "reference": "lost"}):
        with pytest.raises(ValueError, match="name other groups"):
            tosica.tl.rank_gene_sets(adata, "group", **options)


def test_a_group_may_be_called_rest():
    adata = annotated_pbmc()
    names = np.array(["a", "b"], dtype=object)[np.arange(adata.n_obs) % 2]
    names[0] = "rest"
    adata.obs["group"] = pd.Categorical(names)
    with pytest.warns(UserWarning, match="a single cell in 'rest' or"):
        tosica.tl.rank_gene_sets(adata, "group")
    assert adata.uns["rank_gene_sets"]["names"].dtype.names == ("a", "b")


# -- over samples --------------------------------------------------------------------------------

N_SETS = 200


def _cells(
    seed, *, n_samples=8, n_cells=60, sample_effect=0.15, raised=0, types=("B", "T")
):
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
            obs = {
                "cell_type": cell_type,
                "sample": f"{condition}{sample}",
                "condition": condition,
            }
            rows.append((values, pd.DataFrame(obs, index=range(n_cells))))
    obs = pd.concat([frame for _, frame in rows], ignore_index=True)
    obs.index = [f"c{i}" for i in range(len(obs))]
    values = np.concatenate([values for values, _ in rows]) / (4 * N_SETS)
    adata = AnnData(np.zeros((len(obs), 1), np.float32), obs=obs)
    adata.obsm["X_tosica_attribution"] = values.astype(np.float32)
    adata.uns["tosica_attribution"] = {
        "gene_sets": np.array([f"set {i}" for i in range(N_SETS)])
    }
    return adata


def _stim(adata, **kwargs):
    kwargs = {"groups": ["stim"], "reference": "ctrl"} | kwargs
    tosica.tl.rank_gene_sets(adata, "condition", **kwargs)
    return tosica.get.rank_gene_sets_df(adata)


@pytest.mark.parametrize("method", ["moderated-t", "t-test", "wilcoxon"])
@pytest.mark.parametrize("n_samples", [6, 8])
def test_where_nothing_differs_hardly_anything_is_reported(method, n_samples):
    reported = []
    for seed in range(10):
        adata = _cells(seed, n_samples=n_samples, n_cells=20, types=("B",))
        table = _stim(adata, sample_key="sample", method=method)
        reported.append((table["pval_adj"] < 0.05).mean())
    assert np.mean(reported) <= 0.05


def test_what_is_raised_is_found_over_samples():
    table = _stim(_cells(0, raised=5, types=("B",)), sample_key="sample")
    assert set(table["gene_set"].head(5)) == {f"set {i}" for i in range(5)}
    assert (table["pval_adj"].head(5) < 0.05).all()
    assert (table["logfoldchange"].head(5) > 0).all()
    assert (table["effect_size"].head(5) > 0.5).all()


def test_each_cell_type_has_a_field_of_its_own():
    adata = _cells(0, raised=5)
    table = _stim(adata, within="cell_type", sample_key="sample")
    assert list(table["group"].cat.categories) == ["B", "T"]
    top_five = table.groupby("group", observed=True).head(5)
    assert set(top_five.loc[top_five["group"] == "B", "gene_set"]) == {
        f"set {i}" for i in range(5)
    }
    assert (table.loc[table["group"] == "T", "pval_adj"] < 0.05).mean() <= 0.05
    assert adata.uns["rank_gene_sets"]["params"]["within"] == "cell_type"
    tosica.tl.rank_gene_sets(adata, "condition", within="cell_type")
    names = adata.uns["rank_gene_sets"]["names"].dtype.names
    assert names == ("ctrl in B", "stim in B", "ctrl in T", "stim in T")


def test_samples_on_both_sides_are_paired():
    """Large differences between donors hide a small one between types, unless they are paired."""
    adata = _cells(0, sample_effect=0.0)
    rng = np.random.default_rng(1)
    donor = rng.lognormal(0, 1.0, (8, N_SETS))
    codes = adata.obs["sample"].astype("category").cat.codes.to_numpy()
    values = adata.obsm["X_tosica_attribution"] * donor[codes]
    values[(adata.obs["cell_type"] == "B").to_numpy(), :5] *= 1.4
    adata.obsm["X_tosica_attribution"] = values.astype(np.float32)
    tosica.tl.rank_gene_sets(adata, "cell_type", groups=["B"], sample_key="sample")
    table = tosica.get.rank_gene_sets_df(adata, "B")
    assert set(table["gene_set"].head(5)) == {f"set {i}" for i in range(5)}
    assert (table["pval_adj"].head(5) < 0.05).all()
    assert list(adata.uns["rank_gene_sets"]["params"]["paired"]) == [True]
    _stim(adata, sample_key="sample")
    assert list(adata.uns["rank_gene_sets"]["params"]["paired"]) == [False]


def test_welch_is_scipys():
    adata = _cells(3, types=("B",))
    table = _stim(adata, sample_key="sample", method="t-test").set_index("gene_set")
    frame = pd.DataFrame(adata.obsm["X_tosica_attribution"].astype(float)).groupby(
        adata.obs["sample"].to_numpy()
    )
    means = np.log2(frame.mean())
    stim = means.index.str.startswith("stim")
    result = stats.ttest_ind(means[stim], means[~stim], equal_var=False)
    assert_allclose(
        table.loc[[f"set {i}" for i in range(N_SETS)], "pval"], result.pvalue, rtol=1e-4
    )


def test_effect_size_is_cohens_d_of_cells():
    adata = _cells(0, raised=3, types=("B",))
    table = _stim(adata).set_index("gene_set")
    stim = (adata.obs["condition"] == "stim").to_numpy()
    x = adata.obsm["X_tosica_attribution"][:, 0].astype(float)
    pooled = np.sqrt(
        (x[stim].var() * stim.sum() + x[~stim].var() * (~stim).sum()) / len(x)
    )
    expected = (x[stim].mean() - x[~stim].mean()) / pooled
    assert table.loc["set 0", "effect_size"] == pytest.approx(expected, rel=1e-4)


def test_samples_that_are_too_few():
    adata = _cells(0, n_samples=4, n_cells=8, types=("B",))
    with pytest.raises(
        ValueError, match=r"has 0 samples with at least 10 cells.* lower min_cells"
    ):
        _stim(adata, sample_key="sample")
    assert len(_stim(adata, sample_key="sample", min_cells=5)) == N_SETS
    adata = _cells(0, types=("B",))
    adata.obs.loc[adata.obs["condition"] == "stim", "sample"] = "only"
    with pytest.raises(
        ValueError, match=r"'stim' of adata\.obs\['condition'\] has 1 sample with"
    ):
        _stim(adata, sample_key="sample")
    assert "rank_gene_sets" not in adata.uns


def test_two_samples_a_side_are_no_evidence(caplog):
    table = _stim(
        _cells(0, n_samples=4, raised=5), within="cell_type", sample_key="sample"
    )
    assert table["pval_adj"].isna().all()
    assert table["pval"].notna().all()
    assert (table["caveat"] == "fewer than 3 samples on a side").all()
    assert "pvals_adj of 'B', 'T' is NaN" in caplog.text
    assert "fewer than 3 samples on a side" in caplog.text
    caplog.clear()
    table = _stim(_cells(0, n_samples=6), within="cell_type", sample_key="sample")
    assert table["pval_adj"].notna().all()
    assert (table["caveat"] == "").all()
    assert "samples on a side" not in caplog.text


def test_groups_that_are_labels_of_the_model_make_the_test_circular(caplog):
    adata = _cells(0)
    adata.uns["tosica"] = {"labels": np.array(["B", "T"])}
    tosica.tl.rank_gene_sets(adata, "cell_type")
    assert "circular: the groups are labels of the model" in caplog.text
    table = tosica.get.rank_gene_sets_df(adata)
    assert table["pval_adj"].isna().all()
    assert table["caveat"].str.startswith("circular").all()
    caplog.clear()
    assert _stim(adata)["pval_adj"].notna().all()
    assert "circular" not in caplog.text


def test_cells_as_replicates_only_rank(caplog):
    with caplog.at_level(logging.INFO, logger="tosica"):
        table = _stim(_cells(0))
    assert table["caveat"].str.startswith("cells are the replicates").all()
    assert "p-values rank only: cells are the replicates" in caplog.text


def test_the_test_is_circular_under_another_key_and_with_votes():
    adata = _cells(0)
    adata.uns["tosica"] = {"labels": np.array(["B", "T"])}
    adata.uns["mine"] = adata.uns.pop("tosica_attribution") | {"key": "tosica"}
    adata.obsm["X_mine"] = adata.obsm.pop("X_tosica_attribution")
    votes = adata.obs["cell_type"].to_numpy(object, copy=True)
    votes[:9] = "Unknown"
    votes[-9:] = "Heterogeneous"
    adata.obs["vote"] = votes
    tosica.tl.rank_gene_sets(adata, "vote", key="mine")
    assert tosica.get.rank_gene_sets_df(adata)["pval_adj"].isna().all()


@pytest.mark.parametrize("column", ["tosica_confident", "tosica_prediction_broad"])
def test_groups_of_labels_make_the_test_circular(column):
    adata = _cells(0)
    adata.uns["tosica"] = {"labels": np.array(["B", "T"]), "levels": ["broad"]}
    adata.obs[column] = adata.obs["cell_type"].map({"B": "lymphocyte", "T": "T"})
    tosica.tl.rank_gene_sets(adata, column)
    assert tosica.get.rank_gene_sets_df(adata)["pval_adj"].isna().all()
    adata.obs["tosica_prediction_reviewed"] = adata.obs[column]
    tosica.tl.rank_gene_sets(adata, "tosica_prediction_reviewed")
    assert tosica.get.rank_gene_sets_df(adata)["pval_adj"].notna().all()


def test_cell_types_that_lack_a_condition():
    adata = _cells(0)
    has_condition = (adata.obs["cell_type"] == "B") | (adata.obs["condition"] == "ctrl")
    with pytest.warns(
        UserWarning, match=r"Left out 'T' of adata\.obs\['cell_type'\]; in 'T': .*no"
    ):
        table = _stim(
            adata[has_condition].copy(), within="cell_type", sample_key="sample"
        )
    assert list(table["group"].cat.categories) == ["B"]
    adata.obs["cell_type"] = np.where(adata.obs["condition"] == "stim", "B", "T")
    with pytest.raises(
        ValueError, match=r"No category of adata\.obs\['cell_type'\] can be compared"
    ):
        _stim(adata, within="cell_type", sample_key="sample")


# -- correlation --------------------------------------------------------------------------------


@pytest.fixture
def staged():
    adata = annotated_pbmc()
    adata.obs["age"] = np.random.default_rng(0).uniform(0, 10, adata.n_obs)
    adata.obsm["X_tosica_attribution"][:, 40] *= np.exp(
        adata.obs["age"] / 10
    ).to_numpy()
    adata.obsm["X_tosica_attribution"][:, 5] = 0.01
    return adata


def _correlate(adata, **options):
    tosica.tl.correlate_gene_sets(adata, "age", **options)
    return adata.uns["correlate_gene_sets"]


@pytest.mark.parametrize(
    ("groupby", "groups"), [(None, ["all"]), ("phase", ["G1", "G2M", "S"])]
)
def test_is_scipys_spearman_in_each_group(staged, groupby, groups):
    correlations = _correlate(staged, groupby=groupby)
    assert list(correlations["group"].cat.categories) == groups
    for group in groups:
        table = correlations[correlations["group"] == group].set_index("gene_set")
        inside = staged if groupby is None else staged[staged.obs[groupby] == group]
        assert (table["n"] == inside.n_obs).all()
        assert groupby or table.index[0] == "gene set 40"
        assert_allclose(table["pval_adj"], stats.false_discovery_control(table["pval"]))
        for i in (0, 7, 40):
            expected = stats.spearmanr(
                inside.obsm["X_tosica_attribution"][:, i], inside.obs["age"]
            )
            row = table.loc[f"gene set {i:02d}"]
            assert row["correlation"] == pytest.approx(expected.statistic, abs=1e-9)
            assert row["pval"] == pytest.approx(expected.pvalue, rel=1e-6)
        # What is the same everywhere has no correlation.
        assert tuple(table.loc["gene set 05", ["correlation", "pval"]]) == (0, 1)


def test_booleans_are_0_and_1(staged):
    treated = staged.obs["age"] > 5
    staged.obs["age"] = treated.astype(float)
    expected = _correlate(staged)
    for values in (treated, treated.astype("boolean")):
        staged.obs["age"] = values
        pd.testing.assert_frame_equal(_correlate(staged), expected)


def test_samples_as_replicates(staged):
    staged.obs["donor"] = (np.arange(staged.n_obs) % 6).astype(str)
    staged.obs["age"] = staged.obs["donor"].astype(int) * 10.0
    table = _correlate(staged, sample_key="donor")
    assert (table["n"] == 6).all()
    assert (table["pval_adj"] < 0.05).mean() <= 0.05


def test_what_cannot_be_correlated_is_left_out_with_a_warning(staged):
    staged.obs.loc[staged.obs_names[:30], "age"] = np.nan
    with pytest.warns(UserWarning, match="missing or infinite in 30 of 700 cells"):
        assert (_correlate(staged)["n"] == 670).all()
    staged.obs["age"] = np.arange(staged.n_obs)
    staged.obs["group"] = np.where(np.arange(staged.n_obs) < 2, "two", "many")
    with pytest.warns(UserWarning, match="Left out 'two': fewer than 4 cells"):
        _correlate(staged, groupby="group")
    staged.obs["age"] = 1.0
    with pytest.raises(ValueError, match="nothing to correlate in 'all'"):
        _correlate(staged)
