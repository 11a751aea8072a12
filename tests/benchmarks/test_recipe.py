"""The benchmark of the recipe: that its page is what was measured, and that it can be run."""

from __future__ import annotations

import json
from functools import partialmethod

import numpy as np
import pandas as pd
import pytest

import tosica


@pytest.fixture
def recipe(load_benchmark):
    return load_benchmark("recipe")


def test_the_page_is_what_was_measured(recipe, pages):
    result = json.loads((pages / "recipe.json").read_text())
    assert (pages / "recipe.md").read_text() == recipe.report(result)
    runs = pd.DataFrame(result["runs"])
    assert set(runs["variant"]) == {*recipe.VARIANTS, *recipe.PARTS}
    assert set(runs["query"]) == set(recipe.TITLES)
    assert set(runs["reference"]) == set(recipe.REFERENCES)


def test_a_batch_effect_changes_genes_and_no_label(recipe):
    adata = recipe.pbmc68k(None)[:60].copy()
    changed = recipe.batch_effect(adata, 0)
    assert changed.obs.equals(adata.obs)
    means = [np.asarray(np.expm1(x.X.toarray())).mean(0) for x in (adata, changed)]
    expressed = means[0] > 5
    ratio = np.log(means[1][expressed] + 1) - np.log(means[0][expressed] + 1)
    assert 0.5 < ratio.std() < 1.5


def test_parts_make_up_the_whole(recipe):
    reference = recipe.without_rarest(recipe.pbmc68k(None)[:300])
    model = recipe.train(reference.copy(), 0, max_epochs=1)
    found = recipe.logits(model, reference)
    n_cells = reference.obs[recipe.LABEL].value_counts()[model.labels].to_numpy()
    raised = np.log1p(20 / n_cells)
    network = found["network"]
    line = reference.X @ model.module.direct_weight.numpy().T + model.module.direct_bias.numpy()
    temperature = float(model.module.temperature)
    for part, wanted in {
        "default": (network + line) / temperature,
        "temperature": (network + line) / 5,
        "as rare": (network + line - raised) / temperature,
        "line": (line - raised) / 4,
        "once": (network + raised + (line - raised) / 4) / 2,
    }.items():
        difference = found[part] - wanted
        # Softmax does not see what is the same for all labels.
        difference -= difference.mean(1, keepdims=True)
        np.testing.assert_allclose(difference, 0, atol=1e-3)


def test_a_run(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tosica.TOSICA, "train", partialmethod(tosica.TOSICA.train, max_epochs=2))
    monkeypatch.setattr(recipe, "default_epochs", lambda n_cells: 4)
    monkeypatch.setattr(recipe, "REFERENCES", {"pbmc68k": recipe.REFERENCES["pbmc68k"]})
    variants = ["default", "length", "labels"]
    arguments = [str(tmp_path), "--seeds", "2", "--variants", *variants]

    recipe.main([*arguments, "--out", str(tmp_path)])

    assert "# What each part of the recipe brings" in capsys.readouterr().out
    result = json.loads((tmp_path / "recipe.json").read_text())
    assert (tmp_path / "recipe.md").read_text() == recipe.report(result)
    runs = pd.DataFrame(result["runs"])
    # With right labels two variants, named twice; with wrong ones two, named once.
    assert len(runs) == 2 * (2 * (2 + len(recipe.PARTS)) + 2 + len(recipe.PARTS))
    assert runs.loc[runs["variant"] == "line", "accuracy"].mean() > 0.7
    assert (runs["log-likelihood"] < 0).all()
    assert "nan" not in (tmp_path / "recipe.md").read_text()
    labels = pd.DataFrame(result["labels"])
    assert (labels["suspect"] < 0.07).all()
    assert (labels["found"] > 0.5).all()
