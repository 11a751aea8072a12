"""The benchmark of scales: that its page is what was measured, and that it can be run."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def scales(load_benchmark):
    return load_benchmark("scales")


# Every scale is refused, rescaled or right: what tosica did, with all genes and with fewer.
TAKEN = {"counts", "log1p of 1e4"}
RESCALED = {
    *("log1p of 1e6", "log1p of 1e3", "log1p of the median", "log2 of 1e4", "log10 of 1e4"),
    *("log1p twice", "half log1p of 1e4, half of 1e6"),
}
OF_REFERENCE = {*TAKEN, "log1p of 1e6", "log1p of 1e3", "log1p of the median"}


def test_the_page_is_what_was_measured(scales, measured):
    result, page = measured("scales")
    assert page == scales.report(result)
    runs = pd.DataFrame(result["runs"])
    assert set(runs["data"]) == set(scales.DATA)
    queries = runs[runs["part"] == "queries"]
    assert set(queries["query"]) == set(scales.TRANSFORMS)
    for name, did in queries.groupby("query")["did"]:
        wanted = "taken" if name in TAKEN else "rescaled" if name in RESCALED else "refused"
        assert set(did) == {wanted}, name
    references = runs[runs["part"] == "references"]
    for name, did in references.groupby("reference")["did"]:
        assert set(did) == {"taken" if name in OF_REFERENCE else "refused"}, name
    # What is rescaled is as good as what was right.
    right = queries[queries["query"] == "counts"].set_index(["data", "seed", "genes"])
    others = queries[queries["did"] == "rescaled"].set_index(["data", "seed", "genes"])
    for what in ("accuracy", "calibration error", "coverage"):
        off = (others[what] - right[what].reindex(others.index)).abs()
        assert off.max() < 0.03, what


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_runs(scales, tmp_path, monkeypatch):
    kept = ["counts", "log1p of 1e6", "ranks"]
    monkeypatch.setattr(scales, "TRANSFORMS", {name: scales.TRANSFORMS[name] for name in kept})
    monkeypatch.setattr(scales, "QUERIES", {"counts": False})
    arguments = ["none", "--names", "pbmc68k", "--seeds", "1", "--epochs", "1"]
    scales.main([*arguments, "--out", str(tmp_path)])
    runs = pd.DataFrame(json.loads((tmp_path / "scales.json").read_text())["runs"])
    queries = runs[runs["part"] == "queries"].set_index(["query", "genes"])
    assert queries["did"].to_list() == ["taken"] * 2 + ["rescaled"] * 2 + ["refused"] * 2
    same = ["accuracy", "coverage", "empty"]
    for genes in ("all", "fewer"):
        np.testing.assert_allclose(
            queries.loc[("log1p of 1e6", genes), same].astype(float),
            queries.loc[("counts", genes), same].astype(float),
            atol=0.01,
        )
    references = runs[runs["part"] == "references"]
    assert set(references.loc[references["reference"] == "ranks", "did"]) == {"refused"}
    assert (tmp_path / "scales.md").read_text().startswith("# Expression on another scale")
