from __future__ import annotations

import numpy as np
import pytest
import scanpy as sc
from anndata import AnnData
from get.annotated_pbmc import N_GENE_SETS, annotated_pbmc

import tosica


def test_is_the_embedding_with_its_names():
    adata = annotated_pbmc()
    result = tosica.get.attention(adata)
    assert result.shape == (adata.n_obs, N_GENE_SETS)
    assert result.X.dtype == np.float32
    np.testing.assert_array_equal(result.X, adata.obsm["X_tosica"])
    assert list(result.var_names) == list(adata.uns["tosica"]["gene_sets"])
    assert list(result.obs_names) == list(adata.obs_names)


def test_shares_no_memory_with_the_query():
    adata = annotated_pbmc()
    before = adata.copy()
    result = tosica.get.attention(adata)
    result.X[:] = -1
    result.obs["bulk_labels"] = "changed"
    result.obsm["X_umap"][:] = -1
    result.uns["bulk_labels_colors"][:] = "changed"
    np.testing.assert_array_equal(adata.obsm["X_tosica"], before.obsm["X_tosica"])
    np.testing.assert_array_equal(adata.obsm["X_umap"], before.obsm["X_umap"])
    assert adata.obs.equals(before.obs)
    assert list(adata.uns["bulk_labels_colors"]) == list(before.uns["bulk_labels_colors"])


@pytest.mark.filterwarnings("ignore:The set_bad function:PendingDeprecationWarning")
def test_has_what_scanpys_plots_need():
    adata = annotated_pbmc()
    result = tosica.get.attention(adata)
    assert set(result.obsm) == {"X_pca", "X_umap"}
    assert set(result.uns) == {"bulk_labels_colors", "louvain_colors", "tosica_prediction_colors"}
    axes = sc.pl.umap(result, color=["gene set 03", "tosica_prediction"], show=False)
    assert len(axes) == 2
    sc.tl.rank_genes_groups(result, "louvain", groups=["0"], method="wilcoxon")
    assert "rank_genes_groups" not in set(adata.uns) - set(annotated_pbmc().uns)


def test_follows_key_added_and_reads_views_and_float64():
    adata = annotated_pbmc(key="mine")
    view = adata[5:25]
    adata.obsm["X_mine"] = adata.obsm["X_mine"].astype(np.float64)
    result = tosica.get.attention(view, key="mine")
    assert view.is_view
    assert not result.is_view
    np.testing.assert_allclose(result.X, adata.obsm["X_mine"][5:25], rtol=1e-6)


@pytest.mark.parametrize("fmt", ["h5ad", "zarr"])
@pytest.mark.filterwarnings("ignore:Writing zarr v2:UserWarning")
@pytest.mark.filterwarnings("ignore:Consolidated metadata:UserWarning")
@pytest.mark.filterwarnings("ignore:.*specification.*:FutureWarning")
def test_reads_what_a_file_gives_back(tmp_path, fmt):
    import anndata

    adata = annotated_pbmc()
    path = tmp_path / f"query.{fmt}"
    getattr(adata, f"write_{fmt}")(path)
    back = getattr(anndata, f"read_{fmt}")(path)
    expected, result = tosica.get.attention(adata), tosica.get.attention(back)
    assert list(result.var_names) == list(expected.var_names)
    np.testing.assert_array_equal(result.X, expected.X)


def test_not_annotated():
    adata = sc.datasets.pbmc68k_reduced()
    with pytest.raises(
        KeyError, match=r"Neither adata\.obsm\['X_tosica'\] nor .* run model\.annot"
    ):
        tosica.get.attention(adata)


def test_annotated_under_another_key_is_pointed_to():
    with pytest.raises(KeyError, match="pass key='mine'"):
        tosica.get.attention(annotated_pbmc(key="mine"))


def test_embedding_gone():
    adata = annotated_pbmc()
    del adata.obsm["X_tosica"]
    with pytest.raises(KeyError, match=r"adata\.obsm\['X_tosica'\] is gone"):
        tosica.get.attention(adata)


def test_names_gone():
    adata = annotated_pbmc()
    del adata.uns["tosica"]
    with pytest.raises(KeyError, match=r"adata\.uns\['tosica'\].* is gone .*uns_merge='same'"):
        tosica.get.attention(adata)


@pytest.mark.parametrize("record", [{"labels": ["B"]}, "text"])
def test_names_half_gone(record):
    adata = annotated_pbmc()
    adata.uns["tosica"] = record
    with pytest.raises(KeyError, match=r"adata\.uns\['tosica'\] holds no 'gene_sets'"):
        tosica.get.attention(adata)


def test_names_of_another_model():
    adata = annotated_pbmc()
    adata.uns["tosica"]["gene_sets"] = adata.uns["tosica"]["gene_sets"][:-1]
    with pytest.raises(ValueError, match=r"shape \(700, 60\) but .* names 59 gene sets"):
        tosica.get.attention(adata)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_embedding(bad):
    adata = annotated_pbmc()
    adata.obsm["X_tosica"][3, 1] = bad
    with pytest.raises(ValueError, match="NaN or infinity in 1 of 700 cells"):
        tosica.get.attention(adata)


def test_key_is_no_string():
    with pytest.raises(TypeError, match="key must be a string"):
        tosica.get.attention(AnnData(np.ones((2, 2))), key=1)
