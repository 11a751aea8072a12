"""The benchmark of missing genes: that its page is what was measured, and that it can be run."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def missing(load_benchmark):
    return load_benchmark("missing_genes")


def test_the_page_is_what_was_measured(missing, measured):
    result, page = measured("missing_genes")
    assert page == missing.report(result)
    runs = pd.DataFrame(result["runs"])
    assert set(runs["pair"]) == set(missing.PAIRS)
    assert set(runs["share"]) == {0, *missing.SHARES}


def test_the_same_genes_are_gone_in_both_ways(missing):
    query = missing.pbmc68k(None)[:30].copy()
    both = missing.without(query, 0.3, 0)
    imputed, zero = both["imputed"], both["zero"]
    assert imputed.n_vars == query.n_vars - round(0.3 * query.n_vars)
    assert zero.var_names.equals(query.var_names)
    np.testing.assert_array_equal(zero[:, imputed.var_names].X.toarray(), imputed.X.toarray())
    gone = ~zero.var_names.isin(imputed.var_names)
    assert not zero[:, gone].X.toarray().any()
    assert query[:, gone].X.toarray().any()


@pytest.mark.filterwarnings("ignore")
def test_runs(missing, tmp_path, monkeypatch):
    monkeypatch.setattr(missing, "SHARES", (0.3,))
    arguments = ["none", "--pairs", "pbmc68k", "--draws", "1", "--epochs", "2"]
    missing.main([*arguments, "--out", str(tmp_path)])
    runs = json.loads((tmp_path / "missing_genes.json").read_text())["runs"]
    assert [(run["share"], run["way"]) for run in runs] == [
        (0, "imputed"),
        (0, "zero"),
        (0.3, "imputed"),
        (0.3, "zero"),
    ]
    assert runs[0]["agreement"] == 1
    assert all(0.5 < run["agreement"] < 1 for run in runs[2:])
