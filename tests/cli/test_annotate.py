"""``tosica annotate``: formats, options, outputs, and what is refused."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, get_args

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from tosica import cli
from tosica.model._annotation import Precision
from tosica.tl import annotate_file

if TYPE_CHECKING:
    from pathlib import Path

    from anndata import AnnData

    import tosica


@pytest.fixture
def expected(toy_query: AnnData, toy_model: tosica.TOSICA) -> pd.DataFrame:
    """The table of the cells, as Python's ``annotate`` makes it."""
    annotated = toy_model.annotate(toy_query, copy=True)
    assert annotated is not None
    return annotated.obs


def assert_same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    assert list(found.columns) == list(expected.columns)
    assert list(found["tosica_prediction"]) == list(expected["tosica_prediction"])
    np.testing.assert_allclose(
        found["tosica_probability"], expected["tosica_probability"], rtol=1e-5
    )


@pytest.mark.parametrize("ending", [".h5ad", ".zarr"])
def test_annotated_copy_and_table(
    ending: str, run: Any, query: Path, model_folder: Path, tmp_path: Path, expected: pd.DataFrame
) -> None:
    output, table = tmp_path / f"annotated{ending}", tmp_path / "labels.csv"
    result = run("annotate", query, "--model", model_folder, "-o", output, "--obs-out", table)
    assert (result.code, result.out) == (0, "")
    annotated = ad.read_h5ad(output) if ending == ".h5ad" else ad.read_zarr(output)
    assert_same(annotated.obs, expected)
    assert annotated.shape == (60, 30)
    assert_same(pd.read_csv(table, index_col=0), expected)
    assert table.read_text().startswith("obs_names,")
    assert {path.name for path in tmp_path.iterdir()} == {query.name, output.name, table.name}


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_table_alone(
    ending: str, run: Any, query: Path, model_folder: Path, tmp_path: Path, expected: pd.DataFrame
) -> None:
    table = tmp_path / f"labels{ending}"
    assert run("annotate", query, "--model", model_folder, "--obs-out", table).code == 0
    if ending == ".parquet":
        found = pd.read_parquet(table)
        assert isinstance(found["tosica_prediction"].dtype, pd.CategoricalDtype)
    else:
        found = pd.read_csv(table, sep="," if ending == ".csv" else "\t", index_col=0)
    assert_same(found, expected)
    assert list(found.index) == list(expected.index)
    assert {path.name for path in tmp_path.iterdir()} == {query.name, table.name}


def test_summary_as_json(
    run: Any, query: Path, model_folder: Path, tmp_path: Path, toy_model: tosica.TOSICA
) -> None:
    output = tmp_path / "o.h5ad"
    result = run("annotate", query, "--model", model_folder, "-o", output, "--json")
    summary = json.loads(result.out)
    assert summary["output"] == str(output)
    assert summary["obs_out"] is None
    assert summary["n_cells"] == sum(summary["labels"].values()) == 60
    assert summary["model"] == toy_model.fingerprint
    assert 0 < summary["mean_probability"] <= 1


def test_options_are_passed_on(
    run: Any, query: Path, model_folder: Path, tmp_path: Path, toy_model: tosica.TOSICA
) -> None:
    output = tmp_path / "o.h5ad"
    options = ["--cutoff", 1, "--probabilities", "--key-added", "mine", "--batch-size", 7]
    assert run("annotate", query, "--model", model_folder, "-o", output, *options).code == 0
    annotated = ad.read_h5ad(output)
    assert set(annotated.obs["mine_prediction"]) <= {*toy_model.labels, "Unknown"}
    assert "Unknown" in set(annotated.obs["mine_prediction"])
    assert list(annotated.obsm["mine_probabilities"].columns) == toy_model.labels


def test_automatic_cutoff(run: Any, query: Path, model_folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.h5ad"
    options = ["--cutoff", "auto"]
    assert run("annotate", query, "--model", model_folder, "-o", output, *options).code == 0
    # Halfway between a third and 1.
    assert ad.read_h5ad(output).uns["tosica"]["cutoff"] == pytest.approx(2 / 3)


def test_majority_voting_as_in_celltypist(
    run: Any, toy_query: AnnData, model_folder: Path, tmp_path: Path
) -> None:
    toy_query.obs["cluster"] = ["x", "y"] * 30
    toy_query.write_h5ad(tmp_path / "q.h5ad")
    output = tmp_path / "o.h5ad"
    arguments = ["annotate", tmp_path / "q.h5ad", "--model", model_folder, "-o", output]
    arguments += ["--majority-voting", "--over-clustering", "cluster", "--min-prop", 0.9, "--json"]
    result = run(*arguments)
    assert json.loads(result.out)["labels"] == {"Heterogeneous": 60}
    assert set(ad.read_h5ad(output).obs["tosica_majority_vote"]) == {"Heterogeneous"}


def test_cells_stored_by_genes_are_read_as_a_whole(
    run: Any, toy_query: AnnData, model_folder: Path, tmp_path: Path, expected: pd.DataFrame
) -> None:
    toy_query.X = sp.csc_matrix(toy_query.X)
    toy_query.write_h5ad(tmp_path / "q.h5ad")
    output = tmp_path / "o.h5ad"
    arguments = ("annotate", tmp_path / "q.h5ad", "--model", model_folder, "-o", output, "-v")
    result = run(*arguments)
    assert result.code == 0
    assert "is stored by genes (CSC)" in result.err
    assert_same(ad.read_h5ad(output).obs, expected)


def test_work_goes_on_where_it_ended(
    run: Any,
    query: Path,
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: pd.DataFrame,
) -> None:
    """A call that fails after a part keeps the part, and nothing half-written."""
    from tosica.ondisk import PartAnnotator

    annotate, done = PartAnnotator.annotate, []

    def failing(self: PartAnnotator, part: int) -> None:
        if len(done) == 2:
            raise OSError(28, "No space left on device")
        done.append(part)
        annotate(self, part)

    output = tmp_path / "o.h5ad"
    arguments = ["annotate", query, "--model", model_folder, "-o", output, "--cells-per-part", 20]
    with monkeypatch.context() as patch:
        patch.setattr(PartAnnotator, "annotate", failing)
        result = run(*arguments)
    assert result.code == 1
    assert result.err.splitlines()[-1] == "tosica: error: No space left on device"
    assert not output.exists()
    assert run(*arguments, "--cells-per-part", 30).code == 1  # the parts are other ones
    done.clear()
    monkeypatch.setattr(PartAnnotator, "annotate", lambda *a: done.append(annotate(*a)))
    assert run(*arguments).code == 0
    assert len(done) == 1
    assert_same(ad.read_h5ad(output).obs, expected)
    assert not (tmp_path / "o.h5ad.parts").exists()


def test_parts_of_another_model_are_refused(
    run: Any, query: Path, model_folder: Path, tmp_path: Path, train: Any, toy: AnnData
) -> None:
    output = tmp_path / "o.h5ad"
    other = tmp_path / "other"
    train(toy, max_epochs=1).save(other)
    annotate_file(query, other, output, array_task=(0, 1))
    arguments = ["annotate", query, "--model", model_folder, "-o", output]
    result = run(*arguments, "--cells-per-part", 49_152)
    assert result.code == 1
    assert "was begun with another model: go on as it was begun, or pass --overwrite" in result.err
    assert run(*arguments, "--overwrite").code == 0


@pytest.mark.parametrize("output", ["o.h5ad", "o.zarr", "o.csv"])
def test_nothing_is_replaced_unasked(
    output: str, run: Any, query: Path, model_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / output
    path.write_text("kept")
    option = "--obs-out" if path.suffix == ".csv" else "-o"
    result = run("annotate", query, "--model", model_folder, option, path)
    assert result.code == 1
    assert result.err == (
        f"tosica: error: {str(path)!r} exists: pass --overwrite to replace it, or give another "
        "output.\n"
    )
    assert path.read_text() == "kept"
    assert run("annotate", query, "--model", model_folder, option, path, "--overwrite").code == 0
    assert path.is_dir() or path.read_bytes() != b"kept"


def wrong_inputs() -> list[Any]:
    return [
        pytest.param("q.txt", "model", "has no known suffix", id="unknown suffix"),
        pytest.param("nothing.h5ad", "model", "no file or folder", id="no such file"),
        pytest.param("folder", "model", "holds neither cells nor a model", id="empty folder"),
        pytest.param("model", "model", "is the folder of a model", id="model as query"),
        pytest.param("table.csv", "model", "is a table", id="table as query"),
        pytest.param("broken.h5ad", "model", "is damaged", id="damaged"),
        pytest.param("query.h5ad", "folder", "holds no model.pt", id="a model folder that is none"),
        pytest.param("query.h5ad", "nothing", "There is no folder", id="no model"),
        pytest.param("genes.h5ad", "model", "of the model's 30 genes", id="other genes"),
    ]


@pytest.mark.parametrize(("name", "model", "sentence"), wrong_inputs())
def test_wrong_input_exits_with_1_and_one_line(
    name: str,
    model: str,
    sentence: str,
    run: Any,
    query: Path,
    toy_query: AnnData,
    model_folder: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "folder").mkdir()
    shutil.copytree(model_folder, tmp_path / "model")
    for text in ("q.txt", "table.csv"):
        (tmp_path / text).write_text("x")
    (tmp_path / "broken.h5ad").write_bytes(query.read_bytes()[:5000])
    toy_query.var_names = [f"other{i}" for i in range(30)]
    toy_query.write_h5ad(tmp_path / "genes.h5ad")
    before = sorted(tmp_path.rglob("*"))
    output = tmp_path / "o.h5ad"
    result = run("annotate", tmp_path / name, "--model", tmp_path / model, "-o", output)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("tosica: error: ")
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_folder_that_does_not_exist(
    run: Any, query: Path, model_folder: Path, tmp_path: Path
) -> None:
    result = run("annotate", query, "--model", model_folder, "-o", tmp_path / "no" / "o.h5ad")
    assert result.code == 1
    assert "does not exist: create it first." in result.err


def test_scaled_cells_are_refused_with_the_option_that_helps(
    run: Any, toy_query: AnnData, model_folder: Path, tmp_path: Path
) -> None:
    toy_query.raw = toy_query.copy()
    toy_query.X = toy_query.X.toarray() - 1
    toy_query.write_h5ad(tmp_path / "q.h5ad")
    arguments = ["annotate", tmp_path / "q.h5ad", "--model", model_folder]
    result = run(*arguments, "-o", tmp_path / "o.h5ad")
    assert result.code == 1
    assert "Unscaled expression is in adata.raw (--use-raw" in result.err
    assert run(*arguments, "-o", tmp_path / "o.h5ad", "--use-raw").code == 0


def test_gpu_that_is_not_there(
    run: Any, query: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    arguments = ("annotate", query, "--model", model_folder, "-o", tmp_path / "o.h5ad")
    result = run(*arguments, "--device", "cuda:0")
    assert result.code == 1
    assert "--device 'gpu' was asked for, but torch finds no GPU here" in result.err


def test_choices_and_defaults_are_those_of_python() -> None:
    options = {p.name: p for p in cli.commands.commands["annotate"].params}
    assert tuple(options["precision"].type.choices) == get_args(Precision)  # type: ignore[attr-defined]
    defaults = annotate_file.__kwdefaults__
    for name in ("cutoff", "precision", "key_added"):
        assert options[name].default == defaults[name]
    shared = ("layer", "use_raw", "cutoff", "probabilities", "batch_size", "precision", "key_added")
    assert set(shared) <= set(options) & set(defaults)
