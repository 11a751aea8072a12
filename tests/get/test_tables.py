"""What tools wrote, read as tables and as an AnnData."""

import numpy as np
import pytest
import scanpy as sc
from _cells import add_full_tokens
from anndata import AnnData
from get.annotated_pbmc import N_GENE_SETS, annotated_pbmc
from numpy.testing import assert_array_equal

import tosica

KEY = "tosica_attribution"
pytestmark = pytest.mark.filterwarnings("ignore:The '.*' option is deprecated")


def _edited(**edits):
    """Annotated cells, of which a part was lost or damaged."""
    adata = annotated_pbmc()
    for name, change in edits.items():
        change(getattr(adata, name))
    return adata


# -- contributions --------------------------------------------------------------------------------


def test_shares_no_memory_with_the_query():
    adata = annotated_pbmc()
    original = adata.copy()
    result = tosica.get.contributions(adata)
    assert list(result.var_names) == list(adata.uns[KEY]["gene_sets"])
    assert_array_equal(result.X, adata.obsm[f"X_{KEY}"])
    result.X[:] = -1
    result.obs["bulk_labels"] = "changed"
    result.obsm["X_umap"][:] = -1
    result.uns["bulk_labels_colors"][:] = "changed"
    assert_array_equal(adata.obsm[f"X_{KEY}"], original.obsm[f"X_{KEY}"])
    assert_array_equal(adata.obsm["X_umap"], original.obsm["X_umap"])
    assert adata.obs.equals(original.obs)
    assert list(adata.uns["bulk_labels_colors"]) == list(
        original.uns["bulk_labels_colors"]
    )


@pytest.mark.filterwarnings("ignore:The set_bad function:PendingDeprecationWarning")
def test_has_what_scanpy_needs():
    result = tosica.get.contributions(annotated_pbmc())
    assert set(result.obsm) == {"X_pca", "X_umap", "X_tosica"}
    assert set(result.uns) == {
        "bulk_labels_colors",
        "louvain_colors",
        "tosica_prediction_colors",
    }
    axes = sc.pl.umap(result, color=["gene set 03", "tosica_prediction"], show=False)
    assert len(axes) == 2


@pytest.mark.parametrize(
    ("damaged", "error", "sentence"),
    [
        (annotated_pbmc(key="mine"), KeyError, "pass key='mine"),
        (
            _edited(obsm=lambda obsm: obsm.pop(f"X_{KEY}")),
            KeyError,
            "no .*'X_tosica_attribution'",
        ),
        (_edited(uns=lambda uns: uns.pop(KEY)), KeyError, "unless uns_merge='same'"),
        (
            _edited(uns=lambda uns: uns[KEY].pop("gene_sets")),
            KeyError,
            "no names of its columns .*'gene_sets'",
        ),
        (
            _edited(uns=lambda uns: uns.update({KEY: "text"})),
            KeyError,
            "no names of its columns .*'gene_sets'",
        ),
        (
            _edited(uns=lambda uns: uns[KEY].update(gene_sets=["a"])),
            ValueError,
            "names 1 gene sets",
        ),
        (
            _edited(obsm=lambda obsm: np.put(obsm[f"X_{KEY}"], 181, np.inf)),
            ValueError,
            "and 1 values of NaN or infinity",
        ),
    ],
)
def test_what_was_lost_or_damaged(damaged, error, sentence):
    with pytest.raises(error, match=sentence):
        tosica.get.contributions(damaged)


# -- results of tests -------------------------------------------------------------------------


def test_rankings_are_those_that_scanpy_reads():
    adata = annotated_pbmc()
    tosica.tl.rank_gene_sets(adata, "bulk_labels", key_added="ranks")
    table = tosica.get.rank_gene_sets_df(adata, key="ranks")
    assert len(table) == adata.obs["bulk_labels"].nunique() * N_GENE_SETS
    scanpys = sc.get.rank_genes_groups_df(adata, None, key="ranks")
    assert list(scanpys["group"]) == list(table["group"])
    assert list(scanpys["names"]) == list(table["gene_set"])
    assert_array_equal(scanpys.iloc[:, 2:].to_numpy(), table.iloc[:, 2:-2].to_numpy())
    two = tosica.get.rank_gene_sets_df(adata, ["Dendritic", "CD34+"], key="ranks")
    assert list(dict.fromkeys(two["group"])) == ["Dendritic", "CD34+"]
    assert len(two) == 2 * N_GENE_SETS


def test_something_else_under_the_key():
    with pytest.raises(KeyError, match=r"holds no result of tosica\.tl\.\w+: call it"):
        tosica.get.rank_gene_sets_df(annotated_pbmc(), key="tosica")
    for read_table in (
        tosica.get.genes_df,
        tosica.get.gene_sets_df,
        tosica.get.explain,
    ):
        with pytest.raises(
            KeyError, match=r"holds no contributions: call tosica\.tl\.attribute"
        ):
            read_table(annotated_pbmc(), key="tosica")


# -- coverage ---------------------------------------------------------------------------------


def masked(**kwargs):
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
    assert tosica.get.mask_coverage(masked(max_gene_sets=1))[
        "max_jaccard"
    ].to_list() == [0]


def test_masks_that_are_none():
    adata = masked()
    add_full_tokens(adata, 1)
    names = adata.uns["tosica_mask"]["gene_sets"]
    adata.uns["tosica_mask"]["gene_sets"] = names[1:]
    with pytest.raises(ValueError, match="do not hold the same gene sets, or none"):
        tosica.get.mask_coverage(adata)
    adata.varm["tosica_mask"] = adata.varm["tosica_mask"][:, 3:]
    adata.uns["tosica_mask"]["gene_sets"] = names[3:]
    with pytest.raises(ValueError, match="do not hold the same gene sets, or none"):
        tosica.get.mask_coverage(adata)
    adata.uns["tosica_mask"] = "text"
    with pytest.raises(KeyError, match="or name the key"):
        tosica.get.mask_coverage(adata)
