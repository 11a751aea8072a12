"""The benchmark of RNA and protein: that its page is what was measured, and that it can be run."""

from __future__ import annotations

import json

import mudata as md
import numpy as np
import pytest
from anndata import AnnData


@pytest.fixture
def cite_seq(load_benchmark):
    return load_benchmark("cite_seq")


def test_the_page_is_what_was_measured(cite_seq, measured):
    result, page = measured("cite_seq")
    assert page == cite_seq.report(result)
    assert {(run["split"], run["seed"]) for run in result["runs"]} == {
        (split, seed) for split in range(5) for seed in range(5)
    }


@pytest.mark.slow
def test_a_run(cite_seq, tmp_path, capsys):
    """Two labels: one has CD19 and MS4A1, the other CD14 and LYZ."""
    rng = np.random.default_rng(0)
    is_b = np.arange(40) % 2 == 0
    genes = ["MS4A1", "CD79A", "CD19", "BLK", "CD22", "LYZ", "CST3", "FCN1", "CD14", "S100A9"]
    rate = np.where(is_b[:, None] == (np.arange(10) < 5), 20, 1)
    rna = AnnData(rng.poisson(rate).astype(np.float32))
    rna.var_names = genes
    # So many that a query without one of them is no reason to warn.
    panel = ["CD19", "CD14", *(f"control {i}" for i in range(22))]
    rate = np.where(is_b[:, None], [90, 3, *[9] * 22], [3, 90, *[9] * 22])
    protein = AnnData(rng.poisson(rate).astype(np.float32))
    protein.var_names = panel
    mdata = md.MuData({"rna": rna, "protein": protein})
    mdata.obs["kind"] = np.where(is_b, "b", "m")
    assert cite_seq.marker_labels(mdata, mdata.obs["kind"].to_numpy()) == {"CD19": "b", "CD14": "m"}
    areas = cite_seq.separation(mdata, mdata.obs["kind"].to_numpy())
    assert areas["b"]["CD19"] == areas["m"]["CD14"] == 1
    mdata.write(tmp_path / "cells.h5mu")
    arguments = [str(tmp_path / "cells.h5mu"), "--labels-key", "kind", "--out", str(tmp_path)]
    cite_seq.main([*arguments, "--splits", "1", "--seeds", "1", "--max-epochs", "80"])
    result = json.loads((tmp_path / "cite_seq.json").read_text())
    assert len(result["runs"]) == 1
    assert set(result["runs"][0]["ranks"]) == {"CD19", "CD14"}
    assert (tmp_path / "cite_seq.md").read_text() == cite_seq.report(result)
    # What was measured is not measured again.
    before = (tmp_path / "cite_seq.json").read_text()
    cite_seq.main([*arguments, "--splits", "1", "--seeds", "1", "--max-epochs", "80"])
    assert (
        json.loads((tmp_path / "cite_seq.json").read_text())["runs"] == json.loads(before)["runs"]
    )
    assert "RNA and protein" in capsys.readouterr().out
