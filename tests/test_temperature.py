"""The temperature that calibrates probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from tosica._calibration import fit_temperature
from tosica.linear import linear_to_network_ratio


def sample_labels(logits: np.ndarray, temperature: float, seed: int = 0) -> np.ndarray:
    """Labels sampled with the probabilities softmax(logits / temperature)."""
    chance = np.random.default_rng(seed).random((len(logits), 1))
    return (softmax(logits / temperature, axis=1).cumsum(1) < chance).sum(1)


def loss(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    return -log_softmax(logits / temperature, axis=1)[np.arange(len(labels)), labels].mean()


@pytest.mark.parametrize("truth", [0.4, 1.0, 2.5])
def test_finds_the_temperature_that_labels_were_sampled_with(truth):
    logits = np.random.default_rng(1).normal(0, 3, (20_000, 5))
    assert fit_temperature(logits, sample_labels(logits, truth)) == pytest.approx(truth, rel=0.05)


@settings(max_examples=20)
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
    found = fit_temperature(logits, labels)
    assert 0.2 <= found <= 5
    best = min(loss(logits, labels, t) for t in np.geomspace(0.2, 5, 60))
    assert loss(logits, labels, found) <= best + 1e-3


def test_the_temperature_is_bounded():
    logits = np.eye(3)[[0, 1, 2]]
    assert fit_temperature(logits, np.array([0, 1, 2])) == pytest.approx(0.2, rel=1e-3)
    assert fit_temperature(logits, np.array([1, 2, 0])) == pytest.approx(5, rel=1e-3)
    assert fit_temperature(logits, np.array([1, 2, 0]), max_factor=2) == pytest.approx(2, rel=1e-3)


@pytest.mark.slow
def test_training_calibrates_on_held_out_cells(toy, train):
    plain = train(toy.copy(), calibrate=False, refit=False, train_size=0.5)
    fitted = train(toy.copy(), refit=False, train_size=0.5)
    # The temperature that makes the sum of both branches' logits their weighted mean.
    uncalibrated = 1 + linear_to_network_ratio(toy.n_obs)
    assert plain.module.temperature.item() == pytest.approx(uncalibrated)
    held = plain.validation_indices
    np.testing.assert_array_equal(held, fitted.validation_indices)
    truth = toy.obs["kind"].cat.codes.to_numpy()[held]
    logits = np.log(plain.predict(indices=held, soft=True).to_numpy(dtype=np.float64))
    expected = uncalibrated * fit_temperature(logits, truth, expected=1)
    assert expected != pytest.approx(uncalibrated, abs=0.01)
    assert fitted.module.temperature.item() == pytest.approx(expected, rel=1e-4)
    # The weights are the same, and so is the best label of every cell.
    np.testing.assert_array_equal(plain.predict(), fitted.predict())
    calibrated = np.log(fitted.predict(indices=held, soft=True).to_numpy(dtype=np.float64))
    assert loss(calibrated, truth, 1) < loss(logits, truth, 1)


@pytest.mark.slow
def test_training_on_without_calibration_forgets_the_old_temperature(toy, train):
    model = train(toy)
    uncalibrated = 1 + linear_to_network_ratio(toy.n_obs)
    assert model.module.temperature.item() != pytest.approx(uncalibrated)
    model.train(max_epochs=1, accelerator="cpu", calibrate=False, enable_progress_bar=False)
    assert model.module.temperature.item() == pytest.approx(uncalibrated)


def test_without_a_linear_branch_the_networks_temperature_is_one(toy, train):
    model = train(toy, max_epochs=1, linear=False, calibrate=False)
    assert model.module.temperature == 1


def test_few_cells_move_the_expected_temperature_little():
    logits = np.repeat(np.eye(3) * 4, 2000, axis=0)
    labels = np.repeat(np.arange(3), 2000)
    found = [
        fit_temperature(logits[:: 6000 // n], labels[:: 6000 // n], expected=2)
        for n in (3, 60, 6000)
    ]
    # All of them are right: the more cells, the lower the temperature.
    assert 2 > found[0] > 1.9
    assert found[0] > found[1] > found[2]
    assert found[2] < 1
    assert fit_temperature(logits[:0], labels[:0], expected=2) == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("n_cells", [20_000])
def test_many_cells_outweigh_what_was_expected(n_cells):
    logits = np.random.default_rng(0).normal(size=(n_cells, 4)) * 3
    labels = sample_labels(logits, 3.0)
    free, bound = fit_temperature(logits, labels), fit_temperature(logits, labels, expected=1)
    assert bound == pytest.approx(free, rel=0.1)
