"""Cells that are opened without being read give the same model and the same labels."""

import warnings

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp
from anndata import AnnData
from numpy.testing import assert_allclose, assert_array_equal

import tosica

da = pytest.importorskip("dask.array", reason="needs dask")


def _zarr(adata, folder):
    pytest.importorskip("xarray", reason="anndata reads lazily with xarray")
    with warnings.catch_warnings():
        # anndata and Zarr announce other defaults each time.
        warnings.simplefilter("ignore")
        adata.write_zarr(folder / "cells.zarr")
    return ad.experimental.read_lazy(folder / "cells.zarr")


def _h5ad(adata, folder):
    pytest.importorskip("xarray", reason="anndata reads lazily with xarray")
    adata.write_h5ad(folder / "cells.h5ad")
    return ad.experimental.read_lazy(folder / "cells.h5ad")


def _dask(adata, folder):
    adata.X = da.from_array(adata.X, chunks=(50, adata.n_vars))
    return adata


def _dask_by_genes(adata, folder):
    adata.X = da.from_array(adata.X, chunks=(70, 13))
    return adata


FORMATS = {"csr": sp.csr_matrix, "csc": sp.csc_matrix, "dense": lambda x: x.toarray()}
WAYS = [_zarr, _h5ad, _dask, _dask_by_genes]


def opened(adata, format_, way, folder):
    """The same cells in a dask array."""
    adata = AnnData(
        FORMATS[format_](sp.csr_matrix(adata.X)), obs=adata.obs, var=adata.var
    )
    if way is _dask_by_genes and format_ != "dense":
        pytest.skip("dask cannot join sparse chunks side by side")
    return way(adata, folder)


@pytest.mark.parametrize("way", [_zarr, _h5ad])
def test_novelty_of_an_annotated_file_is_that_in_memory(
    way, toy_query, toy_model, tmp_path
):
    toy_model.annotate(toy_query)
    lazy = way(toy_query.copy(), tmp_path)
    tosica.tl.novelty(toy_query, toy_model)
    tosica.tl.novelty(lazy, toy_model)
    for name in ("tosica_novelty", "tosica_novelty_cluster_pvalue"):
        assert_array_equal(lazy.obs[name], toy_query.obs[name])
    assert hasattr(lazy.X, "__dask_graph__")


def test_groups_of_a_file_that_was_not_read(toy_query, toy_model, tmp_path):
    toy_model.annotate(toy_query)
    lazy = _h5ad(toy_query, tmp_path)
    sentence = (
        r"^adata was opened without reading it: call adata\.to_memory\(\) first\.$"
    )
    with pytest.raises(TypeError, match=sentence):
        tosica.tl.rank_gene_sets(lazy, groupby="tosica_prediction", key="tosica")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("format_", FORMATS)
def test_a_query_gets_the_labels_that_it_has_in_memory(
    format_, way, toy_query, toy_model, tmp_path
):
    lazy = opened(toy_query, format_, way, tmp_path)
    toy_model.annotate(toy_query, probabilities=True)
    toy_model.annotate(lazy, probabilities=True)
    assert list(lazy.obs["tosica_prediction"]) == list(
        toy_query.obs["tosica_prediction"]
    )
    for name in ("X_tosica", "tosica_probabilities"):
        assert_array_equal(np.asarray(lazy.obsm[name]), toy_query.obsm[name])
    # The matrix was read, but not kept.
    assert hasattr(lazy.X, "__dask_graph__")
    backwards = np.arange(lazy.n_obs)[::-3]
    expected = toy_query.obs["tosica_prediction"].iloc[backwards]
    assert_array_equal(toy_model.predict(lazy[backwards]), expected)


SETS = {
    name: [f"G{i}" for i in range(k, k + 8)]
    for name, k in [("a", 0), ("b", 8), ("c", 16)]
}


@pytest.fixture(scope="module")
def model_in_memory(_toy, train):
    reference = _toy.copy()
    tosica.pp.build_mask(reference, SETS)
    return train(reference, setup={"batch_key": "donor"}, max_epochs=2)


@pytest.mark.parametrize("way", [_zarr, _h5ad, _dask])
def test_a_reference_gives_the_model_that_it_gives_in_memory(
    way, toy, toy_query, model_in_memory, train, tmp_path
):
    lazy = opened(toy, "csr", way, tmp_path)
    tosica.pp.build_mask(lazy, SETS)
    model = train(lazy, setup={"batch_key": "donor"}, max_epochs=2)
    assert_allclose(
        model.predict(toy_query, soft=True),
        model_in_memory.predict(toy_query, soft=True),
        atol=1e-5,
    )
    assert hasattr(lazy.X, "__dask_graph__")


def test_the_mask_of_a_stored_reference_is_read(toy, train, tmp_path):
    lazy = _zarr(toy, tmp_path)
    model = train(lazy, max_epochs=1, linear=False)
    assert model.gene_sets[:4] == list(toy.uns["tosica_mask"]["gene_sets"])
    assert model.registry_["field_registries"]["labels"]["state_registry"][
        "colors"
    ] == [
        "#aa0000",
        "#00bb00",
        "#0000cc",
    ]
