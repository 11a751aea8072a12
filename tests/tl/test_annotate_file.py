"""A query is annotated from file to file as it is in memory, and work that ended early goes on."""

import gc
import json
import shutil
import warnings

import anndata as ad
import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from mudata import MuData
from numpy.testing import assert_array_equal

import tosica
from tosica import ondisk

SIZE = 25


def write(adata, path):
    with warnings.catch_warnings():
        # anndata and Zarr announce other defaults each time.
        warnings.simplefilter("ignore")
        adata.write_zarr(path) if path.suffix == ".zarr" else adata.write_h5ad(path)
    return path


def read(path):
    return ad.read_zarr(path) if path.suffix == ".zarr" else ad.read_h5ad(path)


@pytest.fixture
def query(toy_query):
    """60 cells with something in every element."""
    toy_query.layers["counts"] = toy_query.X.copy()
    toy_query.obsm["X_pca"] = np.arange(120.0).reshape(60, 2)
    toy_query.obsp["connectivities"] = sp.identity(60, format="csr")
    toy_query.uns["note"] = "as it was"
    toy_query.obs["tosica_novelty_cluster"] = 1.0
    toy_query.uns["tosica_novelty"] = "of the labels before"
    return toy_query


@pytest.mark.parametrize("before", [".h5ad", ".zarr"])
@pytest.mark.parametrize("after", [".h5ad", ".zarr"])
def test_the_output_is_what_annotate_gives(
    before, after, query, toy_model, tmp_path, contents
):
    path = write(query, tmp_path / f"query{before}")
    output = tmp_path / f"annotated{after}"
    # Minibatches are the same ones, so that results are equal bit by bit.
    options = {"probabilities": True, "batch_size": 5}
    tosica.tl.annotate_file(path, toy_model, output, cells_per_part=SIZE, **options)
    toy_model.annotate(query, **options)
    expected = read(write(query, tmp_path / f"expected{after}"))
    assert contents(read(output)) == contents(expected)
    assert not (tmp_path / f"annotated{after}.parts").exists()


def test_another_batch_is_told_by_as_many_cells_as_in_memory(
    query, toy_model, tmp_path
):
    # More cells than a sample of the scale has.
    many = ad.concat([query] * 10, index_unique="-")
    many.X[:, ::2] *= 3
    path = write(many, tmp_path / "query.h5ad")
    tosica.tl.annotate_file(path, toy_model, tmp_path / "annotated.h5ad")
    toy_model.annotate(many)
    signal = read(tmp_path / "annotated.h5ad").uns["tosica"]["batch_signal"]
    assert signal == pytest.approx(many.uns["tosica"]["batch_signal"])


def test_p_values_are_by_all_cells_as_in_memory(query, toy_model, tmp_path):
    many = ad.concat([query] * 10, index_unique="-")
    # Few are moved, and not in the first part.
    many.X[-200:, ::2] *= 3
    path = write(many, tmp_path / "query.h5ad")
    output = tmp_path / "annotated.h5ad"
    tosica.tl.annotate_file(path, toy_model, output, cells_per_part=SIZE)
    toy_model.annotate(many)
    of_file = read(output).obs["tosica_novelty_pvalue"]
    in_memory = many.obs["tosica_novelty_pvalue"]
    # Rounding may change the rank of a cell in a hundred, by one of 90.
    np.testing.assert_allclose(of_file, in_memory, atol=0.012)
    assert np.isclose(of_file, in_memory, atol=1e-6).mean() > 0.99


def test_the_query_is_closed(query, toy_model, tmp_path):
    path = write(query, tmp_path / "query.h5ad")
    gc.disable()
    try:
        tosica.tl.annotate_file(path, toy_model, tmp_path / "annotated.h5ad")
        # HDF5 refuses to write to a file that is open for reading.
        with h5py.File(path, "r+") as file:
            del file["uns/note"]
    finally:
        gc.enable()


@pytest.mark.parametrize("ending", [".h5ad", ".zarr"])
def test_matrices_may_be_left_out(ending, query, toy_model, tmp_path):
    path = write(query, tmp_path / f"query{ending}")
    output = tmp_path / f"annotated{ending}"
    tosica.tl.annotate_file(path, toy_model, output, include_x=False)
    annotated = read(output)
    toy_model.annotate(query)
    assert annotated.X is None
    assert not annotated.layers
    assert not annotated.obsp
    assert list(annotated.obs["tosica_prediction"]) == list(
        query.obs["tosica_prediction"]
    )
    assert_array_equal(annotated.obsm["X_pca"], query.obsm["X_pca"])


@pytest.mark.filterwarnings("ignore:This setting will be removed:DeprecationWarning")
def test_a_mudata_has_its_matrices(query, toy_model, tmp_path):
    MuData({"rna": query}).write(tmp_path / "query.h5mu")
    output = tmp_path / "o.h5mu"
    with pytest.raises(ValueError, match="would be no MuData"):
        tosica.tl.annotate_file(
            tmp_path / "query.h5mu", toy_model, output, include_x=False
        )
    assert not output.exists()


@pytest.mark.parametrize("kind", ["layer", "raw", "dense", "other genes"])
def test_any_matrix_of_the_query(kind, query, toy_model, tmp_path):
    options = {}
    if kind == "layer":
        query.X, options = (
            sp.csr_matrix(query.shape, dtype=np.float32),
            {"layer": "counts"},
        )
    elif kind == "raw":
        query.raw, options = query.copy(), {"use_raw": True}
        query = query[:, :5].copy()
    elif kind == "dense":
        query.X = query.X.toarray()
    else:
        query = query[:, np.random.default_rng(0).permutation(30)[:29]].copy()
    path = write(query, tmp_path / "query.h5ad")
    tosica.tl.annotate_file(
        path, toy_model, tmp_path / "out.h5ad", cells_per_part=SIZE, **options
    )
    toy_model.annotate(query, **options)
    annotated = ad.read_h5ad(tmp_path / "out.h5ad")
    assert list(annotated.obs["tosica_prediction"]) == list(
        query.obs["tosica_prediction"]
    )
    assert_array_equal(annotated.obsm["X_tosica"], query.obsm["X_tosica"])


def test_the_scale_is_that_of_the_whole_query(toy_model, query, tmp_path):
    # The first part is empty, so that it says nothing of the scale by itself.
    query.X = query.X.toarray()
    query.X[:SIZE] = 0
    totals = query.X.sum(1, keepdims=True)
    query.X = np.log1p(query.X / np.where(totals > 0, totals, 1) * 500)
    path = write(query, tmp_path / "query.h5ad")
    message = "^25 cells of the query express none of the model's genes; their labels mean nothing"
    with pytest.warns(UserWarning, match=message):
        tosica.tl.annotate_file(
            path, toy_model, tmp_path / "out.h5ad", cells_per_part=SIZE
        )
    with pytest.warns(UserWarning, match=message):
        toy_model.annotate(query)
    annotated = ad.read_h5ad(tmp_path / "out.h5ad")
    assert_array_equal(annotated.obsm["X_tosica"], query.obsm["X_tosica"])


class _Killed(BaseException):
    pass


def _end_after(n, monkeypatch):
    """End an annotation after some parts; the list counts those that are annotated."""
    done = []
    whole = ondisk.PartAnnotator.annotate

    def annotate(self, part):
        if len(done) == n:
            raise _Killed
        done.append(whole(self, part))
        return part

    monkeypatch.setattr(ondisk.PartAnnotator, "annotate", annotate)
    return done


def test_the_next_call_goes_on(query, toy_model, tmp_path, monkeypatch):
    path, output = write(query, tmp_path / "query.h5ad"), tmp_path / "out.h5ad"
    with monkeypatch.context() as patch:
        _end_after(2, patch)
        with pytest.raises(_Killed):
            tosica.tl.annotate_file(path, toy_model, output, cells_per_part=20)
    assert not output.exists()
    with monkeypatch.context() as patch:
        done = _end_after(9, patch)
        tosica.tl.annotate_file(path, toy_model, output, cells_per_part=20)
    assert done == [2]
    toy_model.annotate(query)
    annotated = ad.read_h5ad(output)
    assert_array_equal(annotated.obsm["X_tosica"], query.obsm["X_tosica"])


# --------------------------------------------------------------------------- wrong input


@pytest.fixture
def interrupted(query, toy_model, tmp_path, monkeypatch):
    """Paths of a query of three parts and of its output, of which two parts are done."""
    path = write(query, tmp_path / "query.h5ad")
    output = tmp_path / "out.h5ad"
    with monkeypatch.context() as patch:
        _end_after(2, patch)
        with pytest.raises(_Killed):
            tosica.tl.annotate_file(path, toy_model, output, cells_per_part=20)
    return path, output


def test_work_of_others_is_refused(interrupted, query, toy, toy_model, train, tmp_path):
    path, output = interrupted
    second_model = train(toy, max_epochs=1)
    query.X[3, 3] += 1
    changed = write(query, tmp_path / "other.h5ad")

    def assert_refused(setting, path, model, **options):
        with pytest.raises(ValueError, match=f"begun with another {setting}"):
            tosica.tl.annotate_file(path, model, output, cells_per_part=20, **options)

    assert_refused("probabilities", path, toy_model, probabilities=True)
    assert_refused("model", path, second_model)
    assert_refused("query", changed, toy_model)
    manifest = tmp_path / "out.h5ad.parts" / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "tosica": "0.0.1"}))
    assert_refused("tosica", path, toy_model)
    # overwrite=True begins anew, and the output is that of the last call.
    tosica.tl.annotate_file(
        path, second_model, output, cells_per_part=20, overwrite=True
    )
    assert ad.read_h5ad(output).uns["tosica"]["model"] == second_model.fingerprint


def test_an_output_that_exists(query, toy_model, tmp_path):
    path, output = write(query, tmp_path / "query.h5ad"), tmp_path / "out.zarr"
    tosica.tl.annotate_file(path, toy_model, output)
    with pytest.raises(
        FileExistsError, match=r"out\.zarr' exists: pass overwrite=True to replace"
    ):
        tosica.tl.annotate_file(path, toy_model, output)
    tosica.tl.annotate_file(path, toy_model, output, overwrite=True, include_x=False)
    assert read(output).X is None
    with pytest.raises(FileNotFoundError, match=r"^the folder .*none' does not exist"):
        tosica.tl.annotate_file(path, toy_model, tmp_path / "none" / "a.h5ad")


def test_a_query_that_cannot_be_read(query, toy_model, tmp_path):
    output = tmp_path / "out.h5ad"
    (tmp_path / "text.h5ad").write_text("no cells")
    (tmp_path / "folder").mkdir()
    h5py.File(tmp_path / "empty.h5ad", "w").close()
    (tmp_path / "table.csv").write_text("cell,label\n")
    for wrong, error, said in (
        ("none", FileNotFoundError, "^There is no file or folder 'none'"),
        (tmp_path / "text.h5ad", ValueError, r"text\.h5ad' is not a whole HDF5 file"),
        (tmp_path / "folder", ValueError, "folder' holds neither cells nor a model"),
        (tmp_path / "empty.h5ad", ValueError, r"empty\.h5ad' is an HDF5 file with no"),
        (tmp_path / "table.csv", ValueError, r"table\.csv' is of the kind table"),
        ("file:///none.zarr", ValueError, r"none\.zarr.* holds no cells that anndata"),
    ):
        with pytest.raises(error, match=said):
            tosica.tl.annotate_file(wrong, toy_model, output)
    path = write(query, tmp_path / "query.h5ad")
    with pytest.raises(KeyError, match=r"has no layer 'log', only 'counts'"):
        tosica.tl.annotate_file(path, toy_model, output, layer="log")
    query.X = query.X.tocsc()
    with pytest.raises(
        ValueError,
        match=r"^The matrix of .* is stored by genes \(CSC\): write it by cells",
    ):
        tosica.tl.annotate_file(write(query, tmp_path / "csc.h5ad"), toy_model, output)


def test_a_damaged_chunk(query, toy_model, tmp_path):
    path = write(query, tmp_path / "query.zarr")
    chunks = [
        file for file in (path / "X" / "data").rglob("*") if file.name in ("0", "1")
    ]
    shutil.copy(
        path / "X" / "indices" / chunks[0].relative_to(path / "X" / "data"), chunks[0]
    )
    chunks[0].write_bytes(b"no chunk")
    with pytest.raises(
        OSError, match=r"query\.zarr'\.X cannot be read from its file .*copy it again"
    ):
        tosica.tl.annotate_file(path, toy_model, tmp_path / "out.zarr")


def test_a_damaged_part(interrupted, toy_model, tmp_path):
    path, output = interrupted
    path_of_part = tmp_path / "out.h5ad.parts" / "part-000001.h5"
    path_of_part.write_bytes(path_of_part.read_bytes()[:900])
    with pytest.raises(OSError, match=r"part-000001\.h5' is damaged: remove"):
        tosica.tl.annotate_file(path, toy_model, output, cells_per_part=20)
    assert not output.exists()
    path_of_part.unlink()
    tosica.tl.annotate_file(path, toy_model, output, cells_per_part=20)


def test_a_full_disk(query, toy_model, tmp_path, monkeypatch):
    path, output = write(query, tmp_path / "query.h5ad"), tmp_path / "out.h5ad"

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tosica.ondisk._store.copy_store", full)
        with pytest.raises(OSError, match="No space left on device"):
            tosica.tl.annotate_file(path, toy_model, output)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "out.h5ad.parts",
        "query.h5ad",
    ]
    tosica.tl.annotate_file(path, toy_model, output)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.h5ad", "query.h5ad"]


def test_what_a_link_leads_to_is_annotated(toy_model, toy_query, tmp_path):
    toy_query.write_h5ad(tmp_path / "query.h5ad")
    real, link = tmp_path / "real.h5ad", tmp_path / "link.h5ad"
    real.write_text("old")
    link.symlink_to(real)
    tosica.tl.annotate_file(tmp_path / "query.h5ad", toy_model, link, overwrite=True)
    assert link.is_symlink()
    assert ad.read_h5ad(real).n_obs == 60
