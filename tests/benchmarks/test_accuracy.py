"""The accuracy benchmark: that its page is what was measured, and that it can be run."""

from __future__ import annotations

import json
from functools import partialmethod

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy.sparse import csr_matrix

import tosica


@pytest.fixture
def accuracy(load_benchmark):
    return load_benchmark("accuracy")


@pytest.fixture
def tasks(load_benchmark):
    return load_benchmark("_accuracy_tasks")


@pytest.fixture
def cells(tasks):
    """Three types, each with genes of its own."""
    rng = np.random.default_rng(0)
    kind = np.arange(90) % 3
    genes = sorted(tosica.gs.load("human_gobp")["glycolytic process"])[:30]
    rate = np.full((len(kind), len(genes)), 0.5)
    for i in range(3):
        rate[kind == i, 10 * i : 10 * i + 8] = 5
    adata = AnnData(csr_matrix(rng.poisson(rate).astype(np.float32)))
    adata.var_names = genes
    adata.obs["kind"] = np.array(list("abc"))[kind]
    adata.obs["batch"] = np.where(np.arange(len(kind)) % 2, "odd", "even")
    return tasks.prepared(adata, "kind", "batch")


def test_the_page_is_what_was_measured(accuracy, measured):
    result, page = measured("accuracy")
    assert page == accuracy.report(result)
    runs = pd.DataFrame(result["runs"])
    assert set(runs["task"]) == set(accuracy.TASKS)
    assert set(runs["method"]) == set(accuracy.METHODS)
    n_seeds = runs.groupby("method")["seed"].nunique()
    assert (n_seeds.drop(["literal", "scanvi"]) >= 5).all()


def test_the_other_page_is_what_was_measured_too(accuracy, measured, pages):
    result, page = measured("accuracy_unseen")
    assert page == accuracy.report(result)
    runs = pd.DataFrame(result["runs"])
    assert set(runs["task"]) == set(accuracy.UNSEEN)
    assert not set(accuracy.UNSEEN) & set(accuracy.TASKS)
    listed = pd.DataFrame(json.loads((pages / "accuracy.json").read_text())["runs"])
    assert not set(runs["seed"]) & set(listed["seed"])
    assert (runs.groupby(["task", "method"])["seed"].nunique() >= 5).all()


def test_the_error_by_chance_is_that_of_labels_drawn_so(accuracy):
    rng = np.random.default_rng(1)
    probability = rng.uniform(0.2, 1, 400)
    errors = []
    for _ in range(100):
        obs = pd.DataFrame({"tosica_probability": probability}, index=map(str, range(400)))
        obs["tosica_prediction"] = "a"
        obs["label"] = np.where(rng.random(400) < probability, "a", "b")
        summary = tosica.tl.evaluate(AnnData(obs=obs), "label", n_bins=15).summary
        errors.append(summary["expected_calibration_error"].iloc[0])
    found = accuracy.error_by_chance(probability)
    assert found == pytest.approx(np.mean(errors), abs=0.005)
    # The more cells, the less is left to chance; certainty leaves nothing to it.
    assert accuracy.error_by_chance(np.tile(probability, 25)) < found / 4
    assert accuracy.error_by_chance(np.ones(50)) == 0


def test_other_tasks_have_a_page_and_seeds_of_their_own(
    accuracy, tasks, cells, tmp_path, monkeypatch, capsys
):
    made = {"else": tasks.Task("elsewhere", True, lambda data, seed: tasks.few(cells, 60, seed))}
    monkeypatch.setattr(accuracy, "UNSEEN", made)
    arguments = [str(tmp_path), "--unseen", "--seeds", "2", "--methods", "logistic"]

    accuracy.main([*arguments, "--out", str(tmp_path)])

    assert "# Accuracy on other data" in capsys.readouterr().out
    result = json.loads((tmp_path / "accuracy_unseen.json").read_text())
    assert [(run["task"], run["seed"]) for run in result["runs"]] == [("else", 5), ("else", 6)]
    assert not (tmp_path / "accuracy.json").exists()
    with pytest.raises(SystemExit):
        accuracy.main([*arguments, "--tasks", "kang", "--out", str(tmp_path)])
    assert "--tasks is of else here" in capsys.readouterr().err


def test_splits_share_no_cell(tasks, cells):
    of_folds = tasks.folds(cells, 0)
    for split in [*of_folds, *tasks.across(cells, "odd"), *tasks.few(cells, 30, 0)]:
        names = [set(part.obs_names) for part in split]
        assert not names[0] & names[1]
        assert len(names[0] | names[1]) == cells.n_obs
    assert sum(split.query.n_obs for split in of_folds) == cells.n_obs


def test_only_the_reference_has_wrong_labels(tasks, cells):
    ((clean, query),) = tasks.across(cells, "odd")
    ((noisy, same),) = tasks.noisy(tasks.across(cells, "odd"), 0)
    wrong = (clean.obs["label"].astype(str) != noisy.obs["label"].astype(str)).mean()
    assert wrong == pytest.approx(tasks.NOISE, abs=0.02)
    assert query.obs["label"].equals(same.obs["label"])


def test_a_query_may_be_kept_to_the_types_of_its_reference(tasks, cells):
    ((reference, query),) = tasks.across(cells, "odd")
    known = reference[(reference.obs["label"] != "b").to_numpy()].copy()
    ((same, kept),) = tasks.of_known_types([tasks.Split(known, query)])
    assert same is known
    assert set(kept.obs["label"]) == {"a", "c"}
    assert kept.n_obs == (query.obs["label"] != "b").sum()


@pytest.mark.parametrize("name", ["svm", "svm scaled"])
def test_labels_of_few_cells_are_those_of_the_support_vectors(
    load_benchmark, tasks, cells, name, monkeypatch
):
    methods = load_benchmark("_accuracy_methods")
    taught = []

    class Watched(methods.LinearSVC):
        def predict(self, x):
            taught.append(self.classes_[self.decision_function(x).argmax(1)])
            return taught[-1]

    monkeypatch.setattr(methods, "LinearSVC", Watched)
    # Three cells of each label.
    first = np.arange(cells.n_obs) < 9
    found = methods.quietly(methods.METHODS[name][1], cells[first], cells[~first], 0)
    assert found.columns.tolist() == ["a", "b", "c"]
    assert found.index.equals(cells.obs_names[~first])
    np.testing.assert_array_equal(found.idxmax(axis=1), taught[-1])
    np.testing.assert_allclose(found.sum(axis=1), 1)


def test_platts_labels_are_those_of_the_highest_sigmoid(load_benchmark, cells):
    methods = load_benchmark("_accuracy_methods")
    first = np.arange(cells.n_obs) % 2 == 0
    own, platt = (
        methods.quietly(methods.METHODS[name][1], cells[first], cells[~first], 0)
        for name in ("svm", "svm platt")
    )
    np.testing.assert_allclose(np.sort(own), np.sort(platt))
    np.testing.assert_allclose(own.max(axis=1), platt.max(axis=1))


def test_a_task_without_peers_is_beside_nobody(accuracy):
    score = {"task": "kang", "method": "tosica", "seed": 0, "covered": {}}
    score |= dict.fromkeys([*accuracy.METRICS, accuracy.BY_CHANCE], 0.9)
    runs = [score, score | {"method": "svm", "accuracy": 0.8}, score | {"task": "gut"}]
    page = accuracy.report({"runs": runs, "unseen": False, "versions": {}})
    assert "| Kang, control → IFN-β | linear SVM | +10.0 |" in page
    assert "| mouse gut, 22 types, halves | linear SVM" not in page
    # What was not run is blank, and has no mean over all tasks.
    assert "| linear SVM | 0.800 |  |" in page
    assert "linear SVM" not in page.partition("Difference to the best other")[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of so few steps and cells
def test_a_run(accuracy, tasks, cells, tmp_path, monkeypatch, capsys):
    made = {
        "within": tasks.Task("made", True, lambda data, seed: tasks.few(cells, 60, seed)),
        "across": tasks.Task("made, across", False, lambda data, seed: tasks.across(cells, "odd")),
    }
    monkeypatch.setattr(accuracy, "TASKS", made)
    methods = ["tosica", "logistic", "svm", "svm platt", "svm scaled", "knn", "literal"]
    monkeypatch.setattr(tosica.TOSICA, "train", partialmethod(tosica.TOSICA.train, 20))
    arguments = [str(tmp_path), "--seeds", "2", "--out", str(tmp_path), "--methods", *methods]

    accuracy.main(arguments)

    assert "# Accuracy" in capsys.readouterr().out
    result = json.loads((tmp_path / "accuracy.json").read_text())
    assert (tmp_path / "accuracy.md").read_text() == accuracy.report(result)
    runs = pd.DataFrame(result["runs"])
    assert len(runs) == 2 * 2 * len(methods)
    page = (tmp_path / "accuracy.md").read_text()
    assert "| **tosica**, if its probabilities were exact | 0." in page
    by_method = runs.groupby("method")["accuracy"].mean()
    assert by_method.drop("literal").min() > 0.9
    assert by_method["literal"] < by_method["tosica"]
    # What is there is not measured again, unless asked for.
    accuracy.main([*arguments, "--again", "knn"])
    again = json.loads((tmp_path / "accuracy.json").read_text())
    old = [run for run in result["runs"] if run["method"] != "knn"]
    assert [run for run in again["runs"] if run["method"] != "knn"] == old
    assert len(again["runs"]) == len(result["runs"])
    # Nothing is lost that is not measured in this run.
    others = [*arguments[:-5], "svm"]
    accuracy.main([*others, "--again", "knn"])
    kept = json.loads((tmp_path / "accuracy.json").read_text())
    assert len(kept["runs"]) == len(result["runs"])
