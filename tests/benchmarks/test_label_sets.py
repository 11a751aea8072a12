"""The benchmark of label sets: that its page is what was measured, and that it can be run."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def label_sets(load_benchmark):
    return load_benchmark("label_sets")


def test_the_page_is_what_was_measured(label_sets, measured):
    result, page = measured("label_sets")
    assert page == label_sets.report(result)
    assert {group["task"] for group in result["summary"]} == set(label_sets.ACROSS)
    assert all(group["seeds"] >= 5 for group in result["summary"])


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.filterwarnings("ignore")
def test_runs(label_sets, tmp_path, shared):
    options = ["--tasks", "lung", "--seeds", "1", "--draws", "2", "--epochs", "2"]
    label_sets.main([str(shared), *options, "--out", str(tmp_path)])
    summary = json.loads((tmp_path / "label_sets.json").read_text())["summary"]
    assert [(group["labeled"], group["draws"]) for group in summary] == [
        (0, 1),
        (10, 2),
        (20, 2),
        (50, 2),
        (100, 2),
    ]
    # Sets that are calibrated on cells of the query hold the label of about four in five.
    assert abs(summary[-1]["coverage 0.8"]["mean"] - 0.8) < 0.15
