"""A collection of annbatch is a reference, and is read by annbatch while a model is trained."""

import sys
import warnings

import numpy as np
import pytest
from _cells import make_toy, untrained
from anndata.io import read_elem, write_elem

import tosica
from tosica import TOSICA
from tosica.model import AnnbatchReader


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    annbatch = pytest.importorskip("annbatch")
    folder = tmp_path_factory.mktemp("annbatch")
    for i in range(2):
        adata = make_toy(90, seed=i)
        adata.obs_names = [f"cell{i}_{j}" for j in range(90)]
        adata.write_h5ad(folder / f"{i}.h5ad")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        annbatch.DatasetCollection(folder / "cells.zarr").add_adatas(
            [folder / "0.h5ad", folder / "1.h5ad"],
            dataset_size=100,
            shuffle_chunk_size=10,
        )
    return folder / "cells.zarr"


@pytest.fixture
def data(collection):
    return AnnbatchReader(collection, chunk_size=10, preload_nchunks=4)


def test_the_matrix_is_that_of_the_files(data, collection):
    import anndata as ad

    files = ad.concat([ad.read_h5ad(collection.parent / f"{i}.h5ad") for i in range(2)])
    assert sorted(data.adata.obs_names) == sorted(files.obs_names)
    x = data.adata.X.compute().toarray()
    np.testing.assert_array_equal(x, files[data.adata.obs_names].X.toarray())
    assert list(data.adata.obs["kind"]) == list(files.obs["kind"][data.adata.obs_names])


def test_every_cell_is_read_once(data):
    x = data.adata.X.compute()
    blocks = list(data(np.random.default_rng(0)))
    assert len(blocks) == data.n_blocks
    for positions, block in blocks:
        np.testing.assert_array_equal(block.toarray(), x[positions].toarray())
    positions = np.concatenate([positions for positions, _ in blocks])
    assert sorted(positions) == list(range(180))
    assert list(positions) != sorted(positions)


def test_a_model_learns(data, toy_query, fast_plan):
    sets = {
        name: [f"G{i}" for i in range(k, k + 8)]
        for name, k in [("a", 0), ("b", 8), ("c", 16)]
    }
    tosica.pp.build_mask(data.adata, sets)
    TOSICA.setup_anndata(data.adata, labels_key="kind")
    model = TOSICA(data.adata, embed_dim=16, n_heads=2)
    model.train(
        max_epochs=8,
        batch_size=16,
        accelerator="cpu",
        datamodule=data,
        plan_kwargs=fast_plan,
    )
    accuracy = (model.predict(toy_query) == toy_query.obs["kind"]).mean()
    assert accuracy > 0.95


# --------------------------------------------------------------------------- wrong input


def test_other_cells_than_those_of_the_model(data, toy):
    with pytest.raises(ValueError, match=r"^datamodule has other cells than the mode"):
        untrained(toy).train(datamodule=data)


def test_no_collection(tmp_path):
    pytest.importorskip("annbatch")
    with pytest.raises(ValueError, match=r"none\.zarr' is no collection of annbatch"):
        AnnbatchReader(tmp_path / "none.zarr")
    assert not (tmp_path / "none.zarr").exists()
    with pytest.raises(TypeError, match=r"^collection must be a path"):
        AnnbatchReader(3)


def copied(collection, folder):
    import shutil

    import zarr

    shutil.copytree(collection, folder / "copy.zarr")
    return zarr.open_group(folder / "copy.zarr", mode="r+", use_consolidated=False), (
        folder / "copy.zarr"
    )


@pytest.mark.parametrize("table", ["var", "obs"])
def test_stores_that_differ(collection, tmp_path, table):
    import zarr

    group, path = copied(collection, tmp_path)
    if table == "obs":
        obs = group["dataset_1/obs"]
        obs.attrs["column-order"] = [
            c for c in obs.attrs["column-order"] if c != "kind"
        ]
    else:
        var = read_elem(group["dataset_1/var"])
        var.index = ["another", *var.index[1:]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write_elem(group["dataset_1"], "var", var)
            zarr.consolidate_metadata(path)
    with pytest.raises(
        ValueError,
        match=r"^dataset_1 and dataset_0 of the collection do not have the same genes and c",
    ):
        AnnbatchReader(path)


def test_a_damaged_store(collection, tmp_path):
    _, path = copied(collection, tmp_path)
    chunks = [p for p in (path / "dataset_0/X/data").rglob("*") if p.is_file()]
    max(chunks, key=lambda p: p.stat().st_size).write_bytes(b"no chunk")
    data = AnnbatchReader(path)
    with pytest.raises(
        OSError, match=r"^the collection cannot be read \(.*: make it anew"
    ):
        list(data(np.random.default_rng(0)))
    with pytest.raises(
        OSError, match=r"^adata\.X cannot be read from its file \(.*copy it again"
    ):
        TOSICA.setup_anndata(data.adata, labels_key="kind")


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="annbatch can be installed here"
)
def test_python_is_too_old():
    with pytest.raises(
        ModuleNotFoundError, match=r"it needs Python 3\.12 or newer, and this is 3"
    ):
        AnnbatchReader("cells.zarr")


def test_setup_annbatch_is_refused():
    with pytest.raises(
        NotImplementedError, match=r"^TOSICA has no setup_annbatch: make da"
    ):
        TOSICA.setup_annbatch("cells.zarr")
