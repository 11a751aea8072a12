"""The benchmark of planted gene sets: what it makes up, and that its page is whole."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def planted(load_benchmark):
    return load_benchmark("planted")


def test_one_gene_set_differs_and_no_other_gene(planted):
    adata, sets, truth = planted.planted(3)
    raised = (adata.obs["label"] == "raised").to_numpy()
    total = adata.X[raised].sum(0), adata.X[~raised].sum(0)
    member = adata.var_names.isin(sets[truth])
    assert total[0][member].sum() / total[1][member].sum() == pytest.approx(planted.FOLD, rel=0.1)
    assert total[0][~member].sum() / total[1][~member].sum() == pytest.approx(1, rel=0.05)


def test_samples_differ_and_conditions_do_not(planted):
    adata, _, _ = planted.planted(3)
    cells = planted.alike(adata, 3)
    assert cells.obs.groupby("sample")["condition"].nunique().max() == 1
    assert cells.obs.groupby("condition")["sample"].nunique().to_list() == [4, 4]
    stimulated = (cells.obs["condition"] == "stimulated").to_numpy()
    ratio = cells.X[stimulated].sum() / cells.X[~stimulated].sum()
    assert ratio == pytest.approx(1, rel=0.15)


def test_the_page_counts_seeds(planted):
    readings = [f"{name}, {how}" for name in planted.READINGS for how in ("rank-sum test", "mean")]
    others = {
        "accuracy": 0.9,
        "completeness error": 1e-6,
        "linear share": 0.9,
        "unannotated share": 0.5,
        "modules": 14.0,
        "reported, samples": 0.01,
        "reported, cells": 0.1,
    }
    rows = [dict.fromkeys(readings, float(rank)) | others for rank in (1, 1, 4)]
    table = planted.summary(planted.pd.DataFrame(rows))
    assert list(table.index) == readings
    assert (table["first"] == 2).all()
    assert np.allclose(table["worst rank"], 4)
    runs = {"0": rows, "1": rows}
    page = planted.report({"runs": runs, "machine": {}, "settings": {"seeds": 3}})
    assert page.count("| attribution, mean | 2 of 3 |") == 2
    assert "## With no unannotated token (the default)\n" in page
    assert "## With one unannotated token\n" in page
    assert "| samples (`sample_key`) | 1.0% |" in page


@pytest.mark.parametrize("n_unannotated", [0, 1])
def test_a_seed(planted, monkeypatch, n_unannotated):
    monkeypatch.setattr(planted, "TRAINING", {"max_epochs": 2})
    monkeypatch.setattr(planted, "N_CELLS", 240)
    found = planted.one_seed(0, n_unannotated=n_unannotated)
    assert found["accuracy"] > 0.9
    assert (found["modules"] > 5) == (n_unannotated == 0)
    assert (found["unannotated share"] > 0.1) == (n_unannotated == 1)
    assert found["completeness error"] < 0.01
    assert 0.2 < found["linear share"] <= 1
    if not n_unannotated:
        assert found["presence, mean"] == found["attribution, rank-sum test"] == 1
    assert set(found) > {f"{name}, mean" for name in planted.READINGS}
