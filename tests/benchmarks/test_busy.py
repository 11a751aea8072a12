"""The benchmark beside busy processes: its page is what was measured, and it can be run."""

from __future__ import annotations

import json
from functools import partialmethod

import pandas as pd
import pytest

import tosica


@pytest.fixture
def busy(load_benchmark):
    return load_benchmark("busy")


def test_the_page_is_what_was_measured(busy, measured):
    result, page = measured("busy")
    assert page == busy.report(result)
    runs = pd.DataFrame(result["runs"])
    assert set(runs["task"]) == set(busy.TASKS)
    assert set(runs["threads"]) == set(busy.THREADS)
    assert set(runs["busy"]) == {0, 3}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_runs(busy, tmp_path, monkeypatch):
    quick = partialmethod(tosica.TOSICA.train, check_labels=False, refit=False)
    monkeypatch.setattr(tosica.TOSICA, "train", quick)
    options = ["--tasks", "annotate", "--busy", "1", "--repeats", "1", "--cells", "100"]
    busy.main([*options, "--out", str(tmp_path)])
    runs = json.loads((tmp_path / "busy.json").read_text())["runs"]
    assert [run["threads"] for run in runs] == ["one", "all"]
    assert all(run["processor"] > 0 for run in runs)
