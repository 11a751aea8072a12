"""The script that tries the public census says what it finds, here of small ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("cellxgene_census", reason="needs the extra census")

from _small_census import VERSION, make_census

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "try_census.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("try_census", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_census_that_is_like_the_small_one(script, small_census, capsys):
    steps = ["layout", "count", "download"]
    assert script.main(["--tissue", "glow organ", "--steps", *steps]) == 0
    lines = capsys.readouterr().out
    assert f"release {VERSION}, schema 2.4.0; tosica was written for 2.4.0" in lines
    assert "columns and types are those of the small census" in lines
    assert "5 types of 430 cells" in lines
    assert "100 cells × 5,199 genes of 2 data sets" in lines


@pytest.mark.filterwarnings("ignore:.*follows version 9")
def test_what_differs_is_named_and_does_not_stop_the_run(
    script, tmp_path, monkeypatch, capsys
):
    folder = make_census(
        tmp_path / "soma", schema="9.0.0", without="nnz", organisms=["homo_sapiens"]
    )
    monkeypatch.setenv("TOSICA_CENSUS", str(folder))
    steps = ["count", "layout"]
    assert script.main(["--tissue", "glow organ", "--steps", *steps]) == 1
    lines = capsys.readouterr().out
    assert "FAILED: ValueError" in lines
    assert "schema 9.0.0; tosica was written for 2.4.0" in lines
    assert "obs has no nnz (int64)" in lines
