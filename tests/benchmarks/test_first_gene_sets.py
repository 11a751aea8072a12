"""The page of first gene sets: that it is what was found, and that it can be run."""

from __future__ import annotations

import json
from functools import partialmethod

import pandas as pd
import pytest

import tosica


@pytest.fixture
def first_gene_sets(load_benchmark):
    return load_benchmark("first_gene_sets")


def test_the_page_is_what_was_measured(first_gene_sets, measured):
    result, page = measured("first_gene_sets")
    assert page == first_gene_sets.report(result)
    runs = pd.DataFrame(result["runs"])
    assert set(runs["dataset"]) == set(first_gene_sets.DATASETS)
    n_gene_sets = runs.groupby(["dataset", "label"]).size()
    assert n_gene_sets.between(1, first_gene_sets.N_GENE_SETS).all()


@pytest.mark.filterwarnings("ignore")  # of so few steps and cells
def test_a_run(first_gene_sets, cells, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tosica.TOSICA, "train", partialmethod(tosica.TOSICA.train, max_epochs=2))
    monkeypatch.setattr(first_gene_sets, "DATASETS", {"made": ("made", lambda _: cells)})

    first_gene_sets.main([str(tmp_path), "--out", str(tmp_path)])

    assert "# First gene sets of each label" in capsys.readouterr().out
    result = json.loads((tmp_path / "first_gene_sets.json").read_text())
    assert (tmp_path / "first_gene_sets.md").read_text() == first_gene_sets.report(result)
    runs = pd.DataFrame(result["runs"])
    assert list(dict.fromkeys(runs["label"])) == ["a", "b", "c"]
    assert (runs.groupby("label")["weight"].diff().dropna() <= 0).all()
    # Types have every third gene each.
    genes = list(cells.var_names[:30])
    for i, of in enumerate(runs.groupby("label")["genes"].sum()):
        assert all(genes.index(gene) % 3 == i for gene in of if gene in genes)
