"""The benchmark of new types: that its page is what was measured, and that it can be run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from anndata import AnnData


@pytest.fixture
def novelty(load_benchmark):
    return load_benchmark("novelty")


def test_the_page_is_what_was_measured(novelty, measured):
    result, page = measured("novelty")
    assert page == novelty.report(result)
    assert {run["task"] for run in result["runs"]} == set(novelty.TASKS)
    assert len({run["seed"] for run in result["runs"]}) >= 5


@pytest.mark.slow
def test_a_run(novelty, tmp_path, monkeypatch, capsys):
    """Five types, each with genes of its own, in two batches that differ in depth."""
    rng = np.random.default_rng(0)
    n_cells = 400
    kind = np.arange(n_cells) % 5
    rate = np.full((n_cells, 60), 0.5)
    for i in range(5):
        rate[kind == i, 12 * i : 12 * i + 10] = 6
    second = np.arange(n_cells) // 5 % 2 == 1
    adata = AnnData(rng.poisson(rate * np.where(second, 3, 1)[:, None]).astype(np.float32))
    # Real names, so that they are in gene sets.
    adata.var_names = list(
        dict.fromkeys(
            gene
            for name in ("T cell receptor signaling pathway", "glycolytic process")
            for gene in sorted(novelty.tosica.gs.load("human_gobp")[name])
        )
    )[:60]
    adata.obs["kind"] = np.array(list("abcde"))[kind]
    adata.obs["depth"] = np.where(second, "deep", "shallow")
    adata.write_h5ad(tmp_path / "made.h5ad")
    task = novelty.Task("made.h5ad", "kind", "depth", "deep", "made")
    monkeypatch.setattr(novelty, "TASKS", {"made": task})
    # AnnData holds its numbers as CSR where the benchmark's files do.
    monkeypatch.setattr(novelty, "expression", lambda model, adata: np.log1p(adata.X))
    arguments = [str(tmp_path), "--seeds", "1", "--max-epochs", "5", "--out", str(tmp_path)]

    novelty.main(arguments)

    assert "# Types that the reference lacks" in capsys.readouterr().out
    result = json.loads((tmp_path / "novelty.json").read_text())
    assert (tmp_path / "novelty.md").read_text() == novelty.report(result)
    assert len(result["runs"]) == 5 * 2 * 2
    for run in result["runs"]:
        for score in novelty.SCORES:
            assert 0 <= run[score] <= 1
    assert np.mean([run["novelty"] for run in result["runs"]]) > 0.9
