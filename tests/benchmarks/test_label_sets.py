"""The benchmark of label sets: that its page is what was measured, and that it can be run."""

from __future__ import annotations

import json

import pandas as pd
import pytest


@pytest.fixture
def label_sets(load_benchmark):
    return load_benchmark("label_sets")


def test_the_page_is_what_was_measured(label_sets, measured):
    result, page = measured("label_sets")
    assert page == label_sets.report(result)
    runs = pd.DataFrame(result["runs"])
    assert set(runs["task"]) == set(label_sets.ACROSS)
    assert runs["seed"].nunique() >= 5


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.filterwarnings("ignore")
def test_runs(label_sets, tmp_path, shared):
    options = ["--tasks", "lung", "--seeds", "1", "--draws", "2", "--epochs", "2"]
    label_sets.main([str(shared), *options, "--out", str(tmp_path)])
    runs = pd.DataFrame(json.loads((tmp_path / "label_sets.json").read_text())["runs"])
    assert list(runs["labeled"]) == [0, 10, 10, 20, 20, 50, 50, 100, 100]
    assert runs["coverage 0.8"].dropna().between(0, 1).all()
