"""The page of many labels: that it is what was measured, and that it can be run."""

from __future__ import annotations

import json
import sys

import pandas as pd
import pytest


@pytest.fixture
def many_labels(load_benchmark):
    return load_benchmark("many_labels")


def test_the_page_is_what_was_measured(many_labels, measured):
    result, page = measured("many_labels")
    assert page == many_labels.report(result)
    runs = pd.DataFrame(result["runs"])
    assert tuple(dict.fromkeys(runs["labels"])) == many_labels.N_LABELS
    # What the page is for: under two minutes and four gigabytes.
    assert runs.groupby("labels")["seconds"].sum().max() < 120
    assert runs["megabytes"].max() < 4096


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_a_run(many_labels, tmp_path, monkeypatch, capsys):
    def run(call, **_):
        # In this process: another one would take seconds to import torch.
        many_labels.main(call[3:])
        return many_labels.subprocess.CompletedProcess(call, 0, capsys.readouterr().out)

    monkeypatch.setattr(many_labels.subprocess, "run", run)
    small = ["--cells", "200", "--genes", "600", "--out", str(tmp_path)]

    many_labels.main(["--labels", "4", "6", *small])

    assert "# The linear part of a training" in capsys.readouterr().out
    result = json.loads((tmp_path / "many_labels.json").read_text())
    assert (tmp_path / "many_labels.md").read_text() == many_labels.report(result)
    runs = pd.DataFrame(result["runs"])
    for n_labels in (4, 6):
        of = runs[runs["labels"] == n_labels]
        assert of["stage"].to_list() == list(many_labels.STAGES)
        assert of["seconds"].gt(0).all()
        assert of["megabytes"].between(50, 10_000).all()
