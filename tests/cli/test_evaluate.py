"""``tosica evaluate`` and ``tosica report``: annotated files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anndata as ad
import pytest

import tosica

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anndata import AnnData


@pytest.fixture
def annotated(toy_query: AnnData, toy_model: tosica.TOSICA, tmp_path: Path) -> Path:
    toy_model.annotate(toy_query)
    path = tmp_path / "annotated.h5ad"
    toy_query.write_h5ad(path)
    return path


@pytest.fixture
def other_model(toy: AnnData, train: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "other"
    train(toy, max_epochs=1).save(folder)
    return folder


@pytest.mark.parametrize("ending", [".h5ad", ".zarr", ".csv", ".tsv", ".parquet"])
def test_scores_are_those_of_python(
    ending: str, run: Any, annotated: Path, write: Callable[[AnnData, Path], None]
) -> None:
    adata = ad.read_h5ad(annotated)
    path = annotated.with_suffix(ending)
    if ending == ".zarr":
        write(adata, path)
    elif ending == ".parquet":
        adata.obs.to_parquet(path)
    elif ending != ".h5ad":
        adata.obs.to_csv(path, sep="," if ending == ".csv" else "\t")
    expected = tosica.tl.evaluate(adata, "kind")
    result = run("evaluate", path, "--labels-key", "kind", "--json")
    found = json.loads(result.out)
    assert found["accuracy"] == pytest.approx(expected.summary["accuracy"].iloc[0])
    assert found["macro_f1"] == pytest.approx(expected.summary["macro_f1"].iloc[0])
    assert found["per_class"]["a"]["recall"] == pytest.approx(expected.per_class["recall"]["a"])
    assert found["confusion"]["a"]["a"] == expected.confusion.loc["a", "a"]
    assert found["n_cells"] == 60


def test_text_is_that_of_python(run: Any, annotated: Path) -> None:
    result = run("evaluate", annotated, "--labels-key", "kind")
    expected = tosica.tl.evaluate(ad.read_h5ad(annotated), "kind")
    assert result == (0, f"{expected!r}\n", "")


def test_what_cannot_be_computed_is_null(run: Any, annotated: Path) -> None:
    adata = ad.read_h5ad(annotated)
    adata.obs["all_a"] = "a"
    adata.write_h5ad(annotated)
    arguments = ("evaluate", annotated, "--labels-key", "kind", "--prediction", "all_a", "--json")
    found = json.loads(run(*arguments).out)
    assert found["expected_calibration_error"] is None
    assert found["per_class"]["b"]["precision"] is None


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--labels-key", "kinds"], "no column 'kinds'"),
        (["--labels-key", "kind", "--key", "nobody"], "'nobody_prediction'"),
    ],
)
def test_wrong_columns(more: list[str], sentence: str, run: Any, annotated: Path) -> None:
    result = run("evaluate", annotated, *more)
    assert result.code == 1
    assert sentence in result.err
    assert result.err.count("\n") == 1


def test_an_annotated_file_from_another_model(
    run: Any, annotated: Path, model_folder: Path, other_model: Path
) -> None:
    arguments = ["evaluate", annotated, "--labels-key", "kind", "--model"]
    assert run(*arguments, model_folder).code == 0
    result = run(*arguments, other_model)
    assert result.code == 1
    assert "was annotated by another model" in result.err


def test_a_file_that_does_not_name_its_model(run: Any, query: Path, model_folder: Path) -> None:
    result = run("evaluate", query, "--labels-key", "kind", "--model", model_folder)
    assert result.code == 1
    assert "does not say under uns['tosica'] which model has annotated it" in result.err


def test_report_is_that_of_python(
    run: Any, annotated: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = annotated.with_name("report.html")

    def write(adata: AnnData, path: Path, **options: Any) -> None:
        assert options.pop("model").fingerprint == adata.uns["tosica"]["model"]
        assert options == {
            "key": "tosica",
            "labels_key": "kind",
            "sample_key": None,
            "layer": None,
            "use_raw": False,
            "title": "Sample 1",
        }
        path.write_text(f"{adata.n_obs} cells")

    monkeypatch.setattr(tosica, "report", write)
    arguments = ["report", annotated, "-o", page, "--model", model_folder, "--json"]
    arguments += ["--labels-key", "kind", "--title", "Sample 1"]
    result = run(*arguments)
    assert json.loads(result.out) == {
        "annotated": str(annotated),
        "report": str(page),
        "n_cells": 60,
    }
    assert page.read_text() == "60 cells"
    assert run(*arguments).code == 1
    assert run(*arguments, "--overwrite").code == 0


def test_report_of_another_model(
    run: Any, annotated: Path, other_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tosica, "report", pytest.fail)
    page = annotated.with_name("report.html")
    result = run("report", annotated, "-o", page, "--model", other_model)
    assert result.code == 1
    assert "was annotated by another model" in result.err
    assert not page.exists()


@pytest.mark.slow  # a UMAP is computed
def test_report_writes_the_page(run: Any, annotated: Path, model_folder: Path) -> None:
    page = annotated.with_name("report.html")
    result = run("report", annotated, "-o", page, "--model", model_folder)
    assert result.code == 0, result.err
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
