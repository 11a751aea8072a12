"""Adapting a trained model to a query: labels that are added, probabilities that are recalibrated."""

import copy
import re
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scvi
import torch
from anndata import AnnData
from numpy.testing import assert_allclose

import tosica
from tosica import TOSICA
from tosica._probabilities import conformal_threshold

NEW, UNLABELED = "CD19+ B", "unlabeled"
# A third of these are plasma cells.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The [0-9]+ cells labeled .* look like two types"
)


@pytest.fixture(scope="module")
def base(_pbmc):
    """A model of the real cells without B cells: not to be changed."""
    reference = _pbmc[0][_pbmc[0].obs["bulk_labels"] != NEW].copy()
    TOSICA.setup_anndata(reference, labels_key="bulk_labels")
    scvi.settings.seed = 0
    model = TOSICA(reference, embed_dim=16)
    model.train(
        max_epochs=5,
        accelerator="cpu",
        plan_kwargs={"lr": 1e-2},
    )
    return model


def make_query(_pbmc):
    """B cells of the reference, 30 of them with their label, and every other cell of the query."""
    b_cells = _pbmc[0][_pbmc[0].obs["bulk_labels"] == NEW]
    other_cells = _pbmc[1][::2]
    cells = AnnData(
        np.vstack([b_cells.X.toarray(), other_cells.X.toarray()]),
        obs=pd.concat([b_cells.obs, other_cells.obs])[["bulk_labels"]],
        var=other_cells.var,
    )
    cells.obs["known"] = UNLABELED
    cells.obs.iloc[:30, 1] = NEW
    return cells


@pytest.fixture
def query(_pbmc):
    return make_query(_pbmc)


@pytest.fixture
def unseen(_pbmc):
    return _pbmc[1][1::2].copy()


@pytest.fixture(scope="module")
def grown(base, _pbmc):
    """The model with the new label: not to be changed."""
    model = TOSICA.load_query_data(make_query(_pbmc), base, "known", UNLABELED)
    model.fit_new_labels()
    return model


def test_a_new_type_is_found_and_the_others_are_kept(base, grown, unseen):
    truth = unseen.obs["bulk_labels"].astype(str).to_numpy()
    old_labels, new_labels = (
        np.asarray(model.predict(unseen)) for model in (base, grown)
    )
    is_new = truth == NEW
    assert (new_labels[is_new] == NEW).mean() >= 0.8
    assert (new_labels[~is_new] == old_labels[~is_new]).mean() >= 0.97
    assert grown.labels == [*base.labels, NEW]
    assert grown.training_.label_counts == base.training_.label_counts | {NEW: 30}


def test_before_and_after_the_new_label_is_fitted(
    base, query, unseen, contents, tmp_path
):
    """The model that is extended and the query stay as they are; a saved model is extended alike."""
    fingerprint, labels, before_query = (
        base.fingerprint,
        list(base.labels),
        contents(query),
    )
    base.save(tmp_path / "base")
    model = TOSICA.load_query_data(query, tmp_path / "base", "known", UNLABELED)
    old_probabilities, new_probabilities = (
        m.predict(unseen, soft=True) for m in (base, model)
    )
    assert_allclose(new_probabilities[base.labels], old_probabilities, atol=1e-6)
    assert new_probabilities[NEW].max() < 1e-6
    pd.testing.assert_frame_equal(
        model.get_attention(unseen), base.get_attention(unseen)
    )
    model.fit_new_labels()
    first_fingerprint = model.fingerprint
    with pytest.raises(ValueError, match="call fit_new_labels in place of train"):
        model.train()
    model.fit_new_labels()
    assert model.fingerprint == first_fingerprint
    assert len(model.training_.novelty_statistics.labels) == len(model.labels)
    assert (base.fingerprint, base.labels) == (fingerprint, labels)
    assert NEW not in base.training_.label_counts
    assert contents(query) == before_query
    # No cell is kept.
    state = [
        *model.module.state_dict().values(),
        *vars(model.training_.novelty_statistics).values(),
    ]
    rows = [
        array.shape[0]
        for array in state
        if array.ndim == 2 and query.n_vars in array.shape
    ]
    assert max(rows) <= max(len(model.labels), query.n_vars)
    assert model.adata is None


def test_terms_and_unlabeled_cells_of_the_reference_stay(
    toy, toy_query, train, tmp_path
):
    toy.obs["kind"] = toy.obs["kind"].cat.rename_categories({"c": "?"})
    model = train(toy, setup={"unlabeled_category": "?"})
    model.ontology_term_ids_ = {"a": "CL:0000037"}
    grown = TOSICA.load_query_data(toy_query, model)
    grown.fit_new_labels()
    assert grown.labels == [*model.labels, "c"]
    assert grown.ontology_term_ids_ == model.ontology_term_ids_
    grown.save(tmp_path / "grown")
    assert TOSICA.load(tmp_path / "grown").labels == grown.labels


def test_old_labels_keep_their_odds(base, grown):
    # Cells of the reference, whose expression is not clipped otherwise than before.
    old_odds = base.predict(base.adata, soft=True)
    new_odds = grown.predict(base.adata, soft=True)[base.labels]
    new_odds = new_odds.div(new_odds.sum(axis=1), axis=0)
    assert_allclose(new_odds, old_odds, atol=1e-5)


def test_saved_and_loaded(grown, unseen, save_and_load):
    loaded = save_and_load(grown)
    assert loaded.labels == grown.labels
    assert loaded.fingerprint == grown.fingerprint
    expected = grown.predict(unseen, soft=True)
    pd.testing.assert_frame_equal(loaded.predict(unseen, soft=True), expected)
    loaded.annotate(unseen)
    assert unseen.obs["tosica_prediction"].cat.categories[-1] == NEW
    *other_colors, color = unseen.uns["tosica_prediction_colors"]
    assert color not in other_colors
    # The new label is known now, and B cells are no longer unlike all labels.
    is_new = (unseen.obs["bulk_labels"] == NEW).to_numpy()
    assert (unseen.obs["tosica_novelty_pvalue"][is_new] > 0.05).mean() > 0.5


def test_extended_twice(grown, query, unseen):
    query.obs["known"] = UNLABELED
    query.obs.iloc[-40:, 1] = "other cells"
    grown_twice = TOSICA.load_query_data(query, grown, "known", UNLABELED)
    grown_twice.fit_new_labels()
    assert grown_twice.labels == [*grown.labels, "other cells"]
    truth = unseen.obs["bulk_labels"] == NEW
    assert (np.asarray(grown_twice.predict(unseen))[truth] == NEW).mean() > 0.5


def test_several_new_labels_and_labels_of_the_model(base, query):
    # Cells with labels of the model show what the query's batch differs in.
    query.obs["known"] = query.obs["bulk_labels"].astype(str)
    query.obs.iloc[:15, 1] = "B cells, first"
    query.obs.iloc[15:30, 1] = "B cells, second"
    query.obs.iloc[-5:, 1] = np.nan
    with_both = query[query.obs["known"] != NEW].copy()
    model = TOSICA.load_query_data(with_both, base, "known")
    model.fit_new_labels()
    assert model.labels[-2:] == ["B cells, first", "B cells, second"]
    predictions = np.asarray(model.predict(with_both))
    assert np.isin(predictions[:30], model.labels[-2:]).mean() > 0.8


def test_genes_that_the_query_lacks_get_no_weight(base, query):
    fewer_genes = query[:, query.var_names[::-1][40:]].copy()
    with pytest.warns(
        UserWarning, match="^The query has only 725 of the model's 765 genes"
    ):
        model = TOSICA.load_query_data(fewer_genes, base, "known", UNLABELED)
    model.fit_new_labels()
    weights = model.get_linear_weights()[NEW]
    lacking = ~weights.index.isin(fewer_genes.var_names)
    assert lacking.sum() == 40
    raw = model.module.linear.weights_of()[0][-1].numpy()
    assert not raw[~np.isin(model.get_var_names(), fewer_genes.var_names)].any()
    assert raw[np.isin(model.get_var_names(), fewer_genes.var_names)].any()


def test_the_new_label_is_explained(grown, unseen):
    cells = unseen[unseen.obs["bulk_labels"] == NEW].copy()
    grown.annotate(cells)
    tosica.tl.attribute(cells, grown)
    assert (cells.obs["tosica_prediction"] == NEW).mean() >= 0.8
    assert cells.uns["tosica_attribution"]["completeness_error"] < 0.02
    assert {"CD79A", "CD79B", "MS4A1"} & set(
        tosica.get.genes_df(cells, NEW, n_genes=10)["gene"]
    )


def test_a_query_without_new_labels_changes_nothing(base, query, unseen):
    query.obs["known"] = UNLABELED
    with pytest.warns(
        UserWarning, match=r"has no label that the model lacks.*: call annotate, or"
    ):
        model = TOSICA.load_query_data(query, base, "known", UNLABELED)
    model.fit_new_labels()
    assert model.labels == base.labels
    old_probabilities, new_probabilities = (
        m.predict(unseen, soft=True) for m in (base, model)
    )
    assert_allclose(new_probabilities, old_probabilities, atol=1e-6)


def test_cells_of_new_labels_alone_are_warned_of(base, query):
    model = TOSICA.load_query_data(query[:30].copy(), base, "known", None)
    with pytest.warns(
        UserWarning, match="^The query has cells of new labels only, so that diff"
    ):
        model.fit_new_labels()


def test_labeled_cells_of_two_types_are_warned_of(base, pbmc_ref):
    """Those labeled as B cells are B and plasma cells, which have clusters of their own."""
    query = pbmc_ref[pbmc_ref.obs["bulk_labels"].isin([NEW, "CD56+ NK"])].copy()
    is_new = (query.obs["bulk_labels"] == NEW).to_numpy()
    for clusters, n_warnings in ((["4"], 0), (["4", "8"], 1)):
        query.obs["known"] = np.where(
            is_new & query.obs["louvain"].isin(clusters), NEW, UNLABELED
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            TOSICA.load_query_data(query, base, "known", UNLABELED).fit_new_labels()
        assert (
            sum("look like two types, of" in str(warning.message) for warning in caught)
            == n_warnings
        )


def test_models_that_cannot_be_extended(base, query, pbmc_ref):
    TOSICA.setup_anndata(pbmc_ref, labels_key="bulk_labels")
    untrained = TOSICA(pbmc_ref, embed_dim=16)
    with pytest.raises(
        RuntimeError, match=r"^The model is not trained: call model\.train\(\) first"
    ):
        TOSICA.load_query_data(query, untrained, "known", UNLABELED)
    alone = TOSICA(pbmc_ref, embed_dim=16, linear=False)
    alone.is_trained_ = True
    with pytest.raises(
        ValueError, match=r"^The model has no linear branch, which learns"
    ):
        TOSICA.load_query_data(query, alone, "known", UNLABELED)
    without = copy.copy(base)
    without.training_ = replace(base.training_, novelty_statistics=None)
    with pytest.raises(
        ValueError, match=r"^The model has no statistics of its reference, as it"
    ):
        TOSICA.load_query_data(query, without, "known", UNLABELED)


def test_queries_that_are_odd(base, query):
    query.obs["known"] = query.obs["known"].replace({NEW: base.labels[0].lower()})
    with pytest.warns(
        UserWarning,
        match=re.escape(f"becomes a label beside {base.labels[0]!r}: if they are "),
    ):
        model = TOSICA.load_query_data(query, base, "known", UNLABELED)
    assert len(model.labels) == len(base.labels) + 1
    query.var_names = [f"X{i}" for i in range(query.n_vars)]
    with (
        pytest.warns(UserWarning, match="beside"),
        pytest.raises(ValueError, match="genes"),
    ):
        TOSICA.load_query_data(query, base, "known", UNLABELED)


# --------------------------------------------------------------------------- recalibrated


@pytest.fixture
def model(pbmc_model):
    return copy.deepcopy(pbmc_model)


@pytest.fixture
def labeled(pbmc_query):
    """A query in which every third cell has a known label."""
    pbmc_query.obs["known"] = pbmc_query.obs["bulk_labels"].where(
        np.arange(pbmc_query.n_obs) % 3 == 0
    )
    return pbmc_query


def true_label_probabilities(soft, labels):
    return np.array([soft.at[cell, label] for cell, label in labels.dropna().items()])


def test_label_sets_follow_the_labeled_cells(model, labeled, contents, save_and_load):
    original, second_model = contents(labeled), copy.deepcopy(model)
    model.recalibrate(labeled, "known")
    assert contents(labeled) == original
    soft = model.predict(labeled, soft=True)
    of_truth = true_label_probabilities(soft, labeled.obs["known"])
    assert_allclose(model.training_.held_out_probabilities, of_truth[None], atol=1e-6)
    sets = model.predict_set(labeled, coverage=0.9)
    assert sets.equals(soft >= conformal_threshold(of_truth, 0.9))
    is_known = labeled.obs["known"].notna().to_numpy()
    covered = true_label_probabilities(sets, labeled.obs["bulk_labels"])
    assert covered[is_known].mean() >= 0.9
    assert covered[~is_known].mean() > 0.8
    loaded = save_and_load(model)
    assert loaded.fingerprint == model.fingerprint
    assert loaded.predict_set(labeled, coverage=0.9).equals(sets)
    # Only labeled cells count.
    second_model.recalibrate(labeled[is_known].copy(), "known")
    actual, expected = (
        fitted.training_.held_out_probabilities for fitted in (second_model, model)
    )
    assert_allclose(actual, expected, atol=1e-6)


def test_labels_stay_and_the_temperature_follows_the_errors(model, labeled):
    calibrated = model.predict(labeled, soft=True)
    # With half of the labels wrong, the model must become less sure, with right ones more so.
    right, wrong = copy.deepcopy(model), copy.deepcopy(model)
    labeled.obs["right"] = pd.Series(model.predict(labeled), index=labeled.obs_names)
    right.recalibrate(labeled, "right")
    labeled.obs["wrong"] = labeled.obs["right"].where(
        np.arange(labeled.n_obs) % 2 == 0, labeled.obs["right"].to_numpy()[::-1]
    )
    wrong.recalibrate(labeled, "wrong")
    assert (
        right.module.temperature < model.module.temperature < wrong.module.temperature
    )
    for recalibrated in (right, wrong):
        soft = recalibrated.predict(labeled, soft=True)
        assert (soft.to_numpy().argmax(1) == calibrated.to_numpy().argmax(1)).all()
    assert right.fingerprint != model.fingerprint


def test_labels_that_the_model_lacks_are_left_out_and_named(model, labeled, caplog):
    labels = labeled.obs["known"].astype(object)
    n_known = int(labels.notna().sum())
    labels.iloc[[0, 3]] = "Platelets"
    labeled.obs["known"] = labels
    model.recalibrate(labeled, "known")
    assert model.training_.held_out_probabilities.shape == (1, n_known - 2)
    record = next(r for r in caplog.records if "were left out" in r.message)
    assert record.levelname == "WARNING"
    assert record.message.startswith("recalibrate: 2 labeled cells")
    assert record.message.endswith("'Platelets'")
    assert f"took {n_known - 2} labeled cells" in caplog.text


def test_sets_are_empty_only_where_this_is_asked_for(model, labeled, caplog):
    model.recalibrate(labeled, "known")
    exact = model.predict_set(labeled, coverage=0.3, allow_empty=True)
    sets = model.predict_set(labeled, coverage=0.3)
    empty = ~exact.any(axis=1)
    assert empty.any()
    assert sets[~empty].equals(exact[~empty])
    best = model.predict(labeled, soft=True).idxmax(axis=1)
    for cell in labeled.obs_names[empty]:
        assert sets.columns[sets.loc[cell]].tolist() == [best[cell]]
    sentence = (
        f"predict_set: in {empty.sum()} of {labeled.n_obs} cells no label is as probable as "
        "coverage=0.3 asks for, and their set "
    )
    assert f"{sentence}is empty" in caplog.text
    assert f"{sentence}has only the best one; allow_empty=True leaves it" in caplog.text


@pytest.mark.parametrize(
    ("column", "error", "sentence"),
    [
        (
            "foreign",
            ValueError,
            "No cell of adata.obs['foreign'] has a label of the model",
        ),
        ("numbers", TypeError, "adata.obs['numbers'] holds float64 values, not groups"),
    ],
)
def test_wrong_columns(model, labeled, column, error, sentence):
    labeled.obs["foreign"] = "Platelets"
    labeled.obs["numbers"] = np.linspace(0, 1, labeled.n_obs)
    fingerprint = model.fingerprint
    with pytest.raises(error, match=re.escape(sentence)):
        model.recalibrate(labeled, column)
    assert model.fingerprint == fingerprint


def test_a_subset_of_the_labels_is_a_model(base, unseen, save_and_load):
    three_labels = base.labels[4:1:-1]
    base.label_parents_ = {three_labels[0]: "T", "T": "blood", base.labels[0]: "other"}
    model = base.subset(three_labels)
    base.label_parents_ = {}
    assert model.labels == base.labels[2:5]
    assert model.label_parents_ == {three_labels[0]: "T", "T": "blood"}
    model.annotate(unseen)
    assert set(model.training_.label_counts) == set(three_labels)
    loaded = save_and_load(model)
    assert loaded.predict(unseen).tolist() == unseen.obs["tosica_prediction"].tolist()
    with pytest.raises(ValueError, match="call recalibrate with labeled cells"):
        loaded.predict_set(unseen)


def test_random_numbers_of_the_caller_are_not_drawn(base, unseen, save_and_load):
    state = torch.get_rng_state()
    base.annotate(unseen, labels=base.labels[:3])
    save_and_load(base.subset(base.labels[:3]))
    assert torch.equal(torch.get_rng_state(), state)
