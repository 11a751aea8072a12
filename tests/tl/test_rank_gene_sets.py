from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from anndata import ImplicitModificationWarning
from get.annotated_pbmc import N_GENE_SETS, annotated_pbmc, planted

import tosica

FIELDS = ["names", "scores", "pvals", "pvals_adj", "logfoldchanges"]


@pytest.mark.parametrize("method", ["wilcoxon", "t-test", "t-test_overestim_var"])
def test_planted_gene_set_is_first_in_every_group(method):
    adata = annotated_pbmc()
    tosica.tl.rank_gene_sets(adata, "bulk_labels", method=method)
    result = adata.uns["rank_gene_sets"]
    groups = list(adata.obs["bulk_labels"].cat.categories)
    assert list(result["names"].dtype.names) == groups
    for i, group in enumerate(groups):
        assert result["names"][group][0] == planted(i)
        assert result["pvals_adj"][group][0] < 0.05
        assert result["logfoldchanges"][group][0] > 1


def test_statistics_are_scanpys_on_the_attention_anndata():
    adata = annotated_pbmc()
    tosica.tl.rank_gene_sets(adata, "louvain")
    attention = tosica.get.attention(adata)
    sc.tl.rank_genes_groups(attention, "louvain", method="wilcoxon")
    result, expected = adata.uns["rank_gene_sets"], attention.uns["rank_genes_groups"]
    for field in ["scores", "pvals", "pvals_adj"]:
        for group in expected["names"].dtype.names:
            np.testing.assert_allclose(result[field][group], expected[field][group])
            assert result[field].dtype == expected[field].dtype
    for group in expected["names"].dtype.names:
        assert list(result["names"][group]) == list(expected["names"][group])


def test_logfoldchange_is_the_log2_ratio_of_mean_attentions():
    adata = annotated_pbmc()
    means = tosica.get.mean_attention(adata, "phase")
    in_group = (adata.obs["phase"] == "S").to_numpy()
    rest = adata.obsm["X_tosica"][~in_group].mean(axis=0, dtype=float)
    expected = {
        "rest": dict(zip(means.columns, np.log2(means.loc["S"] / rest), strict=True)),
        "G1": dict(np.log2(means.loc["S"] / means.loc["G1"])),
    }
    for reference, ratios in expected.items():
        tosica.tl.rank_gene_sets(adata, "phase", groups=["S"], reference=reference)
        result = adata.uns["rank_gene_sets"]
        got = dict(zip(result["names"]["S"], result["logfoldchanges"]["S"], strict=True))
        assert got == pytest.approx(ratios, abs=1e-4)


def test_attention_that_is_zero_everywhere_is_no_change():
    adata = annotated_pbmc()
    adata.obsm["X_tosica"][:, 5] = 0
    tosica.tl.rank_gene_sets(adata, "phase")
    table = tosica.get.rank_gene_sets_df(adata)
    rows = table[table["gene_set"] == planted(5)]
    assert (rows["logfoldchange"] == 0).all()
    assert (rows["score"] == 0).all()
    assert (rows["pval"] == 1).all()


def test_nothing_but_the_result_changes():
    adata = annotated_pbmc()
    adata.obs["text"] = np.where(np.arange(adata.n_obs) % 2, "a", "b").astype(object)
    before = adata.copy()
    assert tosica.tl.rank_gene_sets(adata, "text", key_added="mine") is None
    assert set(adata.uns) - set(before.uns) == {"mine"}
    pd.testing.assert_frame_equal(adata.obs, before.obs)
    np.testing.assert_array_equal(adata.obsm["X_tosica"], before.obsm["X_tosica"])
    assert set(adata.obsm) == set(before.obsm)


def test_copy_leaves_the_data_alone():
    adata = annotated_pbmc()
    result = tosica.tl.rank_gene_sets(adata, "phase", copy=True)
    assert "rank_gene_sets" not in adata.uns
    assert list(result.uns["rank_gene_sets"]["names"].dtype.names) == ["G1", "G2M", "S"]


def test_a_view_becomes_actual_with_anndatas_warning():
    adata = annotated_pbmc()
    view = adata[:200]
    with pytest.warns(ImplicitModificationWarning):
        tosica.tl.rank_gene_sets(view, "phase")
    assert "rank_gene_sets" in view.uns
    assert "rank_gene_sets" not in adata.uns


def test_groups_reference_and_number():
    adata = annotated_pbmc()
    tosica.tl.rank_gene_sets(
        adata,
        "bulk_labels",
        groups=["Dendritic", "CD34+", "Dendritic", "CD19+ B"],
        reference="CD19+ B",
        n_gene_sets=3,
    )
    result = adata.uns["rank_gene_sets"]
    for field in FIELDS:
        assert result[field].dtype.names == ("Dendritic", "CD34+")
        assert len(result[field]) == 3
    assert result["params"]["reference"] == "CD19+ B"
    assert result["params"]["groupby"] == "bulk_labels"
    tosica.tl.rank_gene_sets(adata, "bulk_labels", n_gene_sets=10_000)
    assert len(adata.uns["rank_gene_sets"]["names"]) == N_GENE_SETS


def test_unused_categories_are_no_groups():
    adata = annotated_pbmc()
    adata.obs["bulk_labels"] = adata.obs["bulk_labels"].cat.add_categories("never seen")
    tosica.tl.rank_gene_sets(adata, "bulk_labels")
    assert "never seen" not in adata.uns["rank_gene_sets"]["names"].dtype.names
    assert "never seen" in adata.obs["bulk_labels"].cat.categories


def test_whole_numbers_name_groups():
    adata = annotated_pbmc()
    adata.obs["cluster"] = np.arange(adata.n_obs) % 3
    tosica.tl.rank_gene_sets(adata, "cluster", groups=[2, 0])
    assert adata.uns["rank_gene_sets"]["names"].dtype.names == ("2", "0")


def test_gene_sets_of_the_same_name_keep_their_own_numbers():
    adata = annotated_pbmc()
    adata.uns["tosica"]["gene_sets"][1] = planted(0)
    tosica.tl.rank_gene_sets(adata, "bulk_labels")
    result = adata.uns["rank_gene_sets"]
    for group in list(adata.obs["bulk_labels"].cat.categories)[:2]:
        assert result["names"][group][0] == planted(0)
        assert result["logfoldchanges"][group][0] > 1


def test_many_groups_without_a_warning():
    adata = annotated_pbmc(n_labels=60, n_gene_sets=80)
    tosica.tl.rank_gene_sets(adata, "bulk_labels")
    result = adata.uns["rank_gene_sets"]
    assert all(result["names"][f"cell type {i}"][0] == planted(i) for i in range(60))


def test_scanpys_plots_read_it():
    adata = annotated_pbmc()
    tosica.tl.rank_gene_sets(adata, "bulk_labels")
    axes = sc.pl.rank_genes_groups(adata, key="rank_gene_sets", n_genes=3, show=False)
    assert len(axes) == 10


@pytest.mark.parametrize("fmt", ["h5ad", "zarr"])
@pytest.mark.filterwarnings("ignore:Writing zarr v2:UserWarning")
@pytest.mark.filterwarnings("ignore:Consolidated metadata:UserWarning")
@pytest.mark.filterwarnings("ignore:.*specification.*:FutureWarning")
def test_survives_a_file(tmp_path, fmt):
    import anndata

    adata = annotated_pbmc()
    tosica.tl.rank_gene_sets(adata, "bulk_labels")
    path = tmp_path / f"query.{fmt}"
    getattr(adata, f"write_{fmt}")(path)
    back = getattr(anndata, f"read_{fmt}")(path)
    pd.testing.assert_frame_equal(
        tosica.get.rank_gene_sets_df(back), tosica.get.rank_gene_sets_df(adata)
    )
    assert dict(back.uns["rank_gene_sets"]["params"]) == adata.uns["rank_gene_sets"]["params"]


def test_says_what_was_added(caplog):
    with caplog.at_level(logging.INFO, logger="tosica"):
        tosica.tl.rank_gene_sets(annotated_pbmc(), "phase", key_added="mine")
    assert "Ranked 60 gene sets in 3 groups of 'phase': added adata.uns['mine']." in caplog.text


def _refused(error, match, adata=None, groupby="phase", **kwargs):
    """The call raises, and leaves nothing behind."""
    adata = annotated_pbmc() if adata is None else adata
    keys = set(adata.uns)
    with pytest.raises(error, match=match):
        tosica.tl.rank_gene_sets(adata, groupby, **kwargs)
    assert set(adata.uns) == keys


def test_not_annotated():
    _refused(KeyError, r"run model\.annotate", sc.datasets.pbmc68k_reduced())


def test_missing_column():
    _refused(KeyError, "no column 'cell_type'", groupby="cell_type")


def test_numbers_are_no_groups():
    _refused(TypeError, "not groups", groupby="percent_mito")


def test_cells_without_a_group():
    adata = annotated_pbmc()
    adata.obs["group"] = adata.obs["phase"].where(np.arange(adata.n_obs) >= 30)
    _refused(ValueError, "missing \\(NaN\\) in 30 of 700", adata, "group")


def _with_lonely() -> object:
    adata = annotated_pbmc()
    names = np.array(["a", "b"], dtype=object)[np.arange(adata.n_obs) % 2]
    names[:2] = ["lonely", "lost"]
    adata.obs["group"] = pd.Categorical(names)
    return adata


def test_groups_with_one_cell_are_left_out_of_all_groups():
    adata = _with_lonely()
    with pytest.warns(UserWarning, match=r"a single cell in 'lonely', 'lost', and .*: left out\.$"):
        tosica.tl.rank_gene_sets(adata, "group")
    assert adata.uns["rank_gene_sets"]["names"].dtype.names == ("a", "b")


def test_named_groups_with_one_cell_are_refused():
    kwargs = {"groups": ["a", "lost"]}
    _refused(ValueError, "a single cell in 'lost', and", _with_lonely(), "group", **kwargs)


def test_nothing_but_groups_with_one_cell():
    adata = annotated_pbmc()[:2].copy()
    adata.obs["group"] = ["a", "b"]
    _refused(ValueError, "a single cell in 'a', 'b', and", adata, "group")


def test_a_reference_with_one_cell_is_named():
    kwargs = {"groups": ["a"], "reference": "lost"}
    _refused(ValueError, "a single cell in 'lost'", _with_lonely(), "group", **kwargs)


def test_groups_with_one_cell_can_be_left_out():
    adata = _with_lonely()
    tosica.tl.rank_gene_sets(adata, "group", groups=["a", "b"])
    assert adata.uns["rank_gene_sets"]["names"].dtype.names == ("a", "b")


def test_a_rest_of_one_cell():
    adata = annotated_pbmc()
    adata.obs["group"] = np.where(np.arange(adata.n_obs) == 0, "b", "a")
    _refused(ValueError, "a single cell to compare 'a' with", adata, "group", groups=["a"])


def test_one_group_in_all():
    adata = annotated_pbmc()
    adata.obs["group"] = "a"
    _refused(ValueError, "nothing to compare them with", adata, "group")


def test_unknown_group():
    _refused(ValueError, "no cell in group 'M': its groups are 'G1', ", groups=["S", "M"])


def test_unknown_reference():
    _refused(ValueError, "no cell in group 'M'", reference="M")


def test_a_single_name_for_groups():
    _refused(TypeError, r"write groups=\['S'\]", groups="S")


def test_empty_groups():
    _refused(ValueError, "groups is empty", groups=[])


def test_nothing_but_the_reference():
    _refused(ValueError, "nothing but the reference 'S'", groups=["S"], reference="S")


@pytest.mark.parametrize("method", ["logreg", "anova"])
def test_unknown_method(method):
    _refused(ValueError, f"method must be one of 'wilcoxon', .* not '{method}'", method=method)


def test_no_gene_sets_to_keep():
    _refused(ValueError, "n_gene_sets must be at least 1", n_gene_sets=0)
