"""Containers: a MuData, a SpatialData store, a zipped store, and what is left out of a raw matrix."""

import json
import shutil
import sys
import warnings

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from _cells import PROTEINS
from mudata import MuData, read_h5mu, read_zarr

LABELS = "tosica_prediction"


@pytest.fixture
def labels(toy_query, toy_model):
    """The labels that Python's ``annotate`` gives."""
    return list(toy_model.annotate(toy_query, copy=True).obs[LABELS])


@pytest.fixture
def mdata(toy_query):
    """The query as RNA, beside antibodies of which two have the name of a gene."""
    counts = np.random.default_rng(0).poisson(3, (60, len(PROTEINS))).astype("float32")
    protein = ad.AnnData(counts, obs=toy_query.obs[[]])
    protein.var_names = PROTEINS
    return MuData({"protein": protein, "rna": toy_query})


@pytest.fixture(scope="module")
def joint_model(cite_model, tmp_path_factory):
    """The folder of a model of genes and antibodies."""
    folder = tmp_path_factory.mktemp("joint") / "model"
    cite_model.save(folder)
    return folder


def write_spatial(adata, path, *, zarr_format=3, tables=("table",), folder="tables"):
    """A store as spatialdata lays it out, without pixels."""
    root = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    root.attrs["spatialdata_attrs"] = {"version": "0.2"}
    for name in ("images", "labels", "points", "shapes", folder):
        root.create_group(name)
    root["images"].create_group("image").attrs["pixels"] = "kept"
    adata.obs["region"] = pd.Categorical(["cells"] * adata.n_obs)
    adata.obs["instance_id"] = np.arange(adata.n_obs)
    adata.uns["spatialdata_attrs"] = {
        "region": "cells",
        "region_key": "region",
        "instance_key": "instance_id",
    }
    with (
        warnings.catch_warnings(action="ignore"),
        ad.settings.override(zarr_write_format=zarr_format),
    ):
        for name in tables:
            cells = adata if name != "bins" else adata[:, :3].copy()
            cells.write_zarr(path / folder / name)
        zarr.consolidate_metadata(path)
    return path


pytestmark = pytest.mark.filterwarnings(
    "ignore:Consolidated",
    "ignore:Writing zarr v2",
    # mudata asks for a setting that anndata 0.13 is about to remove.
    "ignore:This setting will be removed:DeprecationWarning",
)


# --------------------------------------------------------------------------- MuData


@pytest.mark.parametrize("ending", [".h5mu", ".zarr"])
def test_the_modality_with_the_genes_of_the_model(
    ending, annotate, mdata, labels, tmp_path
):
    query, output = tmp_path / f"query{ending}", tmp_path / f"annotated{ending}"
    mdata.write(query) if ending == ".h5mu" else mdata.write_zarr(query)
    arguments = [query, "--no-report"]
    assert annotate(*arguments, "-o", output, "--obs-out", tmp_path / "l.csv").code == 0
    read_mudata = read_h5mu if ending == ".h5mu" else read_zarr
    annotated = read_mudata(output)
    assert list(annotated["rna"].obs[LABELS]) == labels
    assert (annotated["rna"].X != mdata["rna"].X).nnz == 0
    assert LABELS not in annotated["protein"].obs
    assert list(annotated.mod) == list(mdata.mod)
    assert list(pd.read_csv(tmp_path / "l.csv", index_col=0)[LABELS]) == labels
    assert annotate(*arguments, "-o", tmp_path / "rna.h5ad").code == 0
    assert list(ad.read_h5ad(tmp_path / "rna.h5ad").obs[LABELS]) == labels


@pytest.mark.parametrize("layout", ["csc", "adapted", "in memory", "prefixed"])
def test_modalities_in_memory_and_in_parts(layout, annotate, mdata, labels, tmp_path):
    query, output = tmp_path / "query.h5mu", tmp_path / "annotated.h5mu"
    options = ["--no-report"]
    if layout == "csc":
        mdata["rna"].X = sp.csc_matrix(mdata["rna"].X)
    if layout == "adapted":
        options.append("--adapt")
    if layout == "in memory":
        mdata["rna"].obs["cluster"] = pd.Categorical(mdata["rna"].obs["kind"])
        options += ["--majority-voting", "--over-clustering", "cluster"]
    if layout == "prefixed":
        options += ["--modality", "rna", "--cells-per-part", "20"]
    mdata.write(query)
    arguments = [query, "-o", output, *options]
    assert annotate(*arguments).code == 0
    annotated = read_h5mu(output)
    assert list(annotated["rna"].obs[LABELS]) == labels
    assert annotated["protein"].shape == mdata["protein"].shape


def test_a_mudata_with_one_modality(
    annotate, run, mdata, cite_query, joint_model, labels, tmp_path
):
    table = tmp_path / "l.csv"
    MuData({"rna": mdata["rna"]}).write(tmp_path / "query.h5mu")
    result = annotate(tmp_path / "query.h5mu", "--obs-out", table, "--adapt")
    assert "annotated 60 cells of the modality 'rna'" in result.err
    assert list(pd.read_csv(table, index_col=0)[LABELS]) == labels
    MuData({"protein": cite_query["protein"]}).write(tmp_path / "protein.h5mu")
    arguments = ["annotate", tmp_path / "protein.h5mu", "--model", joint_model]
    result = run(*arguments, "--obs-out", table, "--overwrite")
    assert "annotated 60 cells by 'protein'" in result.err


def test_a_modality_has_to_be_named_where_nothing_tells(annotate, run, mdata, tmp_path):
    query = tmp_path / "query.h5mu"
    mdata.write(query)
    described = run("info", query).out
    assert all(words in described for words in ("protein:", "rna:", "n_genes: 30"))
    result = run("evaluate", query, "--labels-key", "kind")
    assert "is a MuData of 'protein', 'rna', and it cannot be told" in result.err
    assert "choose one, as by --modality 'protein'" in result.err
    assert "n_genes: 9" in run("info", query, "--modality", "protein").out
    arguments = [query, "--obs-out", "l.csv"]
    assert "no modality 'rn'" in annotate(*arguments, "--modality", "rn").err
    assert "leave --assay out" in run("info", query, "--assay", "RNA").err
    output = tmp_path / "o.h5mu"
    result = annotate(query, "-o", output)
    assert result.code == 0
    page = tmp_path / "page.html"
    assert run("report", output, "-o", page).code == 0
    evaluated = run("evaluate", output, "--labels-key", "kind")
    assert evaluated.code == 0


@pytest.mark.parametrize("ending", [".h5mu", ".zarr"])
def test_a_model_of_several_modalities_labels_by_all_of_them(
    ending, run, cite_query, cite_model, joint_model, tmp_path
):
    query, output = tmp_path / f"query{ending}", tmp_path / f"o{ending}"
    cite_query.write(query) if ending == ".h5mu" else cite_query.write_zarr(query)
    cite_model.annotate(cite_query)
    arguments = ["annotate", query, "--model", joint_model, "--no-report"]
    result = run(*arguments, "-o", output)
    assert "annotated 60 cells by 'rna' and 'protein', and wrote" in result.err
    annotated = read_h5mu(output) if ending == ".h5mu" else read_zarr(output)
    for name in (LABELS, "tosica_probability"):
        assert list(annotated.obs[name]) == list(cite_query.obs[name])
    table = json.loads(run("evaluate", output, "--labels-key", "kind", "--json").out)
    assert table["n_cells"] == 60
    described = json.loads(run("info", output, "--json").out)
    assert described["annotations"]["tosica"]["model"] == cite_model.fingerprint


def test_a_page_about_labels_by_several_modalities(
    run, cite_query, joint_model, tmp_path
):
    cite_query[:5].copy().write(tmp_path / "query.h5mu")
    output = tmp_path / "o.h5mu"
    assert (
        run(
            "annotate", tmp_path / "query.h5mu", "--model", joint_model, "-o", output
        ).code
        == 0
    )
    page = (tmp_path / "o.html").read_text(encoding="utf8")
    assert "protein:" in page
    arguments = ["report", output, "--model", joint_model, "-o", tmp_path / "p.html"]
    assert run(*arguments).code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["-o", "o.h5ad"],
            "o.h5ad would have one modality, and the model labels by several: end it in .h5mu",
        ),
        (["--obs-out", "o.csv", "--layer", "counts"], "--layer is about one modality"),
        (["--obs-out", "o.csv", "--min-genes", 2], "--min-genes is about one modality"),
    ],
)
def test_what_is_about_one_modality(
    options, words, run, cite_query, joint_model, tmp_path
):
    cite_query.write(tmp_path / "query.h5mu")
    result = run("annotate", tmp_path / "query.h5mu", "--model", joint_model, *options)
    assert (result.code, words in result.err) == (2, True)


def test_one_modality_that_is_named_labels_alone(
    run, cite_query, joint_model, tmp_path
):
    cite_query.write(tmp_path / "query.h5mu")
    arguments = ["annotate", tmp_path / "query.h5mu", "--model", joint_model]
    table = tmp_path / "o.csv"
    result = run(*arguments, "--modality", "rna", "--obs-out", table)
    assert f"annotated 60 cells of the modality 'rna', and wrote {table}" in result.err


# --------------------------------------------------------------------------- SpatialData


@pytest.mark.parametrize(
    ("zarr_format", "folder", "tables"),
    [
        (3, "tables", ("table",)),
        (2, "table", ("table",)),
        (3, "tables", ("bins", "cells")),
    ],
)
def test_labels_go_back_into_a_copy_of_the_store(
    zarr_format, folder, tables, annotate, toy_query, labels, tmp_path
):
    query = write_spatial(
        toy_query,
        tmp_path / "s.zarr",
        zarr_format=zarr_format,
        tables=tables,
        folder=folder,
    )
    output = tmp_path / "annotated.zarr"
    assert annotate(query, "-o", output, "--probabilities").code == 0
    root = zarr.open_group(output, mode="r", use_consolidated=True)
    table = ad.read_zarr(root[f"{folder}/{tables[-1]}"])
    assert list(table.obs[LABELS]) == labels
    assert table.uns["spatialdata_attrs"]["instance_key"] == "instance_id"
    assert root["images/image"].attrs["pixels"] == "kept"
    assert (tmp_path / "annotated.html").exists()
    if len(tables) == 2:
        refused = annotate(query, "--table", "bins", "--obs-out", tmp_path / "l.csv")
        assert "only 3 of the model's 30 genes" in refused.err
    assert LABELS not in ad.read_zarr(query / folder / tables[-1]).obs


def test_a_store_is_annotated_in_its_place(annotate, toy_query, labels, tmp_path):
    query = write_spatial(toy_query, tmp_path / "s.zarr")
    image = (query / "images" / "image" / "zarr.json").stat().st_ino
    arguments = [query, "-o", query, "--no-report"]
    assert "pass --overwrite" in annotate(*arguments).err
    assert annotate(*arguments, "--overwrite").code == 0
    root = zarr.open_group(query, mode="r", use_consolidated=True)
    assert list(ad.read_zarr(root["tables/table"]).obs[LABELS]) == labels
    assert (query / "images" / "image" / "zarr.json").stat().st_ino == image
    assert [path.name for path in (query / "tables").iterdir() if path.is_dir()] == [
        "table"
    ]


def test_a_store_without_a_table(run, toy_query, tmp_path):
    path = write_spatial(toy_query, tmp_path / "s.zarr", tables=())
    words = "has no table, so there are no cells in it"
    assert words in run("info", path).err
    shutil.rmtree(path / "tables")
    assert words in run("info", path).err


@pytest.mark.parametrize("kind", ["MuData", "SpatialData"])
def test_one_of_two_with_the_same_genes_has_to_be_named(
    kind, annotate, toy_query, labels, tmp_path
):
    """Half of the cells would be left out otherwise, such as bins of another size."""
    option, names = "--table", ("large", "small")
    query = tmp_path / "query.zarr"
    if kind == "MuData":
        option = "--modality"
        cells = {"large": toy_query[:40].copy(), "small": toy_query[40:].copy()}
        MuData(cells, axis=1).write_zarr(query)
    else:
        write_spatial(toy_query, query, tables=names)
    table = tmp_path / "l.csv"
    result = annotate(query, "--obs-out", table)
    assert result.code == 1
    assert f"choose one, as by {option} 'large'" in result.err
    assert annotate(query, "--obs-out", table, option, "small").code == 0
    n_cells = 20 if kind == "MuData" else 60
    assert list(pd.read_csv(table)[LABELS]) == labels[-n_cells:]


# --------------------------------------------------------------------------- zipped


@pytest.mark.parametrize("is_inside_a_folder", [False, True])
def test_a_zipped_store(
    annotate, is_inside_a_folder, run, toy_query, labels, tmp_path, write
):
    write(toy_query, tmp_path / "query.zarr")
    base = ["query.zarr"] if is_inside_a_folder else []
    root = tmp_path if is_inside_a_folder else tmp_path / "query.zarr"
    shutil.make_archive(tmp_path / "zipped" / "query.zarr", "zip", root, *base)
    query, output = tmp_path / "zipped" / "query.zarr.zip", tmp_path / "o.h5ad"
    assert annotate(query, "-o", output).code == 0
    assert list(ad.read_h5ad(output).obs[LABELS]) == labels
    assert "n_cells: 60" in run("info", query).out


def test_a_zipped_container_is_to_be_unpacked(annotate, run, mdata, tmp_path):
    mdata.write_zarr(tmp_path / "query.zarr")
    shutil.make_archive(tmp_path / "query.zarr", "zip", tmp_path, "query.zarr")
    query = tmp_path / "query.zarr.zip"
    for result in (run("info", query), annotate(query, "-o", tmp_path / "o.h5ad")):
        assert result.code == 1
        assert "is a MuData in a ZIP archive: unpack it" in result.err


# --------------------------------------------------------------------------- loom


# loompy is as old as the function that it calls.
@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
@pytest.mark.parametrize(
    ("genes", "cells"), [("Gene", "CellID"), ("var_names", "obs_names")]
)
def test_loom_files(genes, cells, annotate, run, toy_query, labels, tmp_path):
    """Files of loompy and of anndata, which name genes and cells otherwise."""
    loompy = pytest.importorskip("loompy")
    query, output = tmp_path / "query.loom", tmp_path / "o.h5ad"
    loompy.create(
        str(query),
        {"": toy_query.X.T, "spliced": 2 * toy_query.X.T},
        {genes: np.array(toy_query.var_names)},
        {cells: np.array(toy_query.obs_names)},
    )
    assert "genes: G0, G1" in run("info", query).out
    assert annotate(query, "-o", output, "--no-report").code == 0
    annotated = ad.read_h5ad(output)
    assert list(annotated.obs[LABELS]) == labels
    assert list(annotated.obs_names) == list(toy_query.obs_names)


def test_a_loom_file_needs_loompy(annotate, monkeypatch, tmp_path):
    with h5py.File(tmp_path / "query.loom", "w") as file:
        file["matrix"] = np.ones((3, 2))
        for name in ("row_attrs", "col_attrs", "layers"):
            file.create_group(name)
    monkeypatch.setitem(sys.modules, "loompy", None)
    result = annotate(tmp_path / "query.loom", "-o", tmp_path / "o.h5ad")
    assert (result.code, "pip install loompy" in result.err) == (1, True)


# --------------------------------------------------------------------------- options


def test_cells_with_few_genes_are_left_out(annotate, query, toy_query, tmp_path):
    n_genes = np.asarray((toy_query.X > 0).sum(1)).ravel()
    limit = int(np.median(n_genes))
    arguments = [query, "--min-genes"]
    output = tmp_path / "o.h5ad"
    assert annotate(*arguments, limit, "-o", output, "--no-report").code == 0
    rich_cells = toy_query.obs_names[n_genes >= limit]
    assert list(ad.read_h5ad(output).obs_names) == list(rich_cells)
    assert (
        "No cell has 31 genes"
        in annotate(*arguments, 31, "-o", tmp_path / "n.h5ad").err
    )


def test_an_output_is_no_container_that_the_query_is_not(
    annotate, run, query, mdata, model_folder, tmp_path
):
    output = tmp_path / "o.h5mu"
    for result in (
        annotate(query, "-o", output),
        run("novelty", query, "--model", model_folder, "-o", output),
    ):
        assert (result.code, "would be a MuData" in result.err) == (2, True)
        assert not output.exists()
    mdata.write(tmp_path / "query.h5mu")
    result = annotate(tmp_path / "query.h5mu", "-o", output, "--min-genes", 3)
    assert (result.code, "needs all" in result.err) == (2, True)


@pytest.mark.parametrize("option", ["assay", "genome"])
def test_what_the_query_does_not_have_cannot_be_chosen(
    option, annotate, query, tmp_path
):
    result = annotate(query, f"--{option}", "RNA", "--obs-out", tmp_path / "l.csv")
    assert (result.code, f"leave --{option} out" in result.err) == (1, True)


@pytest.mark.parametrize("layout", ["present", "SeuratDisk"])
def test_raw_is_named_and_read_where_x_is_scaled(
    layout, annotate, toy_query, labels, tmp_path
):
    query, output = tmp_path / "query.h5ad", tmp_path / "o.h5ad"
    toy_query.raw = toy_query.copy()
    toy_query.X = toy_query.X.toarray() - 1
    toy_query.write_h5ad(query)
    if layout == "SeuratDisk":
        with h5py.File(query, "r+") as file:
            for name in ("encoding-type", "encoding-version"):
                del file.attrs[name]
            raw = file["raw"]
            names = ad.io.read_elem(raw["var"]).index
            del raw["var"]
            numbers = [str(i) for i in range(len(names))]
            ad.io.write_elem(raw, "var", pd.DataFrame(index=numbers))
            raw["var"].move("_index", "number")
            raw["var"].attrs["_index"] = "number"
            ad.io.write_elem(raw["var"], "_index", names.to_numpy(dtype=object))
            raw["var"].attrs["column-order"] = np.array(["_index"], dtype=object)
    arguments = [query, "-o", output]
    assert "--use-raw" in annotate(*arguments).err
    assert annotate(*arguments, "--use-raw", "--no-report").code == 0
    assert list(ad.read_h5ad(output).obs[LABELS]) == labels
