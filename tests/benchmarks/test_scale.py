"""The benchmark of large files: what its parts say, and that it can be run."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def scale(load_benchmark):
    return load_benchmark("scale")


def test_folders_are_compared_byte_by_byte(scale, tmp_path):
    for name in ("one", "other"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "file").write_bytes(b"same")
    assert scale.same_files(tmp_path / "one", tmp_path / "other")
    (tmp_path / "other" / "deep" / "file").write_bytes(b"else")
    assert not scale.same_files(tmp_path / "one", tmp_path / "other")
    (tmp_path / "one" / "more").touch()
    assert not scale.same_files(tmp_path / "one", tmp_path / "other")


def test_the_page_is_what_was_measured(scale, measured):
    result, page = measured("scale")
    assert page == scale.report(result)
    assert result["whole"]["same"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_runs(scale, tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "ANNOTATE", ("memory", "zarr"))
    monkeypatch.setattr(scale, "TRAIN", ("zarr",))
    monkeypatch.setattr(scale, "report", lambda result: "")
    monkeypatch.setattr(scale._scale_runs, "N_GENES", 600)
    monkeypatch.setattr(scale._scale_runs, "N_REFERENCE", 1000)
    options = ["--cells", "500", "--folder", str(tmp_path / "files")]
    scale.main([*options, "--out", str(tmp_path)])
    runs = json.loads((tmp_path / "scale.json").read_text())["runs"]
    assert [run["way"] for run in runs] == ["memory", "zarr", "zarr"]
    assert all(run["cells"] > 0 for run in runs)
