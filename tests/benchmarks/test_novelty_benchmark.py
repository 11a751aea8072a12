"""The benchmark of new types: that its page is what was measured, and that it can be run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy.sparse import csr_matrix


@pytest.fixture
def novelty(load_benchmark):
    return load_benchmark("novelty")


def test_the_page_is_what_was_measured(novelty, measured):
    result, page = measured("novelty")
    assert page == novelty.report(result)
    tasks = set(result["runs"]["task"])
    assert len(tasks) >= 3
    assert tasks == set(result["settings"]["tasks"])
    assert len(set(result["runs"]["seed"])) >= 5


@pytest.mark.data
def test_every_task_has_two_batches(novelty, shared):
    for task in novelty.TASKS.values():
        adata = task.read(shared)
        assert adata.obs["batch"].nunique() == 2
        assert adata.obs["label"].notna().all()
        assert adata.obs_names.is_unique


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
    counts = rng.poisson(rate * np.where(second, 3, 1)[:, None]).astype(np.float32)
    adata = AnnData(csr_matrix(counts))
    # Real names, so that they are in gene sets.
    adata.var_names = list(
        dict.fromkeys(
            gene
            for name in ("T cell receptor signaling pathway", "glycolytic process")
            for gene in sorted(novelty.tosica.gs.load("human_gobp")[name])
        )
    )[:60]
    adata.obs["label"] = np.array(list("abcde"))[kind]
    adata.obs["batch"] = np.where(second, "deep", "shallow")
    task = novelty.Task("made", lambda folder: adata.copy(), seen=False)
    monkeypatch.setattr(novelty, "TASKS", {"made": task})
    monkeypatch.setattr(novelty, "SIZES", (4, 0))
    # Its training is tested by a run of the benchmark itself.
    monkeypatch.setattr(novelty.others, "train_scanvi", lambda reference, seed: None)
    arguments = [str(tmp_path), "--seeds", "1", "--jobs", "1", "--max-epochs", "4"]

    novelty.main([*arguments, "--out", str(tmp_path)])

    assert "# Types that the reference lacks" in capsys.readouterr().out
    result = json.loads((Path(tmp_path) / "novelty.json").read_text())
    assert (tmp_path / "novelty.md").read_text() == novelty.report(result)
    runs = pd.DataFrame(result["runs"])
    assert len(runs) == 5 * 2 * 2
    for score in novelty.SCORES.keys() - {"scanvi"}:
        assert runs[score].between(0, 1).all()
    for score in ("cell", "cluster"):
        assert runs[score].mean() > 0.9
        assert runs.loc[runs["query"] == "within", f"{score}, false"].mean() < 0.1
