"""The benchmark of the recipe: its page is what was measured, and it runs."""

from __future__ import annotations

import json
from functools import partialmethod
from itertools import chain

import numpy as np
import pandas as pd
import pytest

import tosica


@pytest.fixture
def recipe(load_benchmark):
    return load_benchmark("recipe")


def test_the_page_is_what_was_measured(recipe, measured):
    result, page = measured("recipe")
    assert page == recipe.report(result)
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


def test_every_reference_is_of_a_kind(recipe):
    assert sorted(chain(*recipe.KINDS.values())) == sorted(recipe.REFERENCES)


def test_parts_make_up_the_whole(recipe):
    reference = recipe.without_rarest(recipe.pbmc68k(None)[:300])
    model = recipe.train(reference.copy(), 0, max_epochs=1)
    found = recipe.logits(model, reference)
    n_cells = reference.obs[recipe.LABEL].value_counts()[model.labels].to_numpy()
    adjustment = np.log1p(20 / n_cells)
    network, module = found["network"], model.module
    branch = reference.X @ module.linear.gene_weight.numpy().T + module.linear.bias.numpy()
    temperature, weight = float(module.temperature), recipe.linear_to_network_ratio(reference.n_obs)
    for part, wanted in {
        "default": (network + branch) / temperature,
        "temperature": (network + branch) / (1 + weight),
        "as rare": (network + branch - adjustment) / temperature,
        "linear": (branch - adjustment) / weight,
        "once": (network + adjustment + (branch - adjustment) / weight) / 2,
    }.items():
        difference = found[part] - wanted
        # Softmax does not see what is the same for all labels.
        difference -= difference.mean(1, keepdims=True)
        np.testing.assert_allclose(difference, 0, atol=1e-3)


def test_tokens_start_at_random_if_asked(recipe):
    reference = recipe.without_rarest(recipe.pbmc68k(None)[:200])
    settings = {"max_epochs": 1, "plan_kwargs": {"lr": 1e-9}, "refit": False}
    started, at_random = (
        recipe.train(reference.copy(), 0, start_at_random=asked, **settings).module.embedding
        for asked in (False, True)
    )
    # Biases of sets of several genes start at zero, unless the tokens start from scores.
    assert at_random.bias.abs().max() < 1e-3 < 0.1 < started.bias.abs().max()


def test_the_networks_gain_is_shown_by_the_kind_of_reference(recipe):
    of = {"query": "as they are", "macro-F1": 0.5, "log-likelihood": -1.0}
    runs = [
        {"reference": name, "seed": seed, "variant": part, "accuracy": accuracy, **of}
        for seed in range(2)
        for name, gain in {"gut": 0.1, "breast cells": 0.02, "breast nuclei": 0.0}.items()
        for part, accuracy in {"default": 0.8 + gain, "linear": 0.8}.items()
    ]
    page = "\n".join(recipe._by_kind(recipe.pd.DataFrame(runs)))
    small = "| small, other technology (breast, cells, breast, nuclei) | +1.0 ± 0.6 | +0.0 ± 0.0 |"
    assert small in page
    assert "| many labels (mouse gut) | +10.0 ± 0.0 | +0.0 ± 0.0 |" in page
    assert "blood" not in page


@pytest.mark.slow
def test_a_run(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tosica.TOSICA, "train", partialmethod(tosica.TOSICA.train, max_epochs=1))
    monkeypatch.setattr(recipe, "REFERENCES", {"pbmc68k": recipe.REFERENCES["pbmc68k"]})
    variants = ["default", "largest", "labels"]
    arguments = [str(tmp_path), "--seeds", "2", "--variants", *variants]

    recipe.main([*arguments, "--out", str(tmp_path)])

    assert "# What each part of the recipe contributes" in capsys.readouterr().out
    result = json.loads((tmp_path / "recipe.json").read_text())
    assert (tmp_path / "recipe.md").read_text() == recipe.report(result)
    runs = pd.DataFrame(result["runs"])
    # With right labels two variants, named twice; with wrong ones two, named once.
    assert len(runs) == 2 * (2 * (2 + len(recipe.PARTS)) + 2 + len(recipe.PARTS))
    assert runs.loc[runs["variant"] == "linear", "accuracy"].mean() > 0.7
    assert (runs["log-likelihood"] < 0).all()
    assert "nan" not in (tmp_path / "recipe.md").read_text()
    labels = pd.DataFrame(result["labels"])
    assert (labels["suspect"] < 0.07).all()
    assert (labels["found"] > 0.5).all()
