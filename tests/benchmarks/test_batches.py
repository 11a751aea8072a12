"""The benchmark of batches: that its page is what was measured, and that it can be run."""

from __future__ import annotations

import json
from functools import partialmethod

import numpy as np
import pandas as pd
import pytest

import tosica


@pytest.fixture
def batches(load_benchmark):
    return load_benchmark("batches")


@pytest.fixture
def cells(batches):
    """Two types that are easily told apart, in two batches."""
    adata = tosica.datasets.synthetic(160, 200, n_labels=2, n_batches=2, n_gene_sets=10, seed=0)
    return batches.prepared(adata, "cell_type", "batch")


def test_the_page_is_what_was_measured(batches, measured):
    result, page = measured("batches")
    assert page == batches.report(result)
    runs = pd.DataFrame(result["runs"])
    assert set(runs["task"]) == set(batches.TASKS)
    assert set(runs["method"]) == {*batches.OURS, *batches.PEERS}
    assert not runs.duplicated(["task", "split", "method"]).any()


def test_a_label_of_a_batch_is_the_query(batches, cells):
    splits = dict(batches.lacking(cells))
    assert len(splits) == 4
    for split in splits.values():
        assert split.reference.n_obs + split.query.n_obs == cells.n_obs
        pair = split.query.obs[["label", "batch"]].drop_duplicates()
        assert len(pair) == 1
        assert not (split.reference.obs[["label", "batch"]] == pair.iloc[0]).all(axis=1).any()
        # Which are elsewhere in the reference, both of them.
        for name in ("label", "batch"):
            assert pair[name].iloc[0] in set(split.reference.obs[name])


def test_the_last_of_more_batches_is_the_query(batches, cells):
    cells.obs["batch"] = np.arange(cells.n_obs) % 3
    ((name, split),) = batches.whole(cells)
    assert name == 2
    assert set(split.query.obs["batch"]) == {2}
    assert set(split.reference.obs["batch"]) == {0, 1}


def test_a_run(batches, cells, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tosica.TOSICA, "train", partialmethod(tosica.TOSICA.train, max_epochs=2))
    task = ("two types", lambda _: cells, batches.lacking)
    monkeypatch.setattr(batches, "TASKS", {"toy": task})
    monkeypatch.setattr(batches, "PEERS", ("logistic",))
    methods = [*batches.OURS, "logistic"]

    batches.main([str(tmp_path), "--methods", *methods, "--no-embeddings", "--out", str(tmp_path)])

    assert "# Batches" in capsys.readouterr().out
    result = json.loads((tmp_path / "batches.json").read_text())
    assert (tmp_path / "batches.md").read_text() == batches.report(result)
    runs = pd.DataFrame(result["runs"])
    assert len(runs) == 4 * 3
    assert runs["right"].between(0, 1).all()
    split = dict(batches.lacking(cells))["type_1, batch_1"]
    (of_split,) = runs.query("split == 'type_1, batch_1' and method == 'logistic'")["right"]
    assert of_split == batches.right(split, "logistic")
    assert 0 < of_split < 1
    # A second run has nothing to do, but for what is asked for again.
    monkeypatch.setattr(batches, "right", lambda split, method: {"logistic": 0.125}[method])
    arguments = [str(tmp_path), "--methods", *methods, "--no-embeddings", "--out", str(tmp_path)]
    batches.main(arguments)
    assert json.loads((tmp_path / "batches.json").read_text())["runs"] == result["runs"]
    batches.main([*arguments, "--again", "logistic"])
    again = json.loads((tmp_path / "batches.json").read_text())["runs"]
    assert again == [
        run | {"right": 0.125} if run["method"] == "logistic" else run for run in result["runs"]
    ]
