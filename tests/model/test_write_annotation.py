"""What annotate writes, and that it writes nothing else."""

from dataclasses import replace
from importlib.metadata import version

import anndata
import numpy as np
import pandas as pd
import pytest
import torch
from _cells import toy_reference, train_toy
from anndata import AnnData
from numpy.testing import assert_allclose, assert_array_equal

import tosica
from tosica.model import AnnotationResult

GREY = "#d3d3d3"
KEYS = {
    *(
        f"uns/tosica/{key}"
        for key in (
            "source",
            "n_genes",
            "n_missing_genes",
            "has_linear",
            "is_calibrated",
            "second_label",
            "second_probability",
        )
    ),
    "obs/tosica_novelty",
    "obs/tosica_novelty_pvalue",
    "obs/tosica_prediction",
    "obs/tosica_probability",
    "obsm/X_tosica",
    "uns/tosica/cutoff",
    "uns/tosica/gene_sets",
    "uns/tosica/labels",
    "uns/tosica/model",
    "uns/tosica/version",
    "uns/tosica_prediction_colors",
}


def write(adata, probabilities, cutoff=0.5, **changes):
    table = np.array(probabilities, dtype=np.float32)
    fields = {
        "obs_names": adata.obs_names,
        "labels": ["b", "a", "c"],
        "dtype": pd.CategoricalDtype(np.array(["b", "a", "c"], dtype=object)),
        "colors": ["#00000b", "#00000a", "#00000c"],
        "gene_sets": ["one", "two"],
        **{
            "model": "0123456789abcdef",
            "source": "dict",
            "n_genes": 1,
            "n_missing_genes": 0,
        },
        **{"codes": table.argmax(1), "probability": table.max(1)},
        **{
            "second_codes": np.argsort(-table)[:, 1],
            "second_probability": np.sort(table)[:, 1],
        },
        "attention": np.full((adata.n_obs, 2), 0.25, dtype=np.float32),
    }
    AnnotationResult(**{**fields, **changes}).to_adata(adata, cutoff=cutoff)


@pytest.fixture
def cells():
    return AnnData(np.ones((4, 1), dtype=np.float32))


PROBABILITIES = [[0.2, 0.7, 0.1], [0.4, 0.3, 0.3], [0.9, 0.1, 0.0], [0.5, 0.25, 0.25]]


# --------------------------------------------------------------------------- the function alone


def test_label_or_unknown(cells):
    write(cells, PROBABILITIES)
    prediction = cells.obs["tosica_prediction"]
    assert prediction.tolist() == ["a", "Unknown", "b", "b"]
    # The reference's order, not the alphabet's; Unknown last; only what occurs.
    assert prediction.cat.categories.tolist() == ["b", "a", "Unknown"]
    assert cells.uns["tosica_prediction_colors"] == ["#00000b", "#00000a", GREY]
    assert_array_equal(
        cells.obs["tosica_probability"],
        np.array([0.7, 0.4, 0.9, 0.5], dtype=np.float32),
    )
    # The color of cells without a label is not mistaken for one.
    write(cells, PROBABILITIES, colors=["#00000b", "#00000a", "#00000c", "#ffffff"])
    assert cells.uns["tosica_prediction_colors"] == ["#00000b", "#00000a", GREY]
    write(cells, PROBABILITIES, cutoff=0.0)
    assert cells.obs["tosica_prediction"].cat.categories.tolist() == ["b", "a"]
    assert cells.uns["tosica_prediction_colors"] == ["#00000b", "#00000a"]
    write(cells, PROBABILITIES, cutoff=1.0)
    assert cells.obs["tosica_prediction"].cat.categories.tolist() == ["Unknown"]
    assert cells.uns["tosica_prediction_colors"] == [GREY]
    assert cells.uns["tosica"]["labels"].tolist() == ["b", "a", "c"]
    assert cells.uns["tosica"]["second_label"].tolist() == ["", "", ""]


def test_labels_of_one_term(cells):
    write(cells, PROBABILITIES, terms={"a": "CL:1", "b": "CL:1"})
    column = cells.obs["tosica_prediction_ontology_term_id"]
    assert list(column) == ["CL:1", "unknown", "CL:1", "CL:1"]
    assert list(column.cat.categories) == ["CL:1", "unknown"]


# --------------------------------------------------------------------------- annotate


@pytest.fixture
def annotated(pbmc_model, pbmc_query):
    pbmc_model.annotate(pbmc_query, probabilities=True)
    return pbmc_query


def test_every_key_of_the_contract(pbmc_model, annotated):
    n = annotated.n_obs
    prediction = annotated.obs["tosica_prediction"]
    assert isinstance(prediction.dtype, pd.CategoricalDtype)
    assert not prediction.cat.ordered
    occurring = [label for label in pbmc_model.labels if label in set(prediction)]
    assert prediction.cat.categories.tolist() == occurring
    assert prediction.tolist() == pbmc_model.predict(annotated).tolist()

    probability = annotated.obs["tosica_probability"]
    assert probability.dtype == np.float32
    table = annotated.obsm["tosica_probabilities"]
    assert isinstance(table, pd.DataFrame)
    assert table.shape == (n, 10)
    # In the order of the labels, but with no slash, which could not be written to a file.
    assert table.columns.tolist()[:2] == [
        "CD4+|CD25 T Reg",
        "CD4+|CD45RA+|CD25- Naive T",
    ]
    assert table.columns.tolist() == [
        label.replace("/", "|") for label in pbmc_model.labels
    ]
    assert table.index.equals(annotated.obs_names)
    assert_array_equal(probability, table.max(axis=1))

    attention = annotated.obsm["X_tosica"]
    assert isinstance(attention, np.ndarray)
    assert attention.dtype == np.float32
    assert attention.shape == (n, len(pbmc_model.gene_sets))
    assert_allclose(attention, pbmc_model.get_attention(annotated), atol=1e-7)

    record = annotated.uns["tosica"]
    assert record["gene_sets"].tolist() == pbmc_model.gene_sets
    assert record["labels"].tolist() == pbmc_model.labels
    assert record["cutoff"] == 0.1
    assert record["model"] == pbmc_model.fingerprint
    assert record["version"] == version("tosica")


def test_nothing_else_changes(pbmc_model, pbmc_query, contents, new_keys):
    pbmc_query.layers["more"] = pbmc_query.X.toarray().astype(np.float64)
    pbmc_query.raw = pbmc_query.copy()
    original = contents(pbmc_query)
    assert pbmc_model.annotate(pbmc_query) is None
    keys = KEYS | {
        "uns/tosica/genes_pvalue",
        "uns/tosica/batch_signal",
        "uns/tosica/likeness",
    }
    assert new_keys(original, contents(pbmc_query)) == keys
    # Another call replaces all, tables too.
    pbmc_model.annotate(pbmc_query, probabilities=True)
    pbmc_model.annotate(pbmc_query)
    assert new_keys(original, contents(pbmc_query)) == keys


@pytest.mark.parametrize("change", ["order", "cells"])
def test_a_result_is_not_written_to_other_cells(pbmc_model, pbmc_query, change):
    result = pbmc_model.infer(pbmc_query)
    other_cells = (
        pbmc_query[::-1].copy() if change == "order" else pbmc_query[:3].copy()
    )
    with pytest.raises(
        ValueError,
        match="adata has other cells than the 175 of this result, or another order",
    ):
        result.to_adata(other_cells)
    assert "tosica_prediction" not in other_cells.obs


def test_nothing_is_written_if_a_part_cannot_be_made(toy_model, toy_query, unchanged):
    result = replace(toy_model.infer(toy_query), labels=["x/y", "x|y", "z"])
    with unchanged(toy_query), pytest.raises(ValueError, match="a slash becomes a bar"):
        result.to_adata(toy_query, probabilities=True)


def test_cutoff(pbmc_model, pbmc_query):
    pbmc_model.annotate(pbmc_query)
    assert "Unknown" not in set(pbmc_query.obs["tosica_prediction"])
    highest = float(pbmc_query.obs["tosica_probability"].max())
    pbmc_model.annotate(pbmc_query, cutoff=highest)
    named = pbmc_query.obs["tosica_prediction"] != "Unknown"
    assert_array_equal(named, pbmc_query.obs["tosica_probability"] == highest)
    above = float(np.nextafter(np.float32(highest), np.float32(2)))
    assert above < 1
    pbmc_model.annotate(pbmc_query, cutoff=above)
    assert set(pbmc_query.obs["tosica_prediction"]) == {"Unknown"}
    assert pbmc_query.uns["tosica"]["cutoff"] == above


@pytest.mark.parametrize("kind", ["copy", "view", "copy of a view"])
def test_backed_query_that_would_have_to_be_copied(
    toy_model, toy_query, tmp_path, kind
):
    toy_query.write_h5ad(tmp_path / "query.h5ad")
    on_disk = anndata.read_h5ad(tmp_path / "query.h5ad", backed="r")
    try:
        query = on_disk[:20] if "view" in kind else on_disk
        with pytest.raises(
            ValueError, match=r"annotate cannot write to .*: call adata\.to_memory"
        ):
            toy_model.annotate(query, copy="copy" in kind)
        assert list(query.obs) == ["kind", "donor"]
    finally:
        on_disk.file.close()


# --------------------------------------------------------------------------- on disk


@pytest.mark.parametrize("weights", ["head.weight", "linear.weights"])
def test_spoilt_weights_give_no_label(toy, toy_query, train, weights):
    """The largest of numbers that are none would be the first."""
    model = train(toy)
    with torch.no_grad():
        model.module.state_dict()[weights].view(-1)[0] = np.nan
    original = toy_query.copy()
    with pytest.raises(
        ValueError, match="no finite probabilities: its weights are spoilt"
    ):
        model.annotate(toy_query)
    with pytest.raises(ValueError, match="its weights are spoilt"):
        model.predict(toy_query)
    assert toy_query.obs.equals(original.obs)
    assert not toy_query.obsm
    assert toy_query.uns.keys() == original.uns.keys()


# --------------------------------------------------------------------------- the cutoff


def test_automatic_cutoff_calls_cells_unknown_with_two_labels(
    toy, toy_query, train, caplog
):
    two = toy[toy.obs["kind"] != "c"].copy()
    model = train(two)
    model.annotate(toy_query, cutoff="auto")
    assert "calls no cell" not in caplog.text
    assert toy_query.uns["tosica"]["cutoff"] == 0.75
    unknown = toy_query.obs["tosica_prediction"] == "Unknown"
    assert unknown.any()
    assert (unknown == (toy_query.obs["tosica_probability"] < 0.75)).all()
    model.annotate(toy_query)
    assert "calls no cell" not in caplog.text
    model.annotate(toy_query, cutoff=0.5)
    assert "Unknown" not in set(toy_query.obs["tosica_prediction"])
    assert (
        'annotate: cutoff=0.5 calls no cell "Unknown", because the best of 2 labels always has a '
        "probability of at least 0.5: pass a higher one, or cutoff='auto', which is 0.75 here"
    ) in caplog.messages


# --------------------------------------------------------------------------- what is not replaced


def annotate_in_memory(model, query, folder):
    model.annotate(query, key_added="pca")


def write_result(model, query, folder):
    model.infer(query).to_adata(query, key_added="pca")


def annotate_file(model, query, folder):
    output = folder / "annotated.h5ad"
    tosica.tl.annotate_file(folder / "query.h5ad", model, output, key_added="pca")


@pytest.mark.parametrize("uns", [{"pca": {"variance": [1.0]}}, {}])
@pytest.mark.parametrize("write", [annotate_in_memory, write_result, annotate_file])
def test_what_is_no_annotation_is_not_replaced(
    uns, write, toy_model, toy_query, tmp_path
):
    toy_query.uns = uns
    toy_query.obsm["X_pca"] = np.ones((60, 3))
    path = tmp_path / "query.h5ad"
    toy_query.write_h5ad(path)
    with pytest.raises(ValueError, match=r"'pca' would replace .*pca'\], which is no"):
        write(toy_model, toy_query, tmp_path)
    assert_array_equal(toy_query.obsm["X_pca"], np.ones((60, 3)))
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture(scope="module")
def layer_model():
    """A model of a layer, which it looks for in a query."""
    reference = toy_reference().copy()
    reference.layers["counts"] = reference.X.copy()
    return train_toy(reference, setup={"layer": "counts"}, max_epochs=3)


def genes_backwards(query, folder):
    return query[:, ::-1]


def with_a_column_twice(query, folder):
    query.obs = pd.concat([query.obs, query.obs[["donor"]]], axis=1)
    return query


def backed_view(query, folder):
    query.write_h5ad(folder / "query.h5ad")
    return anndata.read_h5ad(folder / "query.h5ad", backed="r")[:50]


@pytest.mark.parametrize("make", [genes_backwards, with_a_column_twice, backed_view])
@pytest.mark.parametrize("matrix", ["X", "layer", "layer of the reference", "raw"])
def test_some_cells_of_any_query_are_read_from_its_matrix(
    make, matrix, toy_model, layer_model, toy_query, tmp_path
):
    model, options = toy_model, {}
    expected = toy_model.infer(toy_query, indices=range(40)).probability
    counts = toy_query.X.copy()
    if matrix == "raw":
        toy_query.raw = toy_query
        options = {"use_raw": True}
    elif matrix != "X":
        toy_query.layers["counts"] = counts
        options = {"layer": "counts"}
    if matrix == "layer of the reference":
        model, options = layer_model, {}
        expected = model.infer(toy_query, indices=range(40)).probability
    if matrix != "X":
        toy_query.X = -counts
    query = make(toy_query, tmp_path)
    found = model.infer(query, indices=range(40), **options).probability
    assert_allclose(found, expected, rtol=1e-5)
