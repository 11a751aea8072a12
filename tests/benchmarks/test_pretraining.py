"""The benchmark of pretraining: that its page is what was measured, and that it can be run."""

from __future__ import annotations

import json
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest

import tosica


@pytest.fixture
def pretraining(load_benchmark):
    return load_benchmark("pretraining")


@pytest.fixture
def page(load_benchmark):
    return load_benchmark("_pretraining_page")


@pytest.fixture
def few_labels(load_benchmark):
    return load_benchmark("_few_labels")


def test_the_page_is_what_was_measured(pretraining, page, measured):
    result, text = measured("pretraining")
    assert text == pretraining.report(result)
    runs = pd.DataFrame(result["runs"])
    of_gate = runs[runs["labeled"].isin(page.GATE_SIZES) & runs["method"].isin(page.ARMS)]
    assert (of_gate.groupby(["task", "labeled", "method"])["seed"].nunique() >= 5).all()
    assert all(page.ships(runs, arm) is not None for arm in page.ARMS)
    tried = {run["seed"] for run in result["tried"]}
    assert not tried & set(runs["seed"])


def test_labels_are_drawn_of_each_type(few_labels, cells):
    cells.obs[few_labels.BATCH] = np.where(np.arange(cells.n_obs) < 60, "one", "other")
    task = few_labels.FewLabelsTask("", lambda _: cells, "one", (5,))
    split = few_labels.draw(cells, task, 5, 0)
    assert split.labeled.obs[few_labels.LABEL].value_counts().tolist() == [5, 5, 5]
    assert set(split.unlabeled.obs[few_labels.BATCH]) == {"one"}
    assert set(split.query.obs[few_labels.BATCH]) == {"other"}
    assert sorted(few_labels.all_cells(split).obs_names) == sorted(cells.obs_names)
    # Of twenty cells of a type at most ten.
    assert few_labels.draw(cells, task, 50, 0).labeled.n_obs == 30
    everywhere = few_labels.draw(cells, task._replace(batch=None), 5, 0)
    assert (everywhere.unlabeled.n_obs, everywhere.query.n_obs) == (0, 105)


def test_hidden_genes_are_reconstructed(load_benchmark, cells):
    pretrain = load_benchmark("_pretrain")
    with warnings.catch_warnings(action="ignore"):
        tosica.pp.build_mask(cells, max_gene_sets=20)
        tosica.TOSICA.setup_anndata(cells, labels_key="label")
        model = tosica.TOSICA(cells, embed_dim=16)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    explained = pretrain.pretrain(model, [cells], steps=60, lr=1e-2)
    assert 0.02 < explained < 1
    changed = {
        name.split(".")[0]
        for name, value in model.module.state_dict().items()
        if not value.equal(before[name])
    }
    assert changed == {"embedding", "encoder"}
    model.train(max_epochs=1, accelerator="cpu", enable_progress_bar=False)


def test_the_gate_asks_for_gains_on_two_tasks(page):
    tasks = ("kang", "pbmc68k")

    def runs(gains, n_seeds=5):
        return pd.DataFrame(
            {"task": task, "labeled": n, "seed": seed, "method": method, "macro-F1": 0.5 + gain}
            for task in tasks
            for n in page.GATE_SIZES
            for seed in range(n_seeds)
            for method, gain in {"train": 0, "svm": -0.1, "pretrained": gains[task, n]}.items()
        )

    enough = {(task, n): 0.011 for task in tasks for n in page.GATE_SIZES}
    assert page.ships(runs(enough), "pretrained")
    assert not page.ships(runs(enough), "distilled")
    assert page.ships(runs(enough, n_seeds=4), "pretrained") is None
    for at in enough:
        less = runs(enough | {at: 0.009})
        assert page.ships(less, "pretrained") is False
        assert page.passed(less, "pretrained")[at[0]] is False


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.filterwarnings("ignore")
def test_runs(pretraining, monkeypatch, tmp_path, shared):
    what, run = pretraining.METHODS["pretrained"]
    monkeypatch.setitem(pretraining.METHODS, "pretrained", (what, partial(run, steps=2)))
    names = ["train", "pretrained", "distilled", "svm"]
    options = ["--tasks", "pbmc68k", "--sizes", "5", "--seeds", "2", "--epochs", "1"]
    arguments = [str(shared), *options, "--settings", "--out", str(tmp_path)]

    pretraining.main([*arguments, "--methods", *names[:2]])
    pretraining.main([*arguments, "--methods", *names])

    result = json.loads((tmp_path / "pretraining.json").read_text())
    assert len(result["runs"]) == 2 * len(names)
    text = (tmp_path / "pretraining.md").read_text()
    assert text == pretraining.report(result)
    assert "nan" not in text
