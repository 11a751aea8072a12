"""The benchmark of the Cell Ontology: nothing is mapped wrongly, the page is what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest


@pytest.fixture
def ontology(load_benchmark):
    return load_benchmark("ontology")


def test_the_page_is_what_was_measured(ontology, measured):
    result, page = measured("ontology")
    assert page == ontology.report(result)
    assert {row["source"] for row in result["labels"]} == set(ontology.SOURCES)
    assert not any(row["wrong"] for row in result["labels"])
    for group in result["sets"]:
        assert group["seeds"] >= 5
        assert group["coverage of terms"] >= group["coverage"]


@pytest.mark.filterwarnings("ignore:no label of")  # cell lines
def test_no_label_is_mapped_to_another_term_than_by_hand(ontology):
    for name, source in ontology.SOURCES.items():
        made = source._replace(read=None)
        ontology.SOURCES[name] = made
        rows = ontology.map_source(name, Path())
        assert [row["label"] for row in rows] == sorted(source.terms)
        assert [row["label"] for row in rows if row["wrong"]] == []
    by_hand = {term for source in ontology.SOURCES.values() for term in source.terms.values()}
    assert len(by_hand - {None}) >= 100


def test_the_page_of_the_documentation_has_the_measured_shares(ontology, measured, pages):
    result, _ = measured("ontology")
    text = (pages.parent / "ontology.md").read_text(encoding="utf-8")
    for line in ontology.shares_in_short(result):
        assert line in text
    n_labels = len(result["labels"])
    assert re.search(rf"Of {n_labels} labels of data sets and of CellTypist", text)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.filterwarnings("ignore")
def test_runs(ontology, tmp_path, shared):
    options = ["--sources", "kang", "lung", "--tasks", "kang", "--seeds", "1", "--epochs", "2"]
    ontology.main([str(shared), *options, "--out", str(tmp_path)])
    result = json.loads((tmp_path / "ontology.json").read_text())
    assert [row["source"] for row in result["labels"]] == ["kang"] * 5 + ["lung"] * 3
    assert [group["asked"] for group in result["sets"]] == [0.9, 0.95, 0.98]
    for group in result["sets"]:
        assert group["coverage of terms"] >= group["coverage"]
