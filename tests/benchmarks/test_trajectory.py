"""The benchmark of the trajectory: that its page is what was measured, and that it can be run."""

from __future__ import annotations

import json
from functools import partialmethod

import numpy as np
import pandas as pd
import pytest

import tosica


@pytest.fixture
def trajectory(load_benchmark):
    return load_benchmark("trajectory")


@pytest.fixture
def stage():
    return np.repeat(["MDP", "CDP", "PreDC"], [12, 20, 24])


def test_the_page_is_what_was_measured(trajectory, measured):
    result, page = measured("trajectory")
    assert page == trajectory.report(result)
    runs = pd.DataFrame(result["runs"])
    assert set(runs["task"]) == set(trajectory.TASKS)
    assert set(runs["order"]) == {*trajectory.ORDERS, "ceiling"}
    assert not runs.duplicated(["task", "seed", "half", "order"]).any()
    assert (runs.groupby(["task", "seed"])["half"].nunique() == 2).all()


def test_no_cell_is_trained_on_and_ordered(trajectory, stage):
    for labels in trajectory.TASKS.values():
        for train, held in trajectory.splits(stage, labels, seed=1):
            assert not set(train) & set(held)
            assert len(train) + len(held) == len(stage)
            assert set(stage[train]) == set(labels)
            assert set(stage[held]) == set(stage)
    halves = trajectory.splits(stage, trajectory.STAGES, seed=1)
    assert sorted(np.concatenate([held for _, held in halves])) == list(range(len(stage)))


def test_scores_of_known_orders(trajectory, stage):
    best = trajectory.ceiling(stage)
    assert best["first step"] == best["second step"] == 1
    assert 0.9 < best["spearman"] < 1
    order = np.arange(len(stage), dtype=float)
    assert trajectory.scores(order, stage) == pytest.approx(best)
    backwards = trajectory.scores(-order, stage)
    assert backwards["kendall"] == pytest.approx(-best["kendall"])
    assert backwards["first step"] == backwards["second step"] == 0
    # A cell that the graph does not reach comes last.
    order[0] = np.inf
    lost = trajectory.scores(order, stage)
    assert lost["first step"] == pytest.approx(1 - 1 / 12)
    assert lost["second step"] == 1


def test_pseudotime_begins_with_the_first_stage(trajectory, stage):
    rng = np.random.default_rng(0)
    line = np.linspace(0, 10, len(stage))[:, None] + rng.normal(0, 0.1, (len(stage), 3))
    order = trajectory.pseudotime(line, stage)
    assert stage[order.argmin()] == "MDP"
    assert trajectory.scores(order, stage)["second step"] > 0.95


def test_mean_stage_is_between_the_labels(trajectory):
    two = pd.DataFrame({"MDP": [1, 0.5, 0], "PreDC": [0, 0.5, 1]})
    np.testing.assert_allclose(trajectory.mean_stage(two), [0, 1, 2])


@pytest.mark.slow
def test_a_run(trajectory, cells, tmp_path, monkeypatch, capsys):
    stages = np.array(trajectory.STAGES)[np.arange(cells.n_obs) % 3]
    cells.obs["stage"] = pd.Categorical(stages, categories=trajectory.STAGES)
    monkeypatch.setattr(tosica.datasets, "dc_progenitors", lambda: cells)
    monkeypatch.setattr(tosica.TOSICA, "train", partialmethod(tosica.TOSICA.train, max_epochs=2))
    arguments = ["--seeds", "1", "--tasks", "without CDP", "--out", str(tmp_path)]

    trajectory.main(arguments)

    assert "# Trajectory" in capsys.readouterr().out
    result = json.loads((tmp_path / "trajectory.json").read_text())
    assert (tmp_path / "trajectory.md").read_text() == trajectory.report(result)
    runs = pd.DataFrame(result["runs"])
    assert len(runs) == 2 * (len(trajectory.ORDERS) + 1)
    assert runs[[*trajectory.SCORES]].notna().all(axis=None)
    # A second run has nothing to do.
    monkeypatch.setattr(trajectory, "one_run", None)
    trajectory.main(arguments)
    assert json.loads((tmp_path / "trajectory.json").read_text())["runs"] == result["runs"]
