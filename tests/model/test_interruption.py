"""Ctrl-C in a training: the first one ends it between two steps, the second one at once."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest
from lightning.pytorch.callbacks import Callback

from tosica import TOSICA
from tosica.model import _training_mixin

if TYPE_CHECKING:
    from collections.abc import Iterator

ONCE = {"max_epochs": 4, "batch_size": 16, "accelerator": "cpu", "enable_progress_bar": False}
N_STEPS, N_REFIT_STEPS = 4 * 6, 6


@pytest.fixture(autouse=True)
def _default_handler() -> Iterator[None]:
    """A process that was started in the background, as by `nohup`, ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


class PressAt(Callback):
    """Press Ctrl-C in some step, and count the steps."""

    def __init__(self, step: int, *, times: int = 1) -> None:
        self.step, self.times, self.n_steps = step, times, 0

    def on_train_batch_end(self, *_):
        self.n_steps += 1
        if self.n_steps == self.step:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)


@pytest.fixture
def untrained(toy):
    TOSICA.setup_anndata(toy, labels_key="kind")
    return TOSICA(toy, embed_dim=16, n_heads=2)


@pytest.mark.parametrize("step", [1, 8, 12, N_STEPS])
def test_the_first_one_leaves_a_model_to_use(untrained, toy_query, tmp_path, caplog, step):
    press = PressAt(step)
    with pytest.raises(KeyboardInterrupt):
        untrained.train(**ONCE, callbacks=[press])

    assert press.n_steps == step
    if step < N_STEPS:
        epoch = -(-step // 6)
        expected = f"train: ended early, after step {step} of 24, in epoch {epoch} of 4: the model"
    else:
        expected = "train: ended early, after the network was trained, and before the refit"
    assert expected in caplog.text
    assert "can be used and saved" in caplog.text
    assert "resume=" not in caplog.text
    assert untrained.is_trained
    assert not untrained.refitted_
    assert not untrained.module.training
    assert len(untrained.history["train_loss"]) == -(-step // 6)
    assert untrained.predict_set(toy_query, coverage=0.5).shape == (60, 3)
    untrained.annotate(toy_query)
    assert np.isfinite(toy_query.obs["tosica_novelty"]).all()
    # The linear branch alone tells these types apart.
    assert (toy_query.obs["tosica_prediction"] == toy_query.obs["kind"]).mean() > 0.8
    untrained.save(tmp_path / "model")
    loaded = TOSICA.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(toy_query), untrained.predict(toy_query))


def test_best_weights_are_kept(untrained):
    """Early stopping has an opinion on the weights of a training that was interrupted, too."""
    with pytest.raises(KeyboardInterrupt):
        untrained.train(
            **ONCE, early_stopping=True, callbacks=[PressAt(8)], plan_kwargs={"lr": 0.5}
        )
    losses = untrained.history["validation_loss"]["validation_loss"].astype(float)
    assert len(losses) == 2
    held = untrained.validation_indices
    untrained.module.linear.weight.zero_()
    untrained.module.linear.bias.zero_()
    untrained.module.linear.upper.fill_(float("inf"))
    untrained.module.temperature.fill_(1)
    found = untrained.predict(indices=held, soft=True).to_numpy()
    codes = untrained.adata.obs["kind"].cat.codes.to_numpy()[held]
    loss = -np.log(found[np.arange(len(held)), codes]).mean()
    assert loss == pytest.approx(losses.min(), rel=1e-4)


def test_in_the_refit(untrained, toy_query, monkeypatch, caplog):
    """Callbacks of users are not in the refit, so that the key is pressed elsewhere."""
    n_steps = 0
    step = TOSICA._module_cls.loss

    def loss(module, *args, **kwargs):
        nonlocal n_steps
        n_steps += module.training
        if n_steps == N_STEPS + 2 and module.training:
            signal.raise_signal(signal.SIGINT)
        return step(module, *args, **kwargs)

    monkeypatch.setattr(TOSICA._module_cls, "loss", loss)
    with pytest.raises(KeyboardInterrupt):
        untrained.train(**ONCE)
    assert n_steps == N_STEPS + 2
    assert f"after step 2 of {N_REFIT_STEPS}, in epoch 1 of 1 of the refit:" in caplog.text
    assert untrained.refitted_
    assert len(untrained.history["train_loss"]) == 4
    assert untrained.predict_set(toy_query, coverage=0.5).shape == (60, 3)


@pytest.mark.parametrize("times", [2, 3])
def test_the_second_one_leaves_the_model_as_it_was(untrained, toy_query, caplog, times):
    fingerprint = untrained.fingerprint
    press = PressAt(7, times=times)
    with pytest.raises(KeyboardInterrupt):
        untrained.train(**ONCE, callbacks=[press])
    assert "train: did not end, and the model is as it was before" in caplog.text
    assert "ended early" not in caplog.text
    assert not untrained.is_trained
    assert untrained.fingerprint == fingerprint


@pytest.mark.parametrize("place", ["cross_validate", "LinearFit.start_tokens"])
def test_before_the_network_one_is_enough(untrained, monkeypatch, caplog, place):
    fingerprint = untrained.fingerprint

    def press(*_, **__):
        signal.raise_signal(signal.SIGINT)
        pytest.fail("Ctrl-C was noted only")

    monkeypatch.setattr(f"tosica.model._linear_fit.{place}", press)
    with pytest.raises(KeyboardInterrupt):
        untrained.train(**ONCE)
    assert "train: did not end" in caplog.text
    assert untrained.fingerprint == fingerprint


def test_after_the_network_the_rest_is_completed(untrained, toy_query, monkeypatch, caplog):
    fit = _training_mixin.fit_novelty_statistics

    def press(*args):
        signal.raise_signal(signal.SIGINT)
        return fit(*args)

    monkeypatch.setattr(_training_mixin, "fit_novelty_statistics", press)
    with pytest.raises(KeyboardInterrupt):
        untrained.train(**ONCE)
    assert "when the network had been trained, and the rest was completed" in caplog.text
    assert untrained.refitted_
    untrained.annotate(toy_query)


def test_an_own_handler_is_left_alone(untrained):
    """Such as one that a workflow manager installed, which ends the training in its own way."""

    def handler(*_):
        raise RuntimeError("the workflow ends")

    signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(RuntimeError, match="the workflow ends"):
            untrained.train(**ONCE, callbacks=[PressAt(3)])
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert not untrained.is_trained
