"""Each command: what it writes and prints is what Python's functions give, and what is refused."""

import json
import shutil
import warnings

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from _cells import GENES, TOY_SETS, write_10x_mtx
from numpy.testing import assert_allclose, assert_array_equal

import tosica
from tosica import TOSICA
from tosica.cli._files import read_cells
from tosica.cli._names import read_names
from tosica.model import _adapt

# --------------------------------------------------------------------------- files


# The first two genes have one name.
TWICE = ["G0", "G0", *GENES[2:]]


@pytest.fixture
def expected(toy_query, toy_model):
    """The table of the cells, as Python's ``annotate`` makes it."""
    annotated = toy_model.annotate(toy_query, copy=True)
    assert annotated is not None
    return annotated.obs


def assert_same(table, expected):
    assert list(table.columns) == list(expected.columns)
    assert list(table["tosica_prediction"]) == list(expected["tosica_prediction"])
    assert_allclose(
        table["tosica_probability"], expected["tosica_probability"], rtol=1e-5
    )


# --------------------------------------------------------------------------- annotate


@pytest.mark.parametrize("stored", [".h5ad", ".zarr", "csc", "10x"])
def test_queries_in_every_format(
    stored, annotate, toy_query, tmp_path, write, expected
):
    query = tmp_path / f"query{stored if stored.startswith('.') else ''}"
    match stored:
        case "csc":
            query = tmp_path / "query.h5ad"
            toy_query.X = sp.csc_matrix(toy_query.X)
            toy_query.write_h5ad(query)
        case "10x":
            write_10x_mtx(toy_query, query, TWICE)
        case _:
            write(toy_query, query)
    table = tmp_path / "labels.csv"
    assert annotate(query, "--obs-out", table).code == 0
    assert not list(tmp_path.glob("*.parts"))
    annotated = pd.read_csv(table, index_col=0)
    assert list(annotated.index) == list(expected.index)
    if stored in (".h5ad", ".zarr", "csc"):
        assert_same(annotated, expected)


def write_as_0_7(adata, path):
    """Levels of categories are found by a reference, and the root says nothing."""
    adata.obs["donor"] = pd.Categorical(["d1", "d2"] * 30)
    adata.write_h5ad(path)
    with h5py.File(path, "r+") as file:
        for name in ("encoding-type", "encoding-version"):
            del file.attrs[name]
        obs = file["obs"]
        obs.attrs["encoding-version"] = "0.1.0"
        obs.move("donor", "__categories/all")
        donor = obs["__categories/all"]
        donor["categories"].attrs["ordered"] = False
        obs["donor"] = donor["codes"][:]
        obs["donor"].attrs["categories"] = donor["categories"].ref


def write_as_0_6(adata, path):
    """Tables are compound arrays."""
    x = sp.csr_matrix(adata.X)
    with h5py.File(path, "w") as file:
        matrix = file.create_group("X")
        matrix.attrs["h5sparse_format"] = "csr"
        matrix.attrs["h5sparse_shape"] = x.shape
        for name in ("data", "indices", "indptr"):
            matrix[name] = getattr(x, name)
        for name, names in (("obs", adata.obs_names), ("var", adata.var_names)):
            file[name] = np.array([(n,) for n in names], dtype=[("index", "S20")])


def write_nullable(adata, path):
    """Columns and names as pandas 3 makes them."""
    adata.obs["donor"] = pd.array(["d1", None] * 30, dtype="string")
    adata.obs_names = adata.obs_names.astype("string")
    with ad.settings.override(allow_write_nullable_strings=True):
        adata.write_h5ad(path)


@pytest.mark.parametrize(
    "write_layout",
    [write_as_0_7, write_as_0_6, write_nullable],
    ids=lambda f: f.__name__,
)
def test_other_layouts_of_h5ad(
    annotate, write_layout, run, toy_query, tmp_path, expected
):
    query, output = tmp_path / "query.h5ad", tmp_path / "o.h5ad"
    write_layout(toy_query, query)
    assert run("info", query).code == 0
    arguments = [query, "-o", output]
    assert annotate(*arguments, "--no-report").code == 0
    annotated = ad.read_h5ad(output)
    labels = "tosica_prediction"
    assert list(annotated.obs[labels]) == list(expected[labels])
    if write_layout is write_as_0_7:
        assert list(annotated.obs["donor"]) == ["d1", "d2"] * 30
    if write_layout is write_nullable:
        assert annotated.obs["donor"].isna().sum() == 30


def test_a_name_with_a_slash_is_refused(run, toy_query, model_folder, tmp_path):
    toy_query.layers["counts"] = toy_query.X
    toy_query.write_h5ad(tmp_path / "slash.h5ad")
    with h5py.File(tmp_path / "slash.h5ad", "r+") as file:
        file.move("layers/counts", "layers/a/b")
    output = tmp_path / "o.h5ad"
    arguments = ["--model", model_folder, "-o", output]
    result = run("annotate", tmp_path / "slash.h5ad", *arguments)
    assert "'layers/a/b', a name with a slash" in result.err
    assert result.err == run("info", tmp_path / "slash.h5ad").err
    assert not output.exists()


def test_what_holds_for_every_part_is_said_once(annotate, toy_query, tmp_path):
    totals = np.asarray(toy_query.X.sum(1))
    toy_query.X = np.log1p(toy_query.X.toarray() * (1e6 / totals))
    toy_query.write_h5ad(tmp_path / "query.h5ad")
    table = tmp_path / "l.csv"
    result = annotate(
        tmp_path / "query.h5ad", "--obs-out", table, "--cells-per-part", "20"
    )
    assert result.code == 0
    assert result.err.count("brought to the reference's scale") == 1


def test_a_query_without_x(annotate, run, toy_query, tmp_path):
    query, output = tmp_path / "query.h5ad", tmp_path / "o.h5ad"
    toy_query.layers["counts"] = toy_query.X
    toy_query.X = None
    toy_query.write_h5ad(query)
    arguments = [query, "-o", output]
    words = ".X is empty (None); name the matrix to use with --layer 'counts'."
    assert words in annotate(*arguments).err
    assert annotate(*arguments, "--layer", "counts", "--no-report").code == 0
    assert ad.read_h5ad(output).X is None
    assert run("info", output).code == 0
    del toy_query.layers["counts"]
    toy_query.write_h5ad(tmp_path / "empty.h5ad")
    result = annotate(tmp_path / "empty.h5ad", "-o", tmp_path / "e.h5ad")
    assert "has no expression: X is empty (None), and there is neither" in result.err


@pytest.mark.parametrize(
    ("ending", "table_ending"), [(".h5ad", ".tsv"), (".zarr", ".parquet")]
)
def test_annotated_copy_and_table(
    ending, table_ending, annotate, query, tmp_path, expected
):
    output, table = tmp_path / f"annotated{ending}", tmp_path / f"labels{table_ending}"
    arguments = [
        query,
        "-o",
        output,
        "--obs-out",
        table,
    ]
    page = output.with_suffix(".html")
    line = f"tosica: annotated 60 cells, and wrote {output}, {table} and {page}\n"
    assert annotate(*arguments) == (0, "", line)
    annotated = ad.read_h5ad(output) if ending == ".h5ad" else ad.read_zarr(output)
    assert_same(annotated.obs, expected)
    assert annotated.shape == (60, 30)
    if table_ending == ".parquet":
        labels = pd.read_parquet(table)
        assert isinstance(labels["tosica_prediction"].dtype, pd.CategoricalDtype)
    else:
        labels = pd.read_csv(table, sep="\t", index_col=0)
        assert table.read_text().startswith("obs_names\t")
    assert_same(labels, expected)
    assert {path.name for path in tmp_path.iterdir()} == {
        query.name,
        output.name,
        table.name,
        page.name,
    }
    assert page.read_text(encoding="utf8").startswith("<!DOCTYPE html>")
    # Nothing is replaced unasked.
    content = table.read_bytes()
    result = annotate(*arguments)
    assert result.code == 1
    assert "--overwrite" in result.err
    assert table.read_bytes() == content
    assert annotate(*arguments, "--overwrite", "--no-report").code == 0


def test_the_last_line_names_what_was_written_by_each_command(
    run, query, model_folder, tmp_path
):
    output, page = tmp_path / "scored.h5ad", tmp_path / "page.html"
    result = run("novelty", query, "--model", model_folder, "-o", output)
    assert result.code == 0
    line = f"tosica: scored 60 cells, and wrote {output}"
    assert result.err.splitlines()[-1] == line
    result = run("report", output, "-o", page, "--json")
    assert (
        result.err.splitlines()[-1] == f"tosica: described 60 cells, and wrote {page}"
    )
    assert json.loads(result.out)["report"] == str(page)


def test_the_last_line_comes_after_warnings(annotate, query, tmp_path):
    cells = ad.read_h5ad(query)
    few, output = tmp_path / "few.h5ad", tmp_path / "annotated.h5ad"
    cells[:, : int(0.8 * cells.n_vars)].copy().write_h5ad(few)
    *_, warning, last = annotate(few, "-o", output, "--no-report").err.splitlines()
    assert warning.startswith("tosica: warning: The query has only")
    assert last == f"tosica: annotated 60 cells, and wrote {output}"


def test_many_clusters_are_not_printed_all(run, query, model_folder, tmp_path):
    cells = ad.read_h5ad(query)
    cells.obs["clusters"] = [f"c{i % 30}" for i in range(60)]
    many, output = tmp_path / "many.h5ad", tmp_path / "scored.h5ad"
    cells.write_h5ad(many)
    call = ["novelty", many, "--model", model_folder, "--over-clustering", "clusters"]
    done = run(*call, "-o", output)
    *rows, last = done.out.splitlines()
    assert len(rows) == 1 + 20
    assert last == f"10 clusters more in uns['tosica_novelty'] of {output}"
    done = run(*call, "-o", output, "--overwrite", "--json")
    assert len(json.loads(done.out)["clusters"]) == 30


@pytest.mark.parametrize("quiet", [False, True])
def test_an_error_at_the_end_names_what_is_there(
    quiet, annotate, query, tmp_path, monkeypatch
):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tosica._report.report", fail)
    output, table = tmp_path / "annotated.h5ad", tmp_path / "labels.csv"
    arguments = [query, "-o", output]
    arguments += ["--obs-out", table, *["--quiet"] * quiet]
    result = annotate(*arguments)
    assert result.code == 1
    page = output.with_suffix(".html")
    lines = [
        f"tosica: error: {output} was written, but not {page} "
        "([Errno 28] No space left on device): --no-report leaves it out."
    ]
    if not quiet:
        lines.append(f"tosica: ended early, and wrote {output} and {table}")
    assert result.err.splitlines() == lines
    assert ad.read_h5ad(output).n_obs == len(pd.read_csv(table)) == 60


@pytest.mark.parametrize("ending", [".h5ad", ".zarr"])
def test_the_page_of_many_cells_is_about_a_sample(ending, annotate, query, tmp_path):
    output = tmp_path / f"annotated{ending}"
    arguments = [query, "-o", output]
    result = annotate(*arguments, "--cells-per-part", 40, "--json")
    page = output.with_suffix(".html")
    line = f"tosica: annotated 60 cells, and wrote {output} and {page}"
    assert result.err == f"{line}; the page is about 40 of the cells\n"
    summary = json.loads(result.out)
    assert (summary["n_cells"], summary["report"]) == (60, str(page))
    text = page.read_text(encoding="utf8")
    assert "<b>This page is about a random sample</b> of 40 cells of the 60" in text


@pytest.mark.parametrize("stored", [".h5ad", "csc"])
def test_learns_from_the_query_first(
    stored, annotate, run, toy_query, toy_model, tmp_path, monkeypatch
):
    monkeypatch.setattr(_adapt, "_N_DRAWS", 500)
    query, output, folder = (
        tmp_path / "query.h5ad",
        tmp_path / "annotated.h5ad",
        tmp_path / "adapted",
    )
    captured = np.exp(np.random.default_rng(0).normal(0, 1, toy_query.n_vars))
    toy_query.X = sp.csr_matrix(
        np.rint(toy_query.X.toarray() * captured).astype(np.float32)
    )
    if stored == "csc":
        toy_query.X = sp.csc_matrix(toy_query.X)
    toy_query.write_h5ad(query)
    arguments = [
        query,
        "-o",
        output,
        "--adapt",
        "--adapted-model",
        folder,
    ]
    assert annotate(*arguments, "--no-report").code == 0
    adapted = toy_model.adapt(toy_query)
    annotated = ad.read_h5ad(output)
    assert annotated.uns["tosica"]["adapted"] == str(adapted.training_.adaptation)
    assert_array_equal(
        annotated.obs["tosica_prediction"].astype(str), adapted.predict(toy_query)
    )
    # A later report can be made with it.
    assert (
        TOSICA.load(folder).fingerprint
        == adapted.fingerprint
        == annotated.uns["tosica"]["model"]
    )
    refused = run(
        "annotate", query, "--model", folder, "-o", output, "--overwrite", "--adapt"
    )
    assert (
        "would drift from its reference: take the model that it was made from"
        in refused.err
    )
    assert refused.code == 1
    assert ad.read_h5ad(output).uns["tosica"]["adapted"] == str(
        adapted.training_.adaptation
    )


def test_options_are_passed_on(annotate, query, tmp_path, toy_model):
    output = tmp_path / "o.h5ad"
    options = [
        "--cutoff",
        1,
        "--probabilities",
        "--key-added",
        "mine",
        "--batch-size",
        7,
        "--no-report",
    ]
    result = annotate(query, "-o", output, *options, "--json")
    annotated = ad.read_h5ad(output)
    assert "Unknown" in set(annotated.obs["mine_prediction"])
    assert list(annotated.obsm["mine_probabilities"].columns) == toy_model.labels
    summary = json.loads(result.out)
    assert (summary["output"], summary["obs_out"]) == (str(output), None)
    assert summary["n_cells"] == sum(summary["labels"].values()) == 60
    assert summary["model"] == toy_model.fingerprint
    assert 0 < summary["mean_probability"] <= 1


@pytest.mark.parametrize("way", ["commas", "several times", "file"])
def test_labels_that_can_occur(way, annotate, query, tmp_path):
    names = tmp_path / "types.txt"
    names.write_text("a\n\nc\n")
    options = {
        "commas": ["--labels", "a, c"],
        "several times": ["--labels", "a", "--labels", "c"],
        "file": ["--labels", names],
    }[way]
    arguments = [query, *options, "--json"]
    result = annotate(*arguments, "-o", tmp_path / "annotated.h5ad", "--no-report")
    summary = json.loads(result.out)
    assert set(summary["labels"]) == {"a", "c"}
    assert summary["left_out_labels"] == ["b"]
    annotated = ad.read_h5ad(tmp_path / "annotated.h5ad")
    assert annotated.uns["tosica"]["left_out_labels"].tolist() == ["b"]


def test_names_with_commas():
    model_labels = ["CD4-positive, alpha-beta T cell", "B cell"]
    texts = ["B cell,CD4-positive, alpha-beta T cell,NK"]
    assert read_names(texts, model_labels) == [*model_labels[::-1], "NK"]


def test_no_label_that_can_occur(annotate, query, tmp_path):
    table = tmp_path / "labels.csv"
    arguments = [query, "--obs-out", table]
    words = "There is no label to predict: name two or more with --labels"
    assert words in annotate(*arguments, "--labels", ",").err
    assert not table.exists()


def test_majority_voting(annotate, toy_query, tmp_path):
    toy_query.obs["cluster"] = ["x", "y"] * 30
    toy_query.write_h5ad(tmp_path / "q.h5ad")
    arguments = [tmp_path / "q.h5ad"]
    arguments += [
        "-o",
        tmp_path / "o.h5ad",
        "--majority-voting",
        "--over-clustering",
        "cluster",
        "--no-report",
    ]
    result = annotate(*arguments, "--min-prop", 0.9, "--json")
    assert json.loads(result.out)["labels"] == {"Heterogeneous": 60}
    voted = ad.read_h5ad(tmp_path / "o.h5ad").obs["tosica_majority_vote"]
    assert set(voted) == {"Heterogeneous"}


def test_majority_voting_makes_a_graph_where_there_is_none(
    annotate, toy_query, tmp_path
):
    pytest.importorskip("igraph")
    assert "neighbors" not in toy_query.uns
    toy_query.write_h5ad(tmp_path / "q.h5ad")
    annotate(tmp_path / "q.h5ad", "--obs-out", tmp_path / "o.csv", "--majority-voting")
    table = pd.read_csv(tmp_path / "o.csv", index_col=0)
    assert table["tosica_majority_vote"].notna().all()


def test_novelty_says_whose_labels_it_replaces(run, toy_query, model_folder, tmp_path):
    toy_query.uns["tosica"] = {"model": "0123", "labels": ["old"]}
    toy_query.write_h5ad(tmp_path / "q.h5ad")
    output = tmp_path / "o.h5ad"
    arguments = [tmp_path / "q.h5ad", "--model", model_folder, "-o", output]
    result = run("novelty", *arguments)
    assert result.code == 0
    assert "are of the model 0123, and are replaced by those of" in result.err
    again = run("novelty", output, *arguments[1:-1], tmp_path / "again.h5ad")
    assert "are replaced" not in again.err


def test_novelty_lists_the_most_unlike_cluster_first(
    run, toy_query, toy_model, model_folder, tmp_path
):
    toy_query.obs["cluster"] = np.where(toy_query.obs["kind"] == "a", "x", "y")
    toy_query.write_h5ad(tmp_path / "q.h5ad")
    toy_model.annotate(toy_query, key_added="mine")
    tosica.tl.novelty(
        toy_query, toy_model, over_clustering="cluster", correct_batch=False, key="mine"
    )
    expected = toy_query.uns["mine_novelty"].set_index("cluster")["score"]
    arguments = [
        "novelty",
        tmp_path / "q.h5ad",
        "--model",
        model_folder,
        "-o",
        tmp_path / "o.h5ad",
        "--same-batch",
    ]
    arguments += ["--over-clustering", "cluster", "--key-added", "mine"]
    lines = run(*arguments).out.split("\n")
    assert lines[0].split() == [
        "cluster",
        "n_cells",
        "label",
        "score",
        "pvalue",
        "genes",
        "similar_to",
    ]
    assert [line.split()[0] for line in lines[1:3]] == list(expected.index)
    table = json.loads(run(*arguments, "--overwrite", "--json").out)["clusters"]
    assert_allclose([row["score"] for row in table.values()], expected, rtol=1e-4)
    assert sum(row["n_cells"] for row in table.values()) == 60
    obs = ad.read_h5ad(tmp_path / "o.h5ad").obs
    assert_allclose(
        obs["mine_novelty_pvalue"], toy_query.obs["mine_novelty_pvalue"], rtol=1e-4
    )
    assert (
        "--over-clustering 'none' is no column"
        in run(*arguments[:-3], "none", "--overwrite").err
    )


@pytest.mark.parametrize(
    ("name", "model", "words"),
    [
        ("q.txt", "model", "q.txt"),
        ("folder", "model", "neither cells nor a model"),
        ("two", "model", "holds 2 matrices ('a_matrix.mtx.gz', "),
        ("model", "model", "is the folder of a model"),
        ("table.csv", "model", "is a table"),
        ("broken.h5ad", "model", "broken.h5ad"),
        ("query.h5ad", "folder", "model.pt"),
        ("genes.h5ad", "model", "30 genes"),
    ],
)
def test_wrong_input_exits_with_1_and_one_line(
    name, model, words, run, query, toy_query, model_folder, tmp_path
):
    (tmp_path / "folder").mkdir()
    for prefix in ("a_", "b_"):
        write_10x_mtx(toy_query, tmp_path / "two", TWICE, prefix)
    shutil.copytree(model_folder, tmp_path / "model")
    for text in ("q.txt", "table.csv"):
        (tmp_path / text).write_text("x")
    (tmp_path / "broken.h5ad").write_bytes(query.read_bytes()[:5000])
    toy_query.var_names = [f"other{i}" for i in range(30)]
    toy_query.write_h5ad(tmp_path / "genes.h5ad")
    files = sorted(tmp_path.rglob("*"))
    output = tmp_path / "o.h5ad"
    result = run("annotate", tmp_path / name, "--model", tmp_path / model, "-o", output)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("tosica: error: ")
    assert words in result.err
    assert result.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == files


def test_what_cannot_be_written_is_said_before_the_work(
    annotate, query, tmp_path, monkeypatch
):
    monkeypatch.setattr(TOSICA, "load", lambda *_, **__: pytest.fail("loaded"))
    arguments = [query, "-o"]
    assert "does not exist" in annotate(*arguments, tmp_path / "no" / "o.h5ad").err
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "read-only" in annotate(*arguments, tmp_path / "o.h5ad").err


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "seurat"),
    [
        ("kang_seurat.rds", False),
        ("kang.h5Seurat", False),
        ("kang_seuratdisk.h5ad", True),
    ],
)
def test_seurat_objects_are_read(name, seurat, shared):
    adata = read_cells(str(shared / "seurat" / name), seurat=seurat)
    assert adata.n_obs == 700
    assert "B cells" in set(adata.obs["cluster_id"])


# --------------------------------------------------------------------------- train


def train_arguments(reference, folder, *options):
    few = [
        "--gene-sets",
        reference.with_name("sets.gmt"),
        "--max-epochs",
        1,
        "-o",
        folder,
    ]
    return ["train", reference, "--labels-key", "kind", *few, *options]


def test_the_model_is_that_of_python(run, reference, tmp_path):
    folder = tmp_path / "model"
    options = ("--batch-key", "donor", "--seed", 3, "--device", "cpu", "--json")
    result = run(*train_arguments(reference, folder, *options))
    assert (result.code, result.err) == (0, "")
    summary = json.loads(result.out)
    adata = ad.read_h5ad(reference)
    tosica.settings.seed = 3
    tosica.pp.build_mask(adata, reference.with_name("sets.gmt"))
    TOSICA.setup_anndata(adata, labels_key="kind", batch_key="donor")
    model = TOSICA(adata)
    model.train(max_epochs=1, accelerator="cpu")
    assert (
        TOSICA.load(folder).fingerprint == summary["fingerprint"] == model.fingerprint
    )
    assert summary["labels"] == ["a", "b", "c"]
    assert (summary["n_cells"], summary["n_genes"]) == (90, 30)


@pytest.mark.parametrize("keys", [["broad,kind"], ["broad", "kind"]])
def test_labels_of_several_levels(keys, run, toy, toy_query, tmp_path):
    toy.obs["broad"] = toy.obs["kind"].astype(str).replace("b", "a")
    reference, query = tmp_path / "reference.h5ad", tmp_path / "query.h5ad"
    toy.write_h5ad(reference)
    toy_query.write_h5ad(query)
    sets = tmp_path / "sets.gmt"
    tosica.gs.write_gmt(TOY_SETS, sets)
    folder, table = tmp_path / "model", tmp_path / "labels.csv"
    options = [option for key in keys for option in ("--labels-key", key)]
    options += ["--gene-sets", sets, "--max-epochs", 3, "-o", folder]
    assert run("train", reference, *options).code == 0
    arguments = ["annotate", query, "--model", folder, "--obs-out", table, "--json"]
    summary = json.loads(run(*arguments).out)
    labels = pd.read_csv(table)
    fine, broad = labels["tosica_prediction"], labels["tosica_prediction_broad"]
    assert broad.tolist() == fine.replace("b", "a").tolist()
    assert summary["levels"] == {"broad": broad.value_counts().to_dict()}


def test_a_model_for_the_genes_of_a_query(run, reference, query, tmp_path):
    adata = ad.read_h5ad(query)[:, :20].copy()
    adata.write_h5ad(tmp_path / "panel.h5ad")
    result = run(
        *train_arguments(
            reference, tmp_path / "model", "--for", tmp_path / "panel.h5ad", "--json"
        )
    )
    assert (result.code, result.err) == (0, "")
    summary = json.loads(result.out)
    assert (summary["n_cells"], summary["n_genes"]) == (90, 20)
    assert (
        summary["held_out_accuracy"]
        == TOSICA.load(tmp_path / "model").held_out_accuracy_
    )


def test_layer_raw_and_several_collections(run, reference, tmp_path):
    toy = ad.read_h5ad(reference)
    toy.raw = toy.copy()
    toy.layers["counts"] = toy.X.copy()
    toy.X = toy.X.toarray() - 1
    toy.write_h5ad(reference)
    result = run(*train_arguments(reference, tmp_path / "scaled"))
    assert result.code == 1
    assert "--use-raw" in result.err
    assert "--layer 'counts'" in result.err
    (tmp_path / "more.gmt").write_text("own\tna\tG1\tG2\tG3\tG4\tG5\n")
    options = ["--gene-sets", tmp_path / "more.gmt", "--use-raw", "--max-gene-sets", 4]
    assert run(*train_arguments(reference, tmp_path / "raw", *options)).code == 0
    sets = TOSICA.load(tmp_path / "raw").gene_sets
    assert len([name for name in sets if not name.startswith("module:")]) == 4
    assert (
        run(*train_arguments(reference, tmp_path / "layer", "--layer", "counts")).code
        == 0
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--labels-key", "kinds"], "'kinds'"),
        (["--gene-sets", "nothing"], "'nothing'"),
        (["--layer", "nothing"], "'nothing'"),
        (["--use-raw"], "leave --use-raw out"),
        (["-o", "{tmp}/reference.h5ad"], "is no folder to write to"),
        (["-o", "{tmp}/full"], "--overwrite"),
    ],
)
def test_wrong_data_for_a_training(options, words, run, reference, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("kept")
    options = [word.format(tmp=tmp_path) for word in options]
    result = run(*train_arguments(reference, tmp_path / "m", *options))
    assert (result.code, result.out) == (1, "")
    assert words in result.err
    assert result.err.count("\n") == 1
    assert not (tmp_path / "m").exists()


# --------------------------------------------------------------------------- evaluate, report


@pytest.fixture
def annotated(toy_query, toy_model, tmp_path):
    toy_model.annotate(toy_query)
    path = tmp_path / "annotated.h5ad"
    toy_query.write_h5ad(path)
    return path


@pytest.mark.parametrize("ending", [".h5ad", ".zarr", ".tsv", ".parquet"])
def test_scores_are_those_of_python(ending, run, annotated, write):
    adata = ad.read_h5ad(annotated)
    path = annotated.with_suffix(ending)
    if ending == ".zarr":
        write(adata, path)
    elif ending == ".parquet":
        adata.obs.to_parquet(path)
    elif ending != ".h5ad":
        adata.obs.to_csv(path, sep="\t")
    expected = tosica.tl.evaluate(adata, "kind")
    scores = json.loads(run("evaluate", path, "--labels-key", "kind", "--json").out)
    assert scores["accuracy"] == pytest.approx(expected.summary["accuracy"].iloc[0])
    assert scores["per_class"]["a"]["recall"] == pytest.approx(
        expected.per_class["recall"]["a"]
    )
    assert scores["confusion"]["a"]["a"] == expected.confusion.loc["a", "a"]
    assert scores["n_cells"] == 60
    if ending == ".h5ad":
        assert run("evaluate", path, "--labels-key", "kind") == (
            0,
            f"{expected!r}\n",
            "",
        )


def test_labels_of_a_table_may_be_called_na(run, annotated):
    obs = ad.read_h5ad(annotated).obs
    names = {"a": "NA", "b": "None", "c": "null"}
    for column in ("kind", "tosica_prediction"):
        obs[column] = obs[column].cat.rename_categories(names)
    path = annotated.with_suffix(".csv")
    obs.to_csv(path)
    result = run("evaluate", path, "--labels-key", "kind", "--json")
    assert set(json.loads(result.out)["per_class"]) == set(names.values())


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv.gz", ".txt"])
def test_labels_of_a_table_may_be_numbers(ending, run, annotated):
    obs = ad.read_h5ad(annotated).obs
    names = {"a": "01", "b": "02", "c": "3.0"}
    for column in ("kind", "tosica_prediction"):
        obs[column] = obs[column].cat.rename_categories(names).astype(object)
    obs.loc[obs.index[0], "kind"] = np.nan
    path = annotated.with_suffix(ending)
    obs.to_csv(path, sep="\t" if "tsv" in ending else ",")
    result = run("evaluate", path, "--labels-key", "kind", "--json")
    assert set(json.loads(result.out)["per_class"]) == set(names.values())


def test_numbers_beside_cells_without_a_label(run, annotated):
    obs = ad.read_h5ad(annotated).obs
    names = {"a": 1, "b": 2, "c": 3}
    for column in ("kind", "tosica_prediction"):
        obs[column] = obs[column].astype(object).map(names)
    obs["kind"] = obs["kind"].astype(float)
    obs.loc[obs.index[0], "kind"] = np.nan
    path = annotated.with_suffix(".csv")
    obs.to_csv(path)
    result = run("evaluate", path, "--labels-key", "kind", "--json")
    assert set(json.loads(result.out)["per_class"]) == {"1", "2", "3"}


def test_names_may_be_longer_than_a_path(toy_model):
    labels = ["a" * 300, "b" * 300]
    assert read_names([",".join(labels)], labels) == labels


@pytest.mark.parametrize("ending", [".h5ad", ".zarr"])
def test_wrong_clusters_are_told_before_the_work(
    ending, annotate, toy_query, tmp_path, write, monkeypatch
):
    monkeypatch.setattr(TOSICA, "annotate", None)
    query = tmp_path / f"q{ending}"
    write(toy_query, query)
    table = tmp_path / "o.csv"
    options = ["--majority-voting", "--over-clustering", "nope"]
    result = annotate(query, "--obs-out", table, *options)
    assert result.code == 1
    assert "'nope'" in result.err


def test_a_majority_of_one_cell(annotate, toy_query, tmp_path):
    toy_query[:1].write_h5ad(tmp_path / "q.h5ad")
    table = tmp_path / "o.csv"
    result = annotate(tmp_path / "q.h5ad", "--obs-out", table, "--majority-voting")
    assert result.code == 0
    obs = pd.read_csv(table, index_col=0)
    assert list(obs["tosica_majority_vote"]) == list(obs["tosica_prediction"])


def test_a_page_by_a_model_needs_its_labels(run, query, model_folder, tmp_path):
    page = tmp_path / "page.html"
    result = run("report", query, "--model", model_folder, "-o", page)
    assert result.code == 1
    assert "adata.obs has no column 'tosica_prediction': run tosica annotate" in (
        result.err
    )


def test_what_cannot_be_computed_is_null(run, annotated):
    adata = ad.read_h5ad(annotated)
    adata.obs["all_a"] = "a"
    adata.write_h5ad(annotated)
    arguments = (
        "evaluate",
        annotated,
        "--labels-key",
        "kind",
        "--prediction-key",
        "all_a",
        "--json",
    )
    scores = json.loads(run(*arguments).out)
    assert scores["expected_calibration_error"] is None
    assert scores["per_class"]["b"]["precision"] is None


def test_files_of_another_model_or_none(run, annotated, model_folder, toy, train):
    other_model = annotated.with_name("other")
    train(toy, max_epochs=1).save(other_model)
    arguments = ["evaluate", annotated, "--labels-key", "kind", "--model"]
    assert run(*arguments, model_folder).code == 0
    result = run(
        "report", annotated, "-o", annotated.with_name("r.html"), "--model", other_model
    )
    assert "pass the model that annotated" in result.err
    assert "was not annotated by the model in" in run(*arguments, other_model).err
    adata = ad.read_h5ad(annotated)
    del adata.uns["tosica"]
    adata.write_h5ad(annotated)
    assert "does not say so under uns['tosica']" in run(*arguments, model_folder).err


def test_a_page_cannot_be_made_of_a_table(run, annotated):
    table = annotated.with_suffix(".csv")
    ad.read_h5ad(annotated).obs.to_csv(table)
    result = run("report", table, "-o", annotated.with_name("page.html"))
    assert result.code == 1
    assert "give the copy of the cells that annotate writes with --output" in result.err


def test_report_is_that_of_python(run, annotated, model_folder, monkeypatch):
    page = annotated.with_name("report.html")

    def write(adata, path, **options):
        assert adata.uns["tosica_attribution"]["model"] == adata.uns["tosica"]["model"]
        assert options["labels_key"] == "kind"
        assert options["title"] == "Sample 1"
        path.write_text(f"{adata.n_obs} cells")

    monkeypatch.setattr(tosica, "report", write)
    arguments = ["report", annotated, "-o", page, "--model", model_folder, "--json"]
    arguments += ["--labels-key", "kind", "--title", "Sample 1"]
    summary = json.loads(run(*arguments).out)
    assert summary == {"annotated": str(annotated), "report": str(page), "n_cells": 60}
    assert run(*arguments).code == 1
    assert run(*arguments, "--overwrite").code == 0


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ("report {tmp}/query.h5ad -o p.html", "run tosica annotate first."),
        (
            "report {tmp}/annotated.h5ad -o p.html --key other",
            "or pass --key 'tosica', which is there",
        ),
        (
            "evaluate {tmp}/query.h5ad --labels-key kind",
            "run tosica annotate, or name another one",
        ),
        (
            "train {tmp}/reference.h5ad --labels-key kind,kind",
            "--labels-key names the column 'kind' more than once",
        ),
        (
            "train {tmp}/reference.h5ad --labels-key kind --min-cells 80",
            "labels of --min-cells 80 cells or more",
        ),
    ],
)
@pytest.mark.usefixtures("query", "reference", "annotated")
def test_cures_are_those_of_the_command_line(words, cure, run, tmp_path):
    arguments = words.format(tmp=tmp_path).split()
    if arguments[0] == "train":
        arguments += ["--gene-sets", tmp_path / "sets.gmt", "-o", tmp_path / "model"]
    result = run(*arguments)
    assert (result.code, cure in result.err) == (1, True)


# --------------------------------------------------------------------------- gene-sets, info


def test_all_collections_are_listed(run):
    table = tosica.gs.collections()
    assert all(name in run("gene-sets").out for name in table.index)
    rows = json.loads(run("gene-sets", "--json").out)["collections"]
    assert [row["name"] for row in rows] == list(table.index)


def test_the_collection_of_an_organism_is_described(run):
    described = json.loads(run("gene-sets", "gobp", "--json").out)
    assert described["gene_sets"] == "human_gobp"
    arguments = ("gene-sets", "gobp", "--organism", "mouse", "--json")
    assert json.loads(run(*arguments).out)["gene_sets"] == "mouse_gobp"


def test_a_gmt_file_is_matched_and_written(run, reference, tmp_path):
    sets = tosica.gs.read_gmt(tmp_path / "sets.gmt")
    output = tmp_path / "kept.gmt"
    with (tmp_path / "sets.gmt").open("a") as file:
        file.write("foreign\tna\tX1\tX2\tX3\tX4\tX5\n")
    arguments = ["gene-sets", tmp_path / "sets.gmt", "--for", reference, "-o", output]
    summary = json.loads(run(*arguments, "--json").out)
    matched = summary["reference"]
    assert (summary["n_sets"], matched["n_sets"]) == (5, 4)
    assert (matched["n_genes"], matched["n_genes_covered"]) == (30, 24)
    assert tosica.gs.read_gmt(output) == sets
    assert run(*arguments).code == 1
    assert "24 of 30 genes (80.0 %)" in run(*arguments, "--overwrite").out


def test_info_of_a_model(run, model_folder, toy_model):
    info = json.loads(run("info", model_folder, "--json").out)
    assert info["kind"] == "model"
    assert info["fingerprint"] == toy_model.fingerprint
    assert info["labels"] == ["a", "b", "c"]
    assert info["n_gene_sets"] == len(toy_model.gene_sets)
    assert info["reference"] == {"labels_key": "kind"}
    assert info["n_genes"] == 30
    assert "\n  labels_key: kind\n" in run("info", model_folder).out


@pytest.mark.parametrize("ending", [".h5ad", ".zarr"])
def test_info_of_cells(ending, run, toy_query, toy_model, tmp_path, write):
    path = tmp_path / f"cells{ending}"
    toy_model.annotate(toy_query)
    toy_query.layers["counts"] = toy_query.X.copy()
    toy_query.X = toy_query.X.toarray() - 1
    for i in range(20):
        toy_query.obs[f"column{i}"] = i
    write(toy_query, path)
    info = json.loads(run("info", path, "--json").out)
    assert (info["n_cells"], info["n_genes"]) == (60, 30)
    assert info["genes"] == ["G0", "G1", "G2", "G3", "G4"]
    assert info["X"].startswith("neither counts nor log-normalized: ")
    assert info["layers"] == {"counts": "counts"}
    assert info["raw"] is None
    assert info["annotations"]["tosica"]["model"] == toy_model.fingerprint
    text = run("info", path).out
    assert f"    model: {toy_model.fingerprint}\n" in text
    assert f", … ({toy_query.obs.shape[1]})\n" in text


# --------------------------------------------------------------------------- names that repeat


@pytest.fixture
def query_with_twins(toy_query, tmp_path):
    """An .h5ad file of which the first two cells share a name."""
    names = toy_query.obs_names.to_list()
    toy_query.obs_names = [names[1], *names[1:]]
    path = tmp_path / "twins.h5ad"
    toy_query.write_h5ad(path)
    return path


@pytest.mark.parametrize(
    ("command", "options", "kept"),
    [
        ("annotate", [], True),
        ("annotate", ["--majority-voting"], False),
        ("novelty", [], False),
    ],
    ids=["on disk", "in memory", "novelty"],
)
def test_cells_that_share_a_name_are_numbered_where_names_must_differ(
    command, options, kept, run, query_with_twins, model_folder, tmp_path
):
    pytest.importorskip("igraph")
    output = tmp_path / "out.h5ad"
    arguments = ["--model", model_folder, "-o", output, *options]
    result = run(command, query_with_twins, *arguments)
    assert result.code == 0, result.err
    assert ("Some cells share a name, such as" in result.err) != kept
    with warnings.catch_warnings(action="ignore"):
        names = ad.read_h5ad(output).obs_names
    assert names.duplicated().any() == kept
    if command == "annotate":
        assert output.with_suffix(".html").exists()


@pytest.mark.parametrize("axis", ["obs", "var"])
def test_a_reference_with_names_that_repeat_is_learned(axis, run, reference, tmp_path):
    adata = ad.read_h5ad(reference)
    names = getattr(adata, f"{axis}_names").to_list()
    setattr(adata, f"{axis}_names", [*names[:-1], names[0]])
    adata.write_h5ad(reference)
    result = run(*train_arguments(reference, tmp_path / "model"))
    assert result.code == 0, result.err
    things = {"obs": "cells", "var": "genes"}[axis]
    assert f"Some {things} share a name, such as {names[0]!r}" in result.err
