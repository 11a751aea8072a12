"""The benchmark of markers: what it asks of a model, and that it can be run."""

from __future__ import annotations

import json
from functools import partialmethod

import numpy as np
import pandas as pd
import pytest

import tosica


@pytest.fixture
def markers(load_benchmark):
    return load_benchmark("markers")


@pytest.fixture
def helpers(load_benchmark):
    return load_benchmark("_marker_readings")


def test_the_page_is_what_was_measured(markers, measured):
    result, page = measured("markers")
    assert page == markers.report(result)
    runs = pd.DataFrame(result["runs"])
    assert set(runs["dataset"]) == set(markers.DATASETS)
    assert set(runs["ranks"].iloc[0]) == set(markers.READINGS)
    assert runs["seed"].nunique() >= 5


def test_markers_are_the_genes_of_a_type(helpers, cells, monkeypatch):
    monkeypatch.setattr(helpers, "N_MARKERS", 8)
    # A single cell has no test.
    cells.obs["label"] = cells.obs["label"].cat.add_categories("lone")
    cells.obs.iloc[0, cells.obs.columns.get_loc("label")] = "lone"
    found = helpers.marker_sets(cells)
    assert sorted(found) == ["markers of a", "markers of b", "markers of c"]
    for i, name in enumerate(sorted(found)):
        assert set(found[name]) <= set(cells.var_names[i:30:3])
        assert len(found[name]) == 8


def test_no_markers_are_lost(helpers, cells):
    genes = list(cells.var_names)
    # Nearly the same, so that one would take the other's place.
    alike = {"markers of a": genes[:10], "markers of b": genes[1:10]}
    helpers.build_mask(cells, alike)
    names = list(cells.uns["tosica_mask"]["gene_sets"])
    for name, members in alike.items():
        column = cells.varm["tosica_mask"][:, [names.index(name)]].toarray().ravel()
        assert set(cells.var_names[column]) == set(members)
    plain = cells.copy()
    helpers.build_mask(plain)
    assert names[: -len(alike)] == list(plain.uns["tosica_mask"]["gene_sets"])


def test_a_set_that_is_no_token_is_behind_all_tokens(helpers):
    row = pd.DataFrame([[3.0, 2.0, 1.0]], index=["a"])
    there, gone = row.copy(), row.copy()
    there.columns = ["some", "markers of a", "other"]
    gone.columns = ["some", "markers of b", "other"]
    ranks, first = helpers.own_ranks({"there": there, "gone": gone}, "a")
    assert ranks == {"there": 2, "gone": 4}
    assert first == {"there": "some", "gone": "some"}


def test_scores_of_expression_are_those_above_other_cells(helpers, cells):
    scores = pd.DataFrame(
        {"one": (cells.obs["label"] == "a") * 1.0, "two": 1.0}, index=cells.obs_names
    )
    found = helpers.above_others(scores, cells)
    np.testing.assert_allclose(found.loc[["a", "b", "c"], "one"], [1, -0.5, -0.5])
    np.testing.assert_allclose(found["two"], 0)


def test_the_page_counts_cases(markers):
    reading = "presence, mean"
    runs = [
        {"dataset": "kang", "seed": seed, "label": label, "kept": kept, "tokens": 10}
        | {"ranks": dict.fromkeys(markers.SHOWN, rank)}
        | {"first": dict.fromkeys(markers.SHOWN, "markers of a" if rank == 1 else "another")}
        for seed, label, kept, rank in [
            (0, "a", True, 1.0),
            (1, "a", True, 1.0),
            (0, "b", True, 4.0),
            (1, "b", False, 11.0),
        ]
    ]
    shared = [
        {"dataset": "kang", "kind": kind, "label": label, "jaccard": value}
        for kind in (markers.SAME, markers.HALVES)
        for label, value in {"a": 0.5, "b": 0.25}.items()
    ]
    areas = [{"dataset": "kang", "seed": s, "order": "presence", "area": 0.2} for s in range(2)]
    result = {"runs": runs, "stability": shared, "areas": areas, "versions": {}}
    page = markers.report(result)
    assert "which was so in 1 of 4 cases" in page
    assert f"| {reading} | 50% | 75% | 2.5 |" in page
    assert "| *random order* | 7.5% | 37.5% | 6 |" in page
    assert "| Kang | b | 4, 11 | another (2) | 4, 11 | another (2) |" in page
    assert "| Kang | a |" not in page
    assert "| Kang | 0.38 ± 0.18 | 0.25 (b) | 0.38 ± 0.18 | 0.25 (b) |" in page
    assert "| presence | 0.200 ± 0.000 |" in page
    assert "All data" not in page


@pytest.mark.filterwarnings("ignore")  # of so few steps and cells
def test_a_run(markers, helpers, cells, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tosica.TOSICA, "train", partialmethod(tosica.TOSICA.train, max_epochs=2))
    monkeypatch.setattr(markers, "DATASETS", {"made": ("made", lambda _: cells)})
    monkeypatch.setattr(helpers, "N_MARKERS", 10)
    monkeypatch.setattr(helpers, "N_CELLS", 10)
    monkeypatch.setattr(helpers, "N_LEADING", 3)
    monkeypatch.setattr(markers, "N_DELETED", 20)

    markers.main([str(tmp_path), "--seeds", "2", "--out", str(tmp_path)])

    assert "# Markers among gene sets" in capsys.readouterr().out
    result = json.loads((tmp_path / "markers.json").read_text())
    assert (tmp_path / "markers.md").read_text() == markers.report(result)
    assert "nan" not in markers.report(result)
    runs = pd.DataFrame(result["runs"])
    assert len(runs) == 2 * 3
    assert runs["kept"].all()
    ranks = pd.DataFrame(list(runs["ranks"]))
    wanted = set(helpers.READINGS) - (set() if helpers.find_spec("decoupler") else {"ulm"})
    assert set(ranks) == wanted
    assert (ranks >= 1).all(axis=None)
    assert (ranks.le(runs["tokens"], axis=0)).all(axis=None)
    # Only a set that holds the genes of all types may come before the markers.
    assert (ranks["score_genes"] == 1).all()
    assert (ranks[["presence, mean", "attribution, mean"]] <= 2).all(axis=None)
    shared = pd.DataFrame(result["stability"])
    # One pair of seeds, and a pair of halves with each seed.
    counts = shared.groupby("kind").size()
    assert counts.to_dict() == {markers.SAME: 3, markers.HALVES: 6}
    assert shared["jaccard"].between(0, 1).all()
    areas = pd.DataFrame(result["areas"])
    assert set(areas["order"]) == {"attention", "attribution", "presence", "random"}
    mean = areas.groupby("order")["area"].mean()
    assert mean["attribution"] < mean["random"]
