"""Probabilities and label sets, calibrated by labelled cells of another batch."""

from __future__ import annotations

import copy
import logging
import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

import tosica
from tosica._stats import conformal_threshold

if TYPE_CHECKING:
    from anndata import AnnData


@pytest.fixture
def model(pbmc_model: tosica.TOSICA) -> tosica.TOSICA:
    return copy.deepcopy(pbmc_model)


@pytest.fixture
def labeled(pbmc_query: AnnData) -> AnnData:
    """A query in which every third cell has a known label."""
    query = pbmc_query.copy()
    is_known = np.arange(query.n_obs) % 3 == 0
    query.obs["known"] = query.obs["bulk_labels"].where(is_known)
    return query


def true_label_probabilities(soft: pd.DataFrame, labels: pd.Series) -> np.ndarray:
    return np.array([soft.at[cell, label] for cell, label in labels.dropna().items()])


def test_label_sets_follow_the_labelled_cells(model, labeled):
    model.recalibrate(labeled, "known")
    soft = model.predict(labeled, soft=True)
    of_truth = true_label_probabilities(soft, labeled.obs["known"])
    np.testing.assert_allclose(model.training_.held_out_probabilities, of_truth[None], atol=1e-6)
    sets = model.predict_set(labeled, coverage=0.9)
    assert sets.equals(soft >= conformal_threshold(of_truth, 0.9))
    is_known = labeled.obs["known"].notna().to_numpy()
    covered = true_label_probabilities(sets, labeled.obs["bulk_labels"])
    assert covered[is_known].mean() >= 0.9
    assert covered[~is_known].mean() > 0.8


def test_labels_stay_and_the_temperature_follows_the_errors(model, labeled):
    before = model.predict(labeled, soft=True)
    # With half of the labels wrong, the model must become less sure, with right ones more so.
    right, wrong = copy.deepcopy(model), copy.deepcopy(model)
    labeled.obs["right"] = pd.Series(model.predict(labeled), index=labeled.obs_names)
    right.recalibrate(labeled, "right")
    labeled.obs["wrong"] = labeled.obs["right"].where(
        np.arange(labeled.n_obs) % 2 == 0, labeled.obs["right"].to_numpy()[::-1]
    )
    wrong.recalibrate(labeled, "wrong")
    assert right.module.temperature < model.module.temperature < wrong.module.temperature
    for other in (right, wrong):
        soft = other.predict(labeled, soft=True)
        assert (soft.to_numpy().argmax(1) == before.to_numpy().argmax(1)).all()
    assert right.fingerprint != model.fingerprint


def test_only_labelled_cells_count(model, labeled):
    other = copy.deepcopy(model)
    model.recalibrate(labeled, "known")
    other.recalibrate(labeled[labeled.obs["known"].notna()].copy(), "known")
    np.testing.assert_allclose(
        model.training_.held_out_probabilities, other.training_.held_out_probabilities, atol=1e-6
    )


def test_the_query_stays_as_it_was(model, labeled, contents):
    before = contents(labeled)
    model.recalibrate(labeled, "known")
    assert contents(labeled) == before


def test_saved_and_loaded(model, labeled, tmp_path):
    model.recalibrate(labeled, "known")
    model.save(tmp_path / "model")
    loaded = tosica.TOSICA.load(tmp_path / "model")
    assert loaded.fingerprint == model.fingerprint
    sets = model.predict_set(labeled, coverage=0.9)
    assert loaded.predict_set(labeled, coverage=0.9).equals(sets)


def test_labels_that_the_model_lacks_are_left_out_and_named(model, labeled, caplog):
    known = labeled.obs["known"].astype(object)
    n_known = int(known.notna().sum())
    known.iloc[[0, 3]] = "Platelets"
    labeled.obs["known"] = known
    with caplog.at_level(logging.INFO, logger="tosica"):
        model.recalibrate(labeled, "known")
    assert model.training_.held_out_probabilities.shape == (1, n_known - 2)
    assert "left out cells labelled 'Platelets', which the model lacks" in caplog.text
    assert f"took {n_known - 2} labelled cells" in caplog.text


def test_sets_are_empty_only_where_this_is_asked_for(model, labeled, caplog):
    model.recalibrate(labeled, "known")
    with caplog.at_level(logging.INFO, logger="tosica"):
        exact = model.predict_set(labeled, coverage=0.3, allow_empty=True)
        sets = model.predict_set(labeled, coverage=0.3)
    empty = ~exact.any(axis=1)
    assert empty.any()
    assert sets[~empty].equals(exact[~empty])
    best = model.predict(labeled, soft=True).idxmax(axis=1)
    for cell in labeled.obs_names[empty]:
        assert sets.columns[sets.loc[cell]].tolist() == [best[cell]]
    n_empty = f"predict_set: {empty.sum()} of {labeled.n_obs} cells have"
    assert f"{n_empty} an empty set: even" in caplog.text
    assert f"{n_empty} only their best label in the set, which allow_empty=True" in caplog.text


def test_too_few_labelled_cells_for_a_coverage(model, labeled):
    few = labeled.obs["bulk_labels"].where(np.arange(labeled.n_obs) < 8)
    labeled.obs["few"] = few
    model.recalibrate(labeled, "few")
    with pytest.raises(ValueError, match=r"8 cells to calibrate by: that takes 9; .*recalibrate"):
        model.predict_set(labeled, coverage=0.9)


@pytest.mark.parametrize(
    ("column", "error", "sentence"),
    [
        ("nothing", KeyError, "adata.obs has no column 'nothing'"),
        ("foreign", ValueError, "No cell of adata.obs['foreign'] has a label of the model"),
        ("numbers", TypeError, "adata.obs['numbers'] holds float64 values, not groups"),
    ],
)
def test_wrong_columns(model, labeled, column, error, sentence):
    labeled.obs["foreign"] = "Platelets"
    labeled.obs["numbers"] = np.linspace(0, 1, labeled.n_obs)
    before = model.fingerprint
    with pytest.raises(error, match=re.escape(sentence)):
        model.recalibrate(labeled, column)
    assert model.fingerprint == before


def test_an_untrained_model(toy):
    tosica.TOSICA.setup_anndata(toy, labels_key="kind")
    with pytest.raises(RuntimeError, match="not trained"):
        tosica.TOSICA(toy).recalibrate(toy, "kind")
