"""What tools wrote, read as tables and as an AnnData."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from anndata import AnnData
from get.annotated_pbmc import N_GENE_SETS, annotated_pbmc

import tosica

pytestmark = pytest.mark.filterwarnings("ignore:The '.*' option is deprecated")


def _edited(**edits) -> AnnData:
    """Annotated cells, of which a part was lost or damaged."""
    adata = annotated_pbmc()
    for name, change in edits.items():
        change(getattr(adata, name))
    return adata


# -- attention --------------------------------------------------------------------------------


def test_shares_no_memory_with_the_query():
    adata = annotated_pbmc()
    before = adata.copy()
    result = tosica.get.attention(adata)
    assert list(result.var_names) == list(adata.uns["tosica"]["gene_sets"])
    np.testing.assert_array_equal(result.X, adata.obsm["X_tosica"])
    result.X[:] = -1
    result.obs["bulk_labels"] = "changed"
    result.obsm["X_umap"][:] = -1
    result.uns["bulk_labels_colors"][:] = "changed"
    np.testing.assert_array_equal(adata.obsm["X_tosica"], before.obsm["X_tosica"])
    np.testing.assert_array_equal(adata.obsm["X_umap"], before.obsm["X_umap"])
    assert adata.obs.equals(before.obs)
    assert list(adata.uns["bulk_labels_colors"]) == list(before.uns["bulk_labels_colors"])


@pytest.mark.filterwarnings("ignore:The set_bad function:PendingDeprecationWarning")
def test_has_what_scanpy_needs():
    result = tosica.get.attention(annotated_pbmc())
    assert set(result.obsm) == {"X_pca", "X_umap"}
    assert set(result.uns) == {"bulk_labels_colors", "louvain_colors", "tosica_prediction_colors"}
    axes = sc.pl.umap(result, color=["gene set 03", "tosica_prediction"], show=False)
    assert len(axes) == 2


@pytest.mark.parametrize(
    ("damaged", "error", "said"),
    [
        (annotated_pbmc(key="mine"), KeyError, "pass key='mine'"),
        (_edited(obsm=lambda obsm: obsm.pop("X_tosica")), KeyError, "'X_tosica'.* is gone"),
        (_edited(uns=lambda uns: uns.pop("tosica")), KeyError, "is gone .*uns_merge='same'"),
        (
            _edited(uns=lambda uns: uns["tosica"].pop("gene_sets")),
            KeyError,
            "'gene_sets'.* is gone",
        ),
        (_edited(uns=lambda uns: uns.update(tosica="text")), KeyError, "'gene_sets'.* is gone"),
        (
            _edited(uns=lambda uns: uns["tosica"].update(gene_sets=["a"])),
            ValueError,
            "names 1 gene sets",
        ),
        (
            _edited(obsm=lambda obsm: np.put(obsm["X_tosica"], 181, np.inf)),
            ValueError,
            "NaN or infinity in 1 of 700 cells",
        ),
    ],
)
def test_what_was_lost_or_damaged(damaged, error, said):
    with pytest.raises(error, match=said):
        tosica.get.attention(damaged)


# -- means of groups --------------------------------------------------------------------------


def test_equals_the_mean_of_each_group():
    adata = annotated_pbmc()
    result = tosica.get.mean_attention(adata, "bulk_labels")
    assert list(result.index) == list(adata.obs["bulk_labels"].cat.categories)
    assert result.index.name == "bulk_labels"
    for name, row in result.iterrows():
        cells = (adata.obs["bulk_labels"] == name).to_numpy()
        np.testing.assert_allclose(row, adata.obsm["X_tosica"][cells].mean(axis=0), rtol=1e-5)


def test_scales():
    adata = annotated_pbmc()
    adata.obsm["X_tosica"][:, 7] = 0.01
    values = adata.obsm["X_tosica"].astype(np.float64)
    z = (values - values.mean(axis=0)) / np.where(values.std(axis=0) > 1e-9, values.std(axis=0), 1)
    result = tosica.get.mean_attention(adata, "phase", scale="z_score")
    expected = pd.DataFrame(z).groupby(adata.obs["phase"].to_numpy()).mean()
    np.testing.assert_allclose(result, expected, atol=1e-6)
    assert (result.iloc[:, 7] == 0).all()
    result = tosica.get.mean_attention(adata, "bulk_labels", scale="min_max")
    assert (result.min() == 0).all()
    np.testing.assert_allclose(result.drop(columns="gene set 07").max(), 1)
    assert (result["gene set 07"] == 0).all()


@pytest.mark.parametrize(
    ("values", "groups"),
    [
        (["b", "a"], ["a", "b"]),
        ([True, False], ["False", "True"]),
        ([10, 9], ["9", "10"]),
        (pd.array(["y", "x"], dtype="string"), ["x", "y"]),
        (pd.Categorical(["one", "many"], ["unused", "one", "many"]), ["one", "many"]),
    ],
)
def test_columns_of_groups(values, groups):
    adata = annotated_pbmc()
    column = pd.Series(values).take(np.arange(adata.n_obs) % 2)
    adata.obs["group"] = column.set_axis(adata.obs_names)
    before = adata.obs["group"].dtype
    assert list(tosica.get.mean_attention(adata, "group").index) == groups
    assert adata.obs["group"].dtype == before


@pytest.mark.parametrize(
    ("column", "error", "said"),
    [
        ("cell_type", KeyError, "no column 'cell_type', only 'bulk_labels', "),
        ("other_prediction", KeyError, r"run model\.annotate\(adata, key_added='other'\)"),
        ("percent_mito", TypeError, "holds float32 values, not groups"),
        ("lists", TypeError, "values that cannot name a group"),
        ("alike", ValueError, "written alike"),
        ("missing", ValueError, r"missing \(NaN\) in 30 of 700 cells"),
    ],
)
def test_columns_that_are_no_groups(column, error, said):
    adata = annotated_pbmc()
    adata.obs["lists"] = pd.Series([["a"]] * adata.n_obs, index=adata.obs_names)
    codes = np.arange(adata.n_obs) % 2
    adata.obs["alike"] = pd.Categorical.from_codes(codes, pd.Index([1, "1"], dtype=object))
    adata.obs["missing"] = adata.obs["bulk_labels"].where(np.arange(adata.n_obs) >= 30)
    with pytest.raises(error, match=said):
        tosica.get.mean_attention(adata, column)


def test_no_cells():
    with pytest.raises(ValueError, match="no cells"):
        tosica.get.mean_attention(annotated_pbmc()[:0].copy(), "phase")


# -- results of tests -------------------------------------------------------------------------


def test_rankings_are_those_that_scanpy_reads():
    adata = annotated_pbmc()
    tosica.tl.rank_gene_sets(adata, "bulk_labels", key_added="ranks")
    table = tosica.get.rank_gene_sets_df(adata, key="ranks")
    assert len(table) == adata.obs["bulk_labels"].nunique() * N_GENE_SETS
    scanpys = sc.get.rank_genes_groups_df(adata, None, key="ranks")
    assert list(scanpys["group"]) == list(table["group"])
    assert list(scanpys["names"]) == list(table["gene_set"])
    np.testing.assert_array_equal(scanpys.iloc[:, 2:].to_numpy(), table.iloc[:, 2:-1].to_numpy())
    two = tosica.get.rank_gene_sets_df(adata, ["Dendritic", "CD34+"], key="ranks")
    assert list(dict.fromkeys(two["group"])) == ["Dendritic", "CD34+"]
    assert len(two) == 2 * N_GENE_SETS


@pytest.mark.parametrize("reader", [tosica.get.rank_gene_sets_df, tosica.get.top_genes_df])
def test_something_else_under_the_key(reader):
    with pytest.raises(KeyError, match=r"holds no result of tosica\.tl\.\w+: call it"):
        reader(annotated_pbmc(), key="tosica")


# -- coverage ---------------------------------------------------------------------------------


def masked(**kwargs) -> AnnData:
    adata = AnnData(np.ones((2, 6), dtype=np.float32))
    adata.var_names = list("ABCDEF")
    sets = {"small": list("AB"), "large": list("ABCD"), "apart": ["E"]}
    tosica.pp.build_mask(adata, sets, **{"min_genes": 1, **kwargs})
    return adata


def test_coverage():
    table = tosica.get.mask_coverage(masked())
    assert table.index.to_list() == ["large", "small", "apart"]
    assert table["n_genes"].to_list() == [4, 2, 1]
    assert table["n_new"].to_list() == [4, 0, 1]
    assert table["n_covered"].to_list() == [4, 4, 5]
    assert table["max_jaccard"].to_list() == [0.5, 0.5, 0]
    assert table["nearest"].to_list()[:2] == ["small", "large"]
    assert table["nearest"].isna().to_list() == [False, False, True]
    assert tosica.get.mask_coverage(masked(max_gene_sets=1))["max_jaccard"].to_list() == [0]


def test_masks_that_are_none():
    adata = masked(n_unannotated=1)
    names = adata.uns["tosica_mask"]["gene_sets"]
    adata.uns["tosica_mask"]["gene_sets"] = names[1:]
    with pytest.raises(ValueError, match=r"has 4 gene sets and adata\.uns.* names 3"):
        tosica.get.mask_coverage(adata)
    adata.varm["tosica_mask"] = adata.varm["tosica_mask"][:, 3:]
    adata.uns["tosica_mask"]["gene_sets"] = names[3:]
    with pytest.raises(ValueError, match=r"^The mask in adata\.varm\['tosica_mask'\] has no gene"):
        tosica.get.mask_coverage(adata)
    adata.uns["tosica_mask"] = "text"
    with pytest.raises(KeyError, match="is no mask"):
        tosica.get.mask_coverage(adata)
