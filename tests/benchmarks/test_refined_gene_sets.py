"""The benchmark of refined gene sets: how sets are changed, its page, and that it can be run."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def refined(load_benchmark):
    return load_benchmark("refined_gene_sets")


def test_the_page_is_what_was_measured(refined, measured):
    result, page = measured("refined_gene_sets")
    assert page == refined.report(result)
    runs = pd.DataFrame(result["runs"])
    assert set(runs["dataset"]) == set(refined.DATASETS)
    assert runs.groupby("dataset")["seed"].nunique().eq(5).all()


def test_a_fifth_of_the_genes_is_drawn(refined):
    members = np.random.default_rng(0).random((5, 200)) < 0.2
    removed, added = refined.draw(members, 1)
    assert not (removed & ~members).any()
    assert not (added & members).any()
    assert (removed.sum(1) == np.round(0.2 * members.sum(1))).all()
    assert (removed.sum(1) == added.sum(1)).all()


def test_random_sets_have_the_size_and_expression_of_the_real_ones(refined):
    rng = np.random.default_rng(0)
    expression = rng.permutation(1000)
    members = np.zeros((2, 1000), dtype=bool)
    members[0, expression > 960] = members[1, expression < 30] = True
    drawn = refined.random_sets(members, expression, 0)
    assert (drawn.sum(1) == members.sum(1)).all()
    assert expression[drawn[0]].min() > 900
    assert expression[drawn[1]].max() < 90
    assert not (drawn == members).all(1).any()


@pytest.mark.filterwarnings("ignore")
def test_runs(refined, load_benchmark, tmp_path):
    arguments = ["none", "--datasets", "pbmc68k", "--seeds", "1", "--max-sets", "12"]
    refined.main([*arguments, "--out", str(tmp_path)])
    (run,) = json.loads((tmp_path / "refined_gene_sets.json").read_text())["runs"]
    assert run["random"]["sets"] == 12
    assert set(run["swapped"]) == set(refined.ARGUMENTS)
    rankings = load_benchmark("_refined_gene_sets_page").RANKINGS
    assert set(run["withheld"]["all"]) == {*rankings, "chance"}
    assert 0 < run["withheld"]["all"]["chance"] < 0.1
