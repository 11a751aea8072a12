"""Labels in several columns, from broad to fine: a tree at setup, and predictions of every level."""

import re
from copy import copy
from functools import cache
from html import unescape

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from _cells import FAST_PLAN, toy_reference

import tosica
from tosica import TOSICA

BROAD = {"a": "first", "b": "first", "c": "second"}
LINEAGE = {"first": "all", "second": "all"}
KEYS = ["lineage", "broad", "kind"]


def with_levels(adata):
    adata.obs["broad"] = adata.obs["kind"].astype(str).map(BROAD).astype("category")
    adata.obs["lineage"] = adata.obs["broad"].astype(str).map(LINEAGE)
    return adata


@cache
def trained():
    reference = with_levels(toy_reference().copy())
    TOSICA.setup_anndata(reference, labels_key=KEYS)
    model = TOSICA(reference, embed_dim=16, n_heads=2)
    model.train(
        max_epochs=5,
        batch_size=16,
        accelerator="cpu",
        plan_kwargs=FAST_PLAN,
    )
    return model


@pytest.fixture
def model():
    return trained()


@pytest.fixture
def reference():
    return with_levels(toy_reference().copy())


def test_every_level_is_predicted_and_none_contradicts_another(model, toy_query):
    # Cells between the types are uncertain.
    toy_query.X = (toy_query.X + toy_query.X[::-1]).tocsr()
    model.annotate(toy_query, probabilities=True)
    fine = toy_query.obs["tosica_prediction"].astype(str)
    broad = toy_query.obs["tosica_prediction_broad"].astype(str)
    assert broad.tolist() == fine.map(BROAD).tolist()
    assert set(toy_query.obs["tosica_prediction_lineage"]) == {"all"}
    assert toy_query.uns["tosica"]["levels"].tolist() == KEYS[:-1]


def test_the_report_has_every_level(model, toy_query, tmp_path):
    model.annotate(toy_query)
    toy_query.obsm["X_umap"] = np.zeros((toy_query.n_obs, 2))
    path = tosica.report(toy_query, tmp_path / "page.html")
    page = re.sub("<[^>]+>", " ", unescape(path.read_text(encoding="utf8")))
    words = " ".join(page.split())
    assert "Cells of each label of the level 'lineage'" in words
    n_cells = toy_query.obs["tosica_prediction_broad"].value_counts()["first"]
    assert re.search(rf"first {n_cells} \d+ % [01]\.\d\d (a, b|b, a) second", words)


def test_probabilities_of_groups_are_sums(model, toy_query):
    model.annotate(toy_query, probabilities=True)
    sums = toy_query.obsm["tosica_probabilities"].T.groupby(BROAD).sum().T
    broad = toy_query.obs["tosica_prediction_broad"].astype(str)
    expected = [sums.at[cell, group] for cell, group in broad.items()]
    probability = toy_query.obs["tosica_probability_broad"]
    np.testing.assert_allclose(probability, expected, rtol=1e-5)
    assert (toy_query.obs["tosica_probability_lineage"] > 0.999).all()


def test_one_cutoff_holds_for_all_levels(model, toy_query):
    of_a_and_b = toy_query.X[::3] + toy_query.X[1::3]
    cells = toy_query[:20].copy()
    cells.X = of_a_and_b
    probability = model.annotate(cells, copy=True).obs["tosica_probability"]
    model.annotate(cells, cutoff=float(probability.median()))
    assert "Unknown" in set(cells.obs["tosica_prediction"])
    assert set(cells.obs["tosica_prediction_broad"]) == {"first"}


def test_the_levels_are_the_parents_of_the_labels(model):
    assert model.label_parents_ == BROAD | LINEAGE


def test_colors_are_those_of_the_groups_that_occur(model, toy_query):
    model.annotate(toy_query)
    groups = toy_query.obs["tosica_prediction_broad"].cat.categories
    colors = toy_query.uns["tosica_prediction_broad_colors"]
    assert len(colors) == len(groups)
    assert colors[list(groups).index("second")] == "#0000cc"


def test_saved_and_loaded(model, toy_query, save_and_load):
    loaded = save_and_load(model)
    annotated = loaded.annotate(toy_query, copy=True)
    model.annotate(toy_query)
    pd.testing.assert_frame_equal(annotated.obs, toy_query.obs)
    assert loaded.label_parents_ == model.label_parents_


def test_parents_that_were_taken_away_stay_away(model, save_and_load):
    model = copy(model)
    model.label_parents_ = {}
    assert save_and_load(model).label_parents_ == {}
    assert model.subset(["a", "b"]).label_parents_ == {}


def test_from_disk_as_in_memory(model, toy_query, tmp_path):
    toy_query.obs["tosica_prediction_old"] = "of another model"
    levels = np.array(["old"], dtype=object)
    toy_query.uns["tosica"] = {"labels": ["old"], "levels": levels}
    toy_query.write_h5ad(tmp_path / "query.h5ad")
    output = tmp_path / "annotated.h5ad"
    tosica.tl.annotate_file(tmp_path / "query.h5ad", model, output, cells_per_part=25)
    annotated = ad.read_h5ad(output)
    model.annotate(toy_query)
    assert set(annotated.obs) == set(toy_query.obs)
    for key in KEYS[:-1]:
        name = f"tosica_prediction_{key}"
        assert annotated.obs[name].tolist() == toy_query.obs[name].tolist()
    assert annotated.uns["tosica"]["levels"].tolist() == KEYS[:-1]


def test_columns_of_an_earlier_model_are_gone(model, toy_model, toy_query):
    model.annotate(toy_query)
    toy_model.annotate(toy_query)
    assert not [name for name in toy_query.obs if "broad" in name or "lineage" in name]


def test_a_subset_has_the_groups_of_its_labels(model, toy_query):
    model.annotate(toy_query, labels=["first"])
    assert set(toy_query.obs["tosica_prediction"]) == {"a", "b"}
    assert set(toy_query.obs["tosica_prediction_broad"]) == {"first"}


@pytest.mark.parametrize(("label", "group"), [("new", "new"), ("first", "first")])
def test_a_label_that_is_added_is_in_the_group_of_its_name(
    label, group, model, toy_query
):
    toy_query.obs["kind"] = np.where(np.arange(60) < 30, label, "a")
    grown = TOSICA.load_query_data(toy_query, model)
    broad = grown._levels[-1]
    assert broad.groups[broad.codes[-1]] == group


def test_an_adapted_model_keeps_the_levels(model, toy_query):
    model.annotate(toy_query, adapt=True)
    assert "tosica_prediction_broad" in toy_query.obs


def test_a_reference_of_several_modalities(cite):
    cite.obs["broad"] = cite.obs["kind"].astype(str).map(BROAD)
    TOSICA.setup_mudata(cite, labels_key=["broad", "kind"])
    model = TOSICA(cite, embed_dim=8, n_heads=2)
    assert model.label_parents_ == BROAD


def test_a_group_may_have_the_name_of_its_label(reference):
    reference.obs["broad"] = reference.obs["kind"].astype(str).replace("b", "a")
    TOSICA.setup_anndata(reference, labels_key=["broad", "kind"])
    assert TOSICA(reference, embed_dim=8, n_heads=2).label_parents_ == {"b": "a"}


def test_cells_without_a_label_need_no_group(reference):
    reference.obs["kind"] = reference.obs["kind"].cat.add_categories("none yet")
    reference.obs.loc[reference.obs_names[:5], "kind"] = "none yet"
    reference.obs.loc[reference.obs_names[:5], "broad"] = None
    TOSICA.setup_anndata(reference, KEYS[1:], "none yet")
    assert TOSICA(reference, embed_dim=8, n_heads=2).label_parents_ == BROAD


def missing(obs):
    obs.loc[obs.index[:2], "broad"] = None


def two_above(obs):
    obs.loc[obs.index[0], "broad"] = "second"


def of_two_places(obs):
    obs["broad"] = obs["kind"].map({"a": "b", "b": "other", "c": "b"})


@pytest.mark.parametrize(
    ("change", "keys", "error", "sentence"),
    [
        (
            missing,
            ["broad", "kind"],
            ValueError,
            "2 cells have a label in adata.obs['kind'], such as 'a', and none in adata.obs['broad']: fill it in",
        ),
        (
            two_above,
            ["broad", "kind"],
            ValueError,
            "adata.obs['kind'] has 'a' below 'first' (29 cells) and 'second' (1 cells) of adata.obs['broad']: ",
        ),
        (
            None,
            ["kind", "broad"],
            ValueError,
            "labels_key names columns from broad to fine: pass ['broad', 'kind'], not ['kind', 'broad'].",
        ),
        (of_two_places, ["broad", "kind"], ValueError, "'b' is in several columns"),
        (None, [], ValueError, "labels_key names no column: give one, or several"),
        (None, ["kind", "kind"], ValueError, "names the column 'kind' more than once"),
        (None, 5, TypeError, "labels_key must be a string or a list of strings, not 5"),
    ],
)
def test_columns_that_are_no_tree(change, keys, error, sentence, reference, unchanged):
    if change is not None:
        change(reference.obs)
    with unchanged(reference), pytest.raises(error, match=re.escape(sentence)):
        TOSICA.setup_anndata(reference, labels_key=keys)


def test_several_columns_of_one_level_are_one(reference):
    TOSICA.setup_anndata(reference, labels_key=["kind"])
    model = TOSICA(reference, embed_dim=8, n_heads=2)
    assert model.label_parents_ == {}
    assert model.registry_["setup_args"]["labels_key"] == "kind"


def test_a_label_with_the_name_of_a_group_is_the_label(caplog):
    reference = toy_reference().copy()
    kind = reference.obs["kind"].astype(str)
    reference.obs["broad"] = kind.replace({"c": "b"})
    TOSICA.setup_anndata(reference, ["broad", "kind"])
    model = TOSICA(reference, embed_dim=8, n_heads=2)
    model.train(max_epochs=1, plan_kwargs=FAST_PLAN)
    assert model.subset(["a", "b"]).labels == ["a", "b"]
    assert "'b' is taken as the label, not as all labels of the group" in caplog.text
