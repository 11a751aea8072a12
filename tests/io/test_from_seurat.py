"""Converted objects in memory are repaired in a copy, as far as possible."""

import re
import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc

import tosica
from tosica import TOSICA

NAMES = (
    "kang_seuratdisk.h5ad",
    "kang_seuratdisk_minimal.h5ad",
    "kang_sceasy.h5ad",
    "kang_sceasy_counts.h5ad",
)


def as_anndata_reads_it(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ad.read_h5ad(path)


@pytest.mark.data
@pytest.mark.parametrize("name", NAMES)
def test_as_good_as_reading_the_file(shared, tmp_path, name, caplog, contents):
    adata = as_anndata_reads_it(shared / "seurat" / name)
    original_contents = contents(adata)
    repaired = tosica.io.from_seurat(
        adata, na_strings=["note"] if "note" in adata.obs else ()
    )
    assert contents(adata) == original_contents
    expected = tosica.io.read_seurat(shared / "seurat" / name)
    assert repaired.var_names.tolist() == expected.var_names.tolist()
    assert (repaired.layers["counts"] - expected.layers["counts"]).nnz == 0
    assert (repaired.X - expected.X).nnz == 0
    assert repaired.obs.columns.tolist() == expected.obs.columns.tolist()
    assert set(repaired.obsm) == set(expected.obsm)
    if "sceasy" in name:
        assert (
            repaired.obs["donor_int_na"].isna().sum()
            == (adata.obs["donor_int_na"] == -(2**31)).sum()
            > 0
        )
        assert repaired.obs["note"].isna().sum() == (adata.obs["note"] == "NA").sum()
        assert "Megakaryocytes" not in repaired.obs["cluster_id"].cat.categories
    else:
        assert "'cluster_id'" in caplog.text
        assert (
            "may be codes of factors whose levels anndata dropped; tosica.io.read_seurat restores"
            in caplog.text
        )
    repaired.write_h5ad(tmp_path / "x.h5ad")
    assert (
        ad.read_h5ad(tmp_path / "x.h5ad").var_names.tolist()
        == repaired.var_names.tolist()
    )


def test_no_unscaled_matrix():
    adata = sc.datasets.pbmc68k_reduced()
    adata.raw = None
    with pytest.raises(ValueError, match="neither counts nor log-normalized values"):
        tosica.io.from_seurat(adata)


# ------------------------------------------------------------------------------- recognized


@pytest.fixture
def converted():
    """What a conversion leaves: scaled X, codes for labels, names of raw lost."""
    adata = sc.datasets.pbmc68k_reduced()
    codes = adata.obs["bulk_labels"].cat.codes.astype(np.int32)
    obs = pd.DataFrame(
        {
            "nCount_RNA": 1e3,
            "nFeature_RNA": 300,
            "cluster_id": codes,
            "name": adata.obs["bulk_labels"],
        }
    )
    return ad.AnnData(adata.X.copy(), obs=obs, var=adata.var[[]])


def test_scaled_expression_of_a_converted_object_is_recognized(converted):
    tosica.pp.build_mask(converted)
    advice = "read its file with tosica.io.read_seurat, or repair it with tosica.io.from_seurat"
    with pytest.raises(ValueError, match=re.escape(advice)):
        TOSICA.setup_anndata(converted, labels_key="name")


def test_scaled_expression_of_other_objects_is_not(converted):
    tosica.pp.build_mask(converted)
    del converted.obs["nFeature_RNA"]
    with pytest.raises(ValueError, match="negative values") as caught:
        TOSICA.setup_anndata(converted, labels_key="name")
    assert "seurat" not in str(caught.value)


def test_codes_as_labels_are_recognized(converted):
    converted.X = sc.datasets.pbmc68k_reduced().raw[:, converted.var_names].X
    tosica.pp.build_mask(converted)
    sentence = "adata.obs['cluster_id'] holds numbers from 0 on, which may be codes of a factor"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        TOSICA.setup_anndata(converted, labels_key="cluster_id")
    converted.obs["cluster_id"] = converted.obs["cluster_id"].astype(str)
    TOSICA.setup_anndata(converted, labels_key="cluster_id")


@pytest.mark.slow
def test_a_query_is_recognized(converted, pbmc_model):
    with pytest.raises(
        ValueError, match=re.escape("repair it with tosica.io.from_seurat")
    ):
        pbmc_model.annotate(converted)


def test_the_result_shares_nothing_with_the_object():
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    adata.obsm["X_umap"] = np.zeros((adata.n_obs, 2))
    before = adata.copy()
    repaired = tosica.io.from_seurat(adata)
    repaired.X.data[:] = 0
    repaired.obsm["X_umap"] += 1
    assert (adata.X != before.X).nnz == 0
    assert not adata.obsm["X_umap"].any()
