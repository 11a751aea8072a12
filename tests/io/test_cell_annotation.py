"""Annotations in the Cell Annotation Schema: valid, and with the cells, terms and reasons of each label."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import tosica

# Constraints of version 1.1.0 for the Cell Annotation Platform, which are those of all files and a few more.
SCHEMA = json.loads(Path(__file__).with_name("cas_schema.json").read_text())
ABOUT = {"title": "Blood", "author": "Ada Doe"}


def is_valid(annotation):
    jsonschema.Draft202012Validator(SCHEMA).validate(annotation)
    return True


@pytest.fixture
def write(tmp_path):
    """Write a file, and return what it holds."""

    def write_cas(adata, **kwargs):
        path = tmp_path / "annotation.json"
        tosica.io.write_cas(adata, path, **ABOUT, **kwargs)
        return json.loads(path.read_text())

    return write_cas


@pytest.fixture
def labeled(pbmc_annotated):
    """Annotated cells with terms, and with a confident label."""
    tosica.onto.map_labels(pbmc_annotated, "tosica_prediction")
    pbmc_annotated.obs["tosica_confident"] = pbmc_annotated.obs["tosica_prediction"]
    return pbmc_annotated


@pytest.fixture
def explained(labeled, pbmc_model):
    tosica.tl.attribute(labeled, pbmc_model, n_cells=5)
    return labeled


def test_the_schema_of_the_platform_is_fulfilled(write, explained):
    annotation = write(
        explained,
        url="https://example.org/blood",
        contact="ada@example.org",
        reference_url="https://example.org/cells",
    )
    assert is_valid(annotation)
    names = [labelset["name"] for labelset in annotation["labelsets"]]
    assert names == ["tosica_prediction", "tosica_confident"]


def test_an_invalid_file_is_noticed(write, labeled):
    annotation = write(labeled, url="https://example.org")
    del annotation["annotations"][0]["cell_label"]
    with pytest.raises(jsonschema.ValidationError, match="'cell_label' is a required"):
        is_valid(annotation)


def test_labels_have_their_cells_and_terms(write, labeled):
    obs = labeled.obs
    rows = write(labeled, columns="tosica_prediction")["annotations"]
    assert any("cell_ontology_term_id" in row for row in rows)
    for row in rows:
        cells = obs[obs["tosica_prediction"] == row["cell_label"]]
        assert row["cell_ids"] == list(cells.index)
        (term,) = cells["tosica_prediction_ontology_term_id"].unique()
        assert row.get("cell_ontology_term_id", "unknown") == term
        if term != "unknown":
            assert row["cell_ontology_term"] == tosica.onto.term_name(term)


def test_unknown_is_called_as_in_the_schema(write, pbmc_annotated):
    pbmc_annotated.obs["mine"] = "Unknown"
    (row,) = write(pbmc_annotated, columns="mine")["annotations"]
    assert row["cell_label"] == row["cell_fullname"] == "unknown"


def test_reasons_name_marker_genes_that_the_cells_have(write, explained):
    rows = write(explained, n_genes=3)["annotations"]
    (b_cells,) = (
        row
        for row in rows
        if (row["labelset"], row["cell_label"]) == ("tosica_prediction", "CD19+ B")
    )
    assert "CD79A" in b_cells["marker_gene_evidence"]
    assert len(b_cells["marker_gene_evidence"]) <= 3
    assert "CD79A" in b_cells["rationale"]
    assert "mean probability" in b_cells["rationale"]
    for row in rows:
        assert set(row.get("marker_gene_evidence", [])) <= set(explained.var_names)


def test_without_an_explanation_there_are_no_marker_genes(write, labeled):
    rows = write(labeled)["annotations"]
    assert not any("marker_gene_evidence" in row for row in rows)


def test_the_cells_stay_as_they_were(write, explained, contents):
    before = contents(explained)
    write(explained)
    assert contents(explained) == before


@pytest.mark.parametrize(
    ("about", "sentence"),
    [
        ({"title": " "}, "title is empty"),
        ({"author": ""}, "author is empty"),
        ({"title": "x" * 201}, "title has 201 characters, and the schema allows 200"),
    ],
)
def test_texts_that_the_schema_refuses(pbmc_annotated, tmp_path, about, sentence):
    path = tmp_path / "annotation.json"
    with pytest.raises(ValueError, match=sentence):
        tosica.io.write_cas(pbmc_annotated, path, **ABOUT | about)
    assert not path.exists()


def test_cells_without_labels_are_refused(toy, tmp_path):
    with pytest.raises(KeyError, match=r"no column 'tosica_prediction'.*annotate"):
        tosica.io.write_cas(toy, tmp_path / "annotation.json", **ABOUT)
