"""The temperature, and label sets of a model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax

import tosica
from tosica._probabilities import conformal_threshold, fit_temperature

# ------------------------------------------------------------------ temperature


def loss(logits, labels, temperature):
    return -log_softmax(logits / temperature, axis=1)[
        np.arange(len(labels)), labels
    ].mean()


@settings(max_examples=10)
@given(
    seed=st.integers(0, 1000),
    n_cells=st.integers(1, 60),
    n_labels=st.integers(2, 6),
    size=st.floats(0.01, 50),
)
def test_no_temperature_within_the_limits_fits_better(seed, n_cells, n_labels, size):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, size, (n_cells, n_labels))
    labels = rng.integers(0, n_labels, n_cells)
    fitted = fit_temperature(logits, labels)
    assert 0.2 <= fitted <= 5
    best = min(loss(logits, labels, t) for t in np.geomspace(0.2, 5, 60))
    assert loss(logits, labels, fitted) <= best + 1e-3


def test_the_temperature_is_bounded():
    logits = np.eye(3)[[0, 1, 2]]
    assert fit_temperature(logits, np.array([0, 1, 2])) == pytest.approx(0.2, rel=1e-3)
    assert fit_temperature(logits, np.array([1, 2, 0])) == pytest.approx(5, rel=1e-3)
    assert fit_temperature(logits, np.array([1, 2, 0]), max_factor=2) == pytest.approx(
        2, rel=1e-3
    )


@pytest.mark.slow
def test_training_calibrates_on_held_out_cells(toy, train):
    # Long steps leave a network poorly calibrated.
    options = {
        "refit": False,
        "train_size": 0.5,
        "linear": False,
        "plan_kwargs": {"lr": 0.03},
    }
    plain = train(toy.copy(), calibrate=False, **options)
    fitted = train(toy.copy(), **options)
    uncalibrated = 1.0
    assert plain.module.temperature.item() == pytest.approx(uncalibrated)
    held_out = plain.validation_indices
    assert_array_equal(held_out, fitted.validation_indices)
    truth = toy.obs["kind"].cat.codes.to_numpy()[held_out]
    logits = np.log(
        plain.predict(indices=held_out, soft=True).to_numpy(dtype=np.float64)
    )
    expected = uncalibrated * fit_temperature(logits, truth, expected=1)
    assert expected != pytest.approx(uncalibrated, abs=0.1)
    assert fitted.module.temperature.item() == pytest.approx(expected, rel=1e-4)
    # The weights are the same, and so is the best label of every cell.
    assert_array_equal(plain.predict(), fitted.predict())
    calibrated = np.log(
        fitted.predict(indices=held_out, soft=True).to_numpy(dtype=np.float64)
    )
    assert loss(calibrated, truth, 1) < loss(logits, truth, 1)


def test_the_more_cells_the_less_counts_what_was_expected():
    logits = np.repeat(np.eye(3) * 4, 2000, axis=0)
    labels = np.repeat(np.arange(3), 2000)
    temperatures = [
        fit_temperature(logits[:: 6000 // n], labels[:: 6000 // n], expected=2)
        for n in (3, 60, 6000)
    ]
    # All of them are right: the more cells, the lower the temperature.
    assert 2 > temperatures[0] > 1.9
    assert temperatures[0] > temperatures[1] > temperatures[2]
    assert temperatures[2] < 1
    assert fit_temperature(logits[:0], labels[:0], expected=2) == pytest.approx(
        2, rel=1e-3
    )


# ------------------------------------------------------------------ label sets


@settings(max_examples=10)
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
        last >= conformal_threshold(np.delete(scores, i), coverage)
        for i, last in enumerate(scores)
    ]
    assert coverage - 1e-9 <= np.mean(covered) < coverage + 1 / (n_cells + 1) + 1e-9


def test_coverages_that_floats_cannot_represent():
    scores = np.arange(1, 10) / 10
    assert conformal_threshold(scores, 0.9) == 0.1
    assert conformal_threshold(np.arange(19), 0.95) == 0


def test_what_no_threshold_can_promise():
    with pytest.raises(ValueError, match="18 cells to calibrate by: that takes 19"):
        conformal_threshold(np.ones(18), 0.95)


def test_label_sets_hold_the_labels_above_the_threshold(pbmc_model, pbmc_query):
    table = pbmc_model.predict_set(pbmc_query, coverage=0.9, allow_empty=True)
    soft = pbmc_model.predict(pbmc_query, soft=True)
    least = conformal_threshold(pbmc_model.training_.held_out_probabilities[0], 0.9)
    assert table.equals(soft >= least)
    assert list(table.index) == list(pbmc_query.obs_names)
    assert list(table.columns) == pbmc_model.labels
    few = pbmc_model.predict_set(pbmc_query, indices=[5, 2], coverage=0.9)
    assert few.equals(table.iloc[[5, 2]])
    wide = pbmc_model.predict_set(pbmc_query, coverage=0.95)
    assert not (table & ~wide).to_numpy().any()
    # Probabilities of held-out cells are from before the refit on them.
    held_out = pbmc_model.training_.held_out_probabilities
    assert held_out.shape == (1, len(pbmc_model.validation_indices))
    assert ((held_out > 0) & (held_out <= 1)).all()


def test_held_out_probabilities_are_those_of_the_right_labels(toy, train):
    model = train(toy, refit=False)
    cells = model.validation_indices
    soft = model.predict(indices=cells, soft=True).to_numpy()
    truth = [model.labels.index(label) for label in toy.obs["kind"].iloc[cells]]
    expected = soft[np.arange(len(cells)), truth]
    assert_allclose(
        np.sort(model.training_.held_out_probabilities[0]), np.sort(expected), atol=1e-5
    )


def test_not_calibrated(toy, train, toy_query):
    with pytest.raises(ValueError, match=r"no held-out cells .* calibrate=True"):
        train(toy, calibrate=False).predict_set(toy_query)


@pytest.mark.slow
def test_no_label_sets_after_a_second_training_with_refit(
    toy, train, toy_query, caplog, tmp_path
):
    once = {
        "max_epochs": 2,
        "batch_size": 16,
        "accelerator": "cpu",
    }
    model = train(toy)
    model.save(tmp_path / "model")
    model = tosica.TOSICA.load(tmp_path / "model", adata=toy, accelerator="cpu")
    assert model.training_.held_out_probabilities is not None
    with caplog.at_level("WARNING", logger="tosica"):
        model.train(**once)
    assert "the held-out cells were trained on in an earlier training" in caplog.text
    with pytest.raises(
        ValueError, match=r"make a new model of a reference .* train it once"
    ):
        model.predict_set(toy_query, coverage=0.5)
    without_refit = train(toy, refit=False)
    without_refit.train(**once, refit=False)
    assert without_refit.predict_set(toy_query, coverage=0.5).to_numpy().any()
