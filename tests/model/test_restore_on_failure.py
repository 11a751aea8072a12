"""A training that fails, in whatever phase, leaves the model as it was."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from tosica import TOSICA

ONCE = {"max_epochs": 2, "batch_size": 16, "accelerator": "cpu", "enable_progress_bar": False}
# Between and after the network's epochs.
PHASES = {
    "cross-validation": "_linear_fit.cross_validate",
    "start": "_linear_fit.LinearFit.start_tokens",
    "linear branch": "_linear_fit.LinearFit.write",
    "calibration": "_calibration_mixin.fit_temperature",
    "refit": "_linear_fit.LinearFit.refit",
    "missing genes": "_training_mixin.fit_missing_genes",
}


class EndAt(Callback):
    """Raise in the second epoch."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_train_batch_end(self, trainer, *_):
        if trainer.current_epoch == 1:
            raise self.error


@pytest.fixture
def untrained(toy):
    TOSICA.setup_anndata(toy, labels_key="kind")
    return TOSICA(toy, embed_dim=16, n_heads=2)


def end(model: TOSICA, monkeypatch, phase: str, error: BaseException) -> None:
    """Train, and have the training ended."""

    def fail(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        callbacks = [EndAt(error)] if phase == "epochs" else []
        if phase != "epochs":
            patch.setattr(f"tosica.model.{PHASES[phase]}", fail)
        with pytest.raises(type(error)):
            model.train(**ONCE, callbacks=callbacks)


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of memory")], ids=repr)
@pytest.mark.parametrize("phase", ["epochs", *(name for name in PHASES if name != "start")])
def test_a_trained_model_stays_as_it_was(toy, toy_query, train, monkeypatch, caplog, phase, error):
    model = train(toy)
    expected, attributes = model.predict(toy_query, soft=True), dict(model.__dict__)
    fingerprint, history = model.fingerprint, {k: len(v) for k, v in model.history.items()}
    text, sets = repr(model), model.predict_set(toy_query, coverage=0.5)

    end(model, monkeypatch, phase, error)

    assert "train: did not end, and the model is as it was before" in caplog.text
    pd.testing.assert_frame_equal(model.predict(toy_query, soft=True), expected)
    pd.testing.assert_frame_equal(model.predict_set(toy_query, coverage=0.5), sets)
    assert model.fingerprint == fingerprint
    assert repr(model) == text
    assert {k: len(v) for k, v in model.history.items()} == history
    assert model.__dict__.keys() == attributes.keys()
    assert model.trainer is attributes["trainer"]
    np.testing.assert_array_equal(model.train_indices, attributes["train_indices_"])
    assert not model.module.training
    model.train(**ONCE)
    assert (model.predict(toy_query) == toy_query.obs["kind"].astype(str)).mean() > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["epochs", *PHASES])
def test_an_untrained_model_stays_untrained(untrained, toy_query, monkeypatch, tmp_path, phase):
    fingerprint, handler = untrained.fingerprint, signal.getsignal(signal.SIGINT)

    end(untrained, monkeypatch, phase, KeyboardInterrupt())

    assert not untrained.is_trained
    assert untrained.fingerprint == fingerprint
    assert untrained.history is None
    # Lightning would ignore any further Ctrl-C.
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(RuntimeError, match="not trained"):
        untrained.annotate(toy_query)
    untrained.save(tmp_path / "model")
    with pytest.raises(RuntimeError, match="not trained"):
        TOSICA.load(tmp_path / "model").predict(toy_query)
    untrained.train(**ONCE)
    assert untrained.is_trained


def test_other_exits_are_not_taken_for_an_interrupt(untrained, monkeypatch):
    end(untrained, monkeypatch, "epochs", SystemExit(3))
    assert not untrained.is_trained


def test_a_second_interrupt_does_not_end_the_restoring(toy, toy_query, train, monkeypatch):
    model = train(toy, max_epochs=1, refit=False)
    expected, fingerprint = model.predict(toy_query, soft=True), model.fingerprint
    load = type(model.module).load_state_dict

    def interrupted(*args):
        signal.raise_signal(signal.SIGINT)
        return load(*args)

    monkeypatch.setattr(type(model.module), "load_state_dict", interrupted)
    # A process that was started in the background, as by `nohup`, ignores Ctrl-C.
    before, handler = signal.getsignal(signal.SIGINT), signal.default_int_handler
    signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            model.train(**ONCE, callbacks=[EndAt(RuntimeError("out of memory"))])
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert model.fingerprint == fingerprint
    pd.testing.assert_frame_equal(model.predict(toy_query, soft=True), expected)


def test_in_a_thread(toy, train):
    """Where signals cannot be handled."""
    model = train(toy, max_epochs=1, refit=False)
    fingerprint = model.fingerprint
    ended = []

    def run():
        try:
            model.train(**ONCE, callbacks=[EndAt(RuntimeError("out of memory"))])
        except RuntimeError as error:
            ended.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ended == ["out of memory"]
    assert model.fingerprint == fingerprint


def test_a_training_that_diverges(toy, toy_query, train):
    model = train(toy, max_epochs=1, refit=False)
    expected, fingerprint = model.predict(toy_query, soft=True), model.fingerprint

    class Spoil(Callback):
        def on_train_batch_end(self, trainer, plan, *_):
            with torch.no_grad():
                plan.module.head.bias.fill_(torch.nan)

    with pytest.raises(
        ValueError, match=r"diverged: weights are not finite \(.+\); train with a small"
    ):
        model.train(**ONCE, refit=False, callbacks=[Spoil()])
    assert model.fingerprint == fingerprint
    pd.testing.assert_frame_equal(model.predict(toy_query, soft=True), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_ctrl_c_at_any_moment(toy, toy_query, train, caplog, trained, seed):
    """A real signal, wherever the training is: the model is as before, or can be used."""
    if trained:
        model = train(toy)
    else:
        TOSICA.setup_anndata(toy, labels_key="kind")
        model = TOSICA(toy, embed_dim=16, n_heads=2)
    expected = model.predict(toy_query, soft=True) if trained else None
    fingerprint, text, handler = model.fingerprint, repr(model), signal.getsignal(signal.SIGINT)
    delay = float(np.random.default_rng(seed).uniform(0.01, 1.0))
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    caplog.clear()
    timer.start()
    try:
        model.train(**{**ONCE, "max_epochs": 20})
        interrupted = False
    except KeyboardInterrupt:
        interrupted = True
    # The training may have been faster; and Python ignores a signal that it has in a destructor.
    with suppress(KeyboardInterrupt):
        timer.cancel()
        timer.join()
        time.sleep(0)
    assert signal.getsignal(signal.SIGINT) is handler
    restored = "train: did not end, and the model is as it was before" in caplog.text
    completed = "the model can be used and saved" in caplog.text
    assert interrupted or not (restored or completed)
    assert not (restored and completed)
    if completed or not interrupted:
        assert model.is_trained
        assert (model.predict(toy_query) == toy_query.obs["kind"].astype(str)).mean() > 0.8
    else:  # On a busy machine, the signal also comes before there is anything to restore.
        assert model.is_trained is trained
        assert model.fingerprint == fingerprint
        assert repr(model) == text
        if trained:
            pd.testing.assert_frame_equal(model.predict(toy_query, soft=True), expected)
    model.train(**ONCE)
    assert model.is_trained
