"""Labels come back in the type that they have in the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc

import tosica

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anndata import AnnData

# What a, b and c are called, and which type is to come back.
ORDER = ["young", "old", "Alt"]
TYPES: dict[str, tuple[Callable[[pd.Series], Any], str | None, bool]] = {
    "integers": (lambda kind: kind.cat.codes.astype("int64") + 3, "int64", False),
    "small integers": (lambda kind: kind.cat.codes, "int8", False),
    "booleans": (lambda kind: kind == "a", "bool", False),
    "floats": (lambda kind: kind.cat.codes / 2, "float64", False),
    "nullable": (lambda kind: kind.cat.codes.astype("Int64"), "int64", False),
    "objects": (lambda kind: kind.cat.codes.astype(object), "int64", False),
    "categorical integers": (lambda kind: kind.cat.rename_categories([3, 1, 2]), "int64", False),
    "ordered integers": (lambda kind: kind.cat.rename_categories([3, 1, 2]).cat.as_ordered(), "int64", True),
    "ordered text": (lambda kind: kind.cat.rename_categories(ORDER).cat.as_ordered(), None, True),
    "text": (lambda kind: kind.astype(str), None, False),
}


def known(adata: AnnData, name: str) -> pd.Series:
    return pd.Series(TYPES[name][0](adata.obs["kind"]), index=adata.obs_names)


@pytest.mark.parametrize("name", TYPES)
def test_predictions_have_the_type_of_the_labels(toy, toy_query, train, fast_plan, tmp_path, name):
    _, dtype, ordered = TYPES[name]
    truth = known(toy_query, name)
    toy.obs["kind"] = known(toy, name)
    of_labels = toy.obs["kind"].astype("category").cat.categories
    model = train(toy, max_epochs=10, plan_kwargs=fast_plan)
    model.save(tmp_path / "model")
    for one in (model, tosica.TOSICA.load(tmp_path / "model")):
        assert one.labels == [str(label) for label in of_labels]
        found = one.predict(toy_query)
        assert found.dtype == (object if dtype is None else np.dtype(dtype))
        assert (found == truth.to_numpy()).mean() > 0.9
        soft = one.predict(toy_query, soft=True)
        sets = one.predict_set(toy_query, coverage=0.8)
        assert list(soft.columns) == list(sets.columns) == list(of_labels)
        assert soft.idxmax(axis=1).tolist() == found.tolist()
        one.annotate(toy_query)
        prediction = toy_query.obs["tosica_prediction"]
        assert prediction.tolist() == found.tolist()
        assert prediction.cat.ordered == ordered
        assert list(prediction.cat.categories) == list(of_labels)
        if dtype is not None:
            assert prediction.cat.categories.dtype == np.dtype(dtype)
    again = tosica.TOSICA.load(tmp_path / "model", adata=toy)
    assert again.predict(toy_query).tolist() == found.tolist()


@pytest.mark.parametrize("ending", ["h5ad", "zarr"])
@pytest.mark.parametrize("name", ["integers", "booleans", "ordered text"])
@pytest.mark.filterwarnings("ignore::UserWarning:zarr")
def test_files_hold_the_type(toy, toy_query, train, tmp_path: Path, name, ending):
    toy.obs["kind"] = known(toy, name)
    model = train(toy)
    source, output = tmp_path / "query.h5ad", tmp_path / f"annotated.{ending}"
    toy_query.write_h5ad(source)
    tosica.tl.annotate_file(source, model, output, cells_per_part=20)
    model.annotate(toy_query)
    expected = toy_query.obs["tosica_prediction"]
    toy_query.write_h5ad(tmp_path / "own.h5ad")
    joined = ad.read_h5ad(output) if ending == "h5ad" else ad.read_zarr(output)
    for found in (joined, ad.read_h5ad(tmp_path / "own.h5ad")):
        pd.testing.assert_series_equal(found.obs["tosica_prediction"], expected)


def test_numbers_become_text_beside_unknown(toy, toy_query, train, caplog, tmp_path):
    toy.obs["kind"] = known(toy, "integers")
    model = train(toy)
    with caplog.at_level("INFO", logger="tosica"):
        model.annotate(toy_query, cutoff=0.9)
    prediction = toy_query.obs["tosica_prediction"]
    assert "Unknown" in set(prediction)
    assert set(prediction) <= {"3", "4", "5", "Unknown"}
    assert (
        "annotate: labels are written as text, because files hold no int64 beside 'Unknown'; cutoff=0 calls no cell so"
    ) in caplog.messages
    toy_query.write_h5ad(tmp_path / "query.h5ad")


def test_unknown_is_last_in_an_order(toy, toy_query, train):
    toy.obs["kind"] = known(toy, "ordered text")
    train(toy).annotate(toy_query, cutoff=0.9)
    prediction = toy_query.obs["tosica_prediction"]
    assert prediction.cat.ordered
    assert prediction.cat.categories[-1] == "Unknown"


def test_what_marks_unlabeled_cells_has_another_type(toy, toy_query, train):
    toy.obs["kind"] = known(toy, "integers").astype(object)
    toy.obs.loc["cell4", "kind"] = "none"
    model = train(toy, setup={"unlabeled_category": "none"})
    assert model.predict(toy_query).dtype == np.int64


def test_tools_take_labels_that_are_numbers(toy, toy_query, train):
    truth = known(toy_query, "integers")
    toy.obs["kind"] = known(toy, "integers")
    model = train(toy)
    model.annotate(toy_query, probabilities=True)
    assert list(toy_query.obsm["tosica_probabilities"].columns) == ["3", "4", "5"]
    toy_query.obs["truth"] = truth
    [accuracy] = tosica.tl.evaluate(toy_query, "truth").summary["accuracy"]
    assert accuracy == (toy_query.obs["tosica_prediction"] == truth).mean()
    toy_query.obs["cluster"] = np.where(truth == 3, "x", "y")
    tosica.tl.majority_vote(toy_query, "cluster")
    assert toy_query.obs["tosica_majority_vote"].cat.categories.dtype == np.int64
    tosica.tl.majority_vote(toy_query, "cluster", 1)
    assert "Heterogeneous" in set(toy_query.obs["tosica_majority_vote"])
    tosica.tl.rank_gene_sets(toy_query, groupby="tosica_prediction")
    tosica.tl.attribute(toy_query, model)
    tosica.tl.novelty(toy_query, model)
    tosica.pl.gene_set_heatmap(toy_query, groupby="tosica_prediction", show=False)
    tosica.pl.confusion(toy_query, "truth", show=False)
    toy_query.obsm["X_umap"] = np.random.default_rng(0).normal(size=(60, 2))
    sc.pl.umap(toy_query, color="tosica_prediction", show=False)
    # Labels that a person corrected are known by their numbers, too.
    model.recalibrate(toy_query, "truth")


def test_new_labels_of_the_same_type(toy, train):
    codes = known(toy, "integers")
    reference = toy[codes != 5].copy()
    reference.obs["kind"] = codes[codes != 5]
    model = train(reference)
    toy.obs["kind"] = codes
    grown = tosica.TOSICA.load_query_data(toy, model)
    grown.train()
    assert grown.labels == ["3", "4", "5"]
    assert grown.predict(toy).dtype == np.int64
    toy.obs["kind"] = codes.astype(str).where(codes != 5, "new")
    grown = tosica.TOSICA.load_query_data(toy, model)
    assert grown.labels == ["3", "4", "new"]
    assert grown.predict(toy).dtype == object
    assert model.predict(toy).dtype == np.int64
