"""Annotation with the labels alone that can occur in a query."""

import re

import anndata as ad
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import tosica

T_CELLS = [
    "CD4+/CD25 T Reg",
    "CD4+/CD45RA+/CD25- Naive T",
    "CD4+/CD45RO+ Memory",
    "CD8+ Cytotoxic T",
    "CD8+/CD45RA+ Naive Cytotoxic",
]


def test_probabilities_are_those_given_that_these_labels_occur(pbmc_model, pbmc_query):
    pbmc_model.annotate(pbmc_query, labels=T_CELLS, probabilities=True)
    probabilities_of_all = pbmc_model.predict(pbmc_query, soft=True)[T_CELLS]
    expected = probabilities_of_all.div(probabilities_of_all.sum(axis=1), axis=0)
    probabilities = pbmc_query.obsm["tosica_probabilities"]
    assert_allclose(probabilities, expected, rtol=1e-3, atol=1e-5)
    assert set(pbmc_query.obs["tosica_prediction"]) <= {*T_CELLS, "Unknown"}


def test_the_query_says_which_labels_were_left_out(pbmc_model, pbmc_query):
    pbmc_model.annotate(pbmc_query, labels=T_CELLS)
    record = pbmc_query.uns["tosica"]
    assert record["subset_of"] == pbmc_model.fingerprint
    assert record["labels"].tolist() == T_CELLS
    left_out = record["left_out_labels"].tolist()
    assert sorted([*left_out, *T_CELLS]) == sorted(pbmc_model.labels)


def test_a_subset_of_a_subset_knows_the_whole_model(pbmc_model):
    smaller = pbmc_model.subset(T_CELLS).subset(T_CELLS[:2])
    assert smaller.training_.subset_of == pbmc_model.fingerprint
    assert len(smaller.training_.left_out_labels) == len(pbmc_model.labels) - 2


def test_nothing_is_left_out_by_all_labels(pbmc_model, pbmc_query):
    pbmc_model.annotate(pbmc_query, labels=pbmc_model.labels)
    assert "left_out_labels" not in pbmc_query.uns["tosica"]
    assert pbmc_query.uns["tosica"]["model"] == pbmc_model.fingerprint


@pytest.mark.parametrize("function", ["attribute", "novelty"])
def test_functions_take_the_whole_model(function, pbmc_model, pbmc_query):
    pbmc_model.annotate(pbmc_query, labels=T_CELLS)
    by_subset = pbmc_query.copy()
    getattr(tosica.tl, function)(pbmc_query, pbmc_model)
    getattr(tosica.tl, function)(by_subset, pbmc_model.subset(T_CELLS))
    if function == "novelty":
        assert_array_equal(
            pbmc_query.obs["tosica_novelty"], by_subset.obs["tosica_novelty"]
        )
        return
    genes = [
        adata.uns["tosica_attribution"]["genes"] for adata in (pbmc_query, by_subset)
    ]
    assert_array_equal(*genes)


def test_a_group_stands_for_its_labels(pbmc_model, pbmc_query):
    pbmc_model.label_parents_ = dict.fromkeys(T_CELLS, "T cell")
    try:
        pbmc_model.annotate(pbmc_query, labels=["T cell", "CD19+ B"])
    finally:
        pbmc_model.label_parents_ = {}
    assert set(pbmc_query.uns["tosica"]["labels"]) == {*T_CELLS, "CD19+ B"}
    assert "T cell" in set(pbmc_query.obs["tosica_confident"])


def test_the_bundled_model_knows_groups_of_the_ontology():
    model = tosica.TOSICA.load("blood").subset(["CD8 T cell", "myeloid cell"])
    assert "Classical monocyte" in model.labels
    assert "B cell" not in model.labels


def test_a_model_learns_from_a_query_of_these_labels(toy_model, toy_query):
    toy_model.annotate(toy_query, labels=["a", "b"], adapt=True)
    assert toy_model.adapted_.labels == ["a", "b"]
    record = toy_query.uns["tosica"]
    assert record["adapted"]
    assert record["left_out_labels"].tolist() == ["c"]


def test_a_majority_is_one_of_these_labels(toy_model, toy_query):
    toy_query.obs["cluster"] = ["x", "y"] * 30
    toy_model.annotate(toy_query, labels=["a", "b"])
    tosica.tl.majority_vote(toy_query, "cluster")
    assert set(toy_query.obs["tosica_majority_vote"]) <= {"a", "b"}


def test_a_model_of_genes_and_antibodies(cite_model, cite_query):
    cite_model.annotate(cite_query, labels=["a", "c"])
    assert set(cite_query.obs["tosica_prediction"]) == {"a", "c"}


def test_from_disk_as_in_memory(toy_model, toy_query, tmp_path):
    path, output = tmp_path / "query.h5ad", tmp_path / "annotated.h5ad"
    toy_query.write_h5ad(path)
    tosica.tl.annotate_file(
        path, toy_model, output, labels=["a", "b"], cells_per_part=25
    )
    toy_model.annotate(toy_query, labels=["a", "b"])
    annotated = ad.read_h5ad(output)
    column = "tosica_prediction"
    assert annotated.obs[column].tolist() == toy_query.obs[column].tolist()
    assert annotated.uns["tosica"]["left_out_labels"].tolist() == ["c"]


@pytest.mark.parametrize(
    ("labels", "error", "sentence"),
    [
        (
            ["a", "bb"],
            KeyError,
            "the model has no label 'bb', only 'a', 'b', 'c'; did you",
        ),
        ([], ValueError, "There is no label to predict: name two or more with labels="),
        (["a"], ValueError, "Every cell would get the only label that is named, 'a'"),
        ("a", ValueError, "Every cell would get the only label that is named, 'a'"),
        (["a", "b", "a"], ValueError, "named once each, but 'a' more often"),
        (5, TypeError, "labels must be a string or a list of strings or None, not 5"),
    ],
)
def test_wrong_labels(labels, error, sentence, toy_model, toy_query, unchanged):
    with unchanged(toy_query), pytest.raises(error, match=re.escape(sentence)):
        toy_model.annotate(toy_query, labels=labels)
