"""The benchmark of the linear branch: it measures the model's own, and it runs."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def linear(load_benchmark):
    return load_benchmark("linear")


@pytest.fixture
def recipe(load_benchmark):
    return load_benchmark("recipe")


def test_the_page_is_what_was_measured(linear, measured):
    result, page = measured("linear")
    assert page == linear.report(result)
    runs = pd.DataFrame(result["runs"])
    assert set(runs["variant"]) == set(linear.VARIANTS)
    assert set(runs["reference"]) == set(linear.references())


def test_the_default_is_the_models(linear, recipe):
    adata = linear.made_up(3)(None)
    adata.obs["label"] = adata.obs["label"].cat.remove_unused_categories()
    ((reference, query),) = linear.few(adata, 200, 0)
    model = recipe.train(reference.copy(), 0, max_epochs=1, check_labels=False)
    of_model = recipe.logits(model, query)["linear"]
    codes = pd.Index(model.labels).get_indexer(reference.obs["label"].astype(str))
    tokens = linear.tokens_of(reference)
    share = linear.cross_validated_share(reference, codes, tokens)
    score = linear.VARIANTS["default"].fit(reference.X, codes, tokens, share)
    upper = reference.X.max(0).toarray()
    found = score(np.minimum(query.X.toarray(), upper)) + linear.logit_adjustment(codes)
    # The model's are divided by a temperature, and the same may be added to all labels.
    found -= found.mean(1, keepdims=True)
    of_model = of_model - of_model.mean(1, keepdims=True)
    temperature = (found * of_model).sum() / (of_model**2).sum()
    assert 1 < temperature < 4
    np.testing.assert_allclose(of_model * temperature, found, atol=0.01)


def test_a_size_is_at_most_two_thirds_of_a_reference(linear):
    cells = linear.made_up(3)(None)
    assert linear.sizes_of(cells) == {50: 50, 200: 200, 500: 500}
    assert linear.sizes_of(cells[:120]) == {50: 50, 200: 80}
    assert linear.sizes_of(cells[:60]) == {50: 40}


@pytest.mark.parametrize("variant", ["svm", "svm scaled"])
def test_peers_tell_two_labels_apart(linear, variant):
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    x = linear.sp.csr_matrix(rng.poisson(1 + 4 * np.outer(labels, np.arange(10) < 5)))
    score = linear.VARIANTS[variant].fit(x[:40], labels[:40], None, 0.5)
    assert score(x[40:]).shape == (20, 2)
    assert (score(x[40:]).argmax(1) == labels[40:]).mean() > 0.9


@pytest.mark.filterwarnings("ignore")  # of so few cells
def test_a_run(linear, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(linear, "SIZES", (60,))
    kept = ("default", "lasso", "unbounded", "as rare", "svm scaled")
    monkeypatch.setattr(linear, "VARIANTS", {name: linear.VARIANTS[name] for name in kept})
    arguments = [str(tmp_path), "--references", "pbmc68k", "--seeds", "2"]

    linear.main([*arguments, "--out", str(tmp_path)])

    assert "# What each part of the linear branch contributes" in capsys.readouterr().out
    result = json.loads((tmp_path / "linear.json").read_text())
    assert (tmp_path / "linear.md").read_text() == linear.report(result)
    runs = pd.DataFrame(result["runs"])
    assert len(runs) == 2 * 3 * len(kept)
    assert runs["accuracy"].between(0.5, 1).all()
    assert (runs["log-likelihood"] < 0).all()
    by_variant = runs[runs["query"] == linear.SAME].groupby("variant")["log-likelihood"].mean()
    assert by_variant["default"] != by_variant["lasso"]
    assert by_variant["default"] != by_variant["as rare"]
