"""The benchmark of killed processes: that its page is what was measured, and that it can be run."""

from __future__ import annotations

import json
import os

import pytest


@pytest.fixture
def killing(load_benchmark):
    return load_benchmark("kill")


def test_the_page_is_what_was_measured(killing, measured):
    result, page = measured("kill")
    assert page == killing.report(result)
    assert list(result["operations"]) == list(killing.OPERATIONS)
    for of in result["operations"].values():
        counts = of["counts"]
        assert counts["old"] + counts["new"] == result["n_kills"] == 50
        assert counts["broken"] == counts["left after success"] == 0
        assert of["errors"] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(os.name == "nt", reason="Windows has no fork")
def test_runs(killing, tmp_path, monkeypatch):
    # Models are for other operations.
    for name in ("make_model", "make_annotated", "figure"):
        monkeypatch.setattr(killing, name, lambda _: None)
    killing.main(
        ["--operations", "write_synthetic", "download", "--kills", "3", "--out", str(tmp_path)]
    )
    result = json.loads((tmp_path / "kill.json").read_text())
    for of in result["operations"].values():
        assert of["counts"]["old"] + of["counts"]["new"] == 3
        assert of["counts"]["broken"] == of["counts"]["left after success"] == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(os.name == "nt", reason="Windows has no fork")
def test_what_is_half_is_noticed(killing, tmp_path, monkeypatch):
    """If a file is written in place."""

    def in_place(folder, mark, name=killing.NEW):
        mark()
        with (folder / "cells.h5ad").open("wb") as file:
            for _ in range(200):
                file.write(b"x" * 100)
                file.flush()
                killing.time.sleep(0.001)

    slow = killing.OPERATIONS["write_synthetic"]._replace(run=in_place)
    monkeypatch.setitem(killing.OPERATIONS, "write_synthetic", slow)
    for name in ("make_model", "make_annotated", "figure"):
        monkeypatch.setattr(killing, name, lambda _: None)
    with pytest.raises(SystemExit, match="left what is neither the old state nor the new one"):
        killing.main(["--operations", "write_synthetic", "--kills", "2", "--out", str(tmp_path)])
    counts = json.loads((tmp_path / "kill.json").read_text())["operations"]["write_synthetic"]
    assert counts["counts"]["broken"] == 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(os.name == "nt", reason="Windows has no fork")
def test_operations_that_end_too_early_are_not_counted(killing, monkeypatch):
    ended = killing.OPERATIONS["write_synthetic"]._replace(
        prepare=killing.nothing, run=lambda _, mark: mark(), state=lambda _: killing.OLD
    )
    monkeypatch.setitem(killing.OPERATIONS, "write_synthetic", ended)
    monkeypatch.setattr(killing, "kill", lambda *_, **__: False)
    with pytest.raises(RuntimeError, match="write_synthetic had ended 100 times"):
        killing.measure("write_synthetic", 1, killing.np.random.default_rng(0))
