"""Label sets: the conformal threshold, and ``predict_set``."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tosica
from tosica._calibration import conformal_threshold


@settings(max_examples=50)
@given(
    seed=st.integers(0, 1000),
    n_cells=st.integers(20, 200),
    coverage=st.floats(0.5, 0.95),
)
def test_coverage_of_exchangeable_cells_is_exact(seed, n_cells, coverage):
    # The guarantee is about the last of n + 1 cells in random order, with the threshold of the
    # other n. The average over all cells as the last one is exact.
    scores = np.random.default_rng(seed).random(n_cells + 1)
    covered = [
        last >= conformal_threshold(np.delete(scores, i), coverage) for i, last in enumerate(scores)
    ]
    assert coverage - 1e-9 <= np.mean(covered) < coverage + 1 / (n_cells + 1) + 1e-9


def test_coverages_that_floats_cannot_represent():
    scores = np.arange(1, 10) / 10
    assert conformal_threshold(scores, 0.9) == 0.1
    assert conformal_threshold(np.arange(19), 0.95) == 0


def test_too_few_cells_for_the_coverage():
    sentence = (
        "coverage=0.95 cannot be promised with 18 cells to calibrate by: that takes 19; lower "
        "coverage, hold out more cells by a smaller train_size, or recalibrate by more labelled "
        "cells."
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        conformal_threshold(np.ones(18), 0.95)


@pytest.mark.parametrize("coverage", [0, 1, -0.5, 95])
def test_coverage_out_of_range(coverage):
    sentence = f"coverage must lie between 0 and 1, not {coverage}."
    with pytest.raises(ValueError, match=re.escape(sentence)):
        conformal_threshold(np.ones(100), coverage)


def test_label_sets_hold_the_labels_above_the_threshold(pbmc_model, pbmc_query):
    table = pbmc_model.predict_set(pbmc_query, coverage=0.9)
    soft = pbmc_model.predict(pbmc_query, soft=True)
    least = conformal_threshold(pbmc_model.held_out_probabilities_[0], 0.9)
    assert table.equals(soft >= least)
    assert list(table.index) == list(pbmc_query.obs_names)
    assert list(table.columns) == pbmc_model.labels
    few = pbmc_model.predict_set(pbmc_query, indices=[5, 2], coverage=0.9)
    assert few.equals(table.iloc[[5, 2]])


def test_more_coverage_never_takes_a_label_away(pbmc_model, pbmc_query):
    narrow, wide = (pbmc_model.predict_set(pbmc_query, coverage=c) for c in (0.5, 0.9))
    assert not (narrow & ~wide).to_numpy().any()
    assert wide.to_numpy().sum() > narrow.to_numpy().sum()


def test_held_out_cells_are_the_validation_cells(pbmc_model):
    # Their probabilities are from before the refit on them.
    held_out = pbmc_model.held_out_probabilities_
    assert held_out.shape == (1, len(pbmc_model.validation_indices))
    assert ((held_out > 0) & (held_out <= 1)).all()


def test_held_out_probabilities_are_those_of_the_right_labels(toy, train):
    model = train(toy, refit=False)
    cells = model.validation_indices
    soft = model.predict(indices=cells, soft=True).to_numpy()
    truth = [model.labels.index(label) for label in toy.obs["kind"].iloc[cells]]
    expected = soft[np.arange(len(cells)), truth]
    np.testing.assert_allclose(
        np.sort(model.held_out_probabilities_[0]), np.sort(expected), atol=1e-5
    )


def test_saved_and_loaded(pbmc_model, pbmc_query, tmp_path):
    pbmc_model.save(tmp_path / "model")
    loaded = tosica.TOSICA.load(tmp_path / "model", accelerator="cpu")
    expected = pbmc_model.predict_set(pbmc_query, coverage=0.9)
    assert loaded.predict_set(pbmc_query, coverage=0.9).equals(expected)


def test_not_calibrated(toy, train, toy_query):
    model = train(toy, calibrate=False)
    sentence = (
        "The model has no held-out cells to calibrate label sets by: make a new model of a "
        "reference with several cells of a label, and train it once with calibrate=True, which is "
        "the default."
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        model.predict_set(toy_query)


def test_coverage_is_checked_first(pbmc_model, pbmc_query):
    with pytest.raises(ValueError, match=re.escape("coverage must lie between 0 and 1, not 95.")):
        pbmc_model.predict_set(pbmc_query, coverage=95)


@pytest.mark.slow
def test_no_label_sets_after_a_second_training_with_refit(toy, train, toy_query, caplog, tmp_path):
    once = {"max_epochs": 2, "batch_size": 16, "accelerator": "cpu", "enable_progress_bar": False}
    model = train(toy)
    model.save(tmp_path / "model")
    model = tosica.TOSICA.load(tmp_path / "model", adata=toy, accelerator="cpu")
    assert model.held_out_probabilities_ is not None
    with caplog.at_level("WARNING", logger="tosica"):
        model.train(**once)
    assert "the held-out cells were trained on in an earlier training" in caplog.text
    with pytest.raises(ValueError, match=r"make a new model of a reference .* train it once"):
        model.predict_set(toy_query, coverage=0.5)
    kept = train(toy, refit=False)
    kept.train(**once, refit=False)
    assert kept.predict_set(toy_query, coverage=0.5).to_numpy().any()
