"""Trainings that are ended by Ctrl-C or an error, and trainings that resume from a checkpoint."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import Mock

import anndata
import numpy as np
import pytest
import scvi
import torch
from lightning.pytorch.callbacks import Callback
from pandas.testing import assert_frame_equal

from tosica import TOSICA
from tosica.model import _phases, _reference_on_disk

ONCE = {
    "max_epochs": 4,
    "batch_size": 16,
    "accelerator": "cpu",
}
N_STEPS = 4 * 6


@pytest.fixture(autouse=True)
def _default_handler():
    """A process that was started in the background, as by `nohup`, ignores Ctrl-C."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, handler)


class At(Callback):
    """Do something in some step."""

    def __init__(self, step, do):
        self.step = step
        self.do = do
        self.n_steps = 0

    def on_train_batch_end(self, *_):
        self.n_steps += 1
        if self.n_steps == self.step:
            self.do()


def press():
    signal.raise_signal(signal.SIGINT)


def fail(*_, **__):
    raise RuntimeError("out of memory")


@pytest.fixture
def new(toy):
    """Make a new model of the same reference, as a new process would."""

    def make(adata=None, **kwargs):
        adata = toy.copy() if adata is None else adata
        scvi.settings.seed = 0
        TOSICA.setup_anndata(adata, labels_key="kind", batch_key="donor")
        return TOSICA(adata, **({"embed_dim": 16, "n_heads": 2} | kwargs))

    return make


# --------------------------------------------------------------------------- Ctrl-C


@pytest.mark.parametrize("step", [1, N_STEPS])
def test_the_first_one_leaves_a_model_to_use(new, toy_query, tmp_path, caplog, step):
    model = new()
    pressing = At(step, press)
    with pytest.raises(KeyboardInterrupt):
        model.train(**ONCE, callbacks=[pressing])
    assert pressing.n_steps == step
    epoch = -(-step // 6)
    assert (
        f"train: ended early, after step {step}, in epoch {epoch} of 4" in caplog.text
    )
    assert model.is_trained
    assert not model.training_.refitted
    assert not model.module.training
    assert len(model.history["train_loss"]) == epoch
    assert model.predict_set(toy_query, coverage=0.5).shape == (60, 3)
    # The linear branch alone tells these types apart.
    assert (model.predict(toy_query) == toy_query.obs["kind"].astype(str)).mean() > 0.8
    model.save(tmp_path / "model")


def test_an_own_handler_is_left_alone(new):
    """Such as one that a workflow manager installed, which ends the training in its own way."""
    model = new(linear=False)
    signal.signal(signal.SIGINT, fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        model.train(**ONCE, callbacks=[At(3, press)])
    assert signal.getsignal(signal.SIGINT) is fail
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert not model.is_trained


# --------------------------------------------------------------------------- the model as it was


@pytest.mark.parametrize(
    "interruption",
    [
        "twice in an epoch",
        "_phases.find_label_errors",
        "_linear_fit.linear.cross_validate",
        "_calibration.fit_temperature",
        "_linear_fit.LinearFit.init_tokens",
        "_phases.fit_statistics",
    ],
)
def test_elsewhere_ctrl_c_leaves_the_model_as_it_was(
    new, monkeypatch, caplog, interruption
):
    model = new()
    options = {}
    fingerprint = model.fingerprint
    if interruption == "twice in an epoch":
        options["callbacks"] = [At(7, lambda: (press(), press()))]
    else:
        monkeypatch.setattr(f"tosica.model.{interruption}", lambda *_, **__: press())
    with pytest.raises(KeyboardInterrupt):
        model.train(**ONCE, **options)
    assert "train: did not end, and the model is as it was before" in caplog.text
    assert not model.is_trained
    assert model.fingerprint == fingerprint
    assert model.history is None


@pytest.fixture(scope="module")
def trained_model(_toy, train):
    """A model that no training of these tests may change."""
    return train(_toy.copy(), refit=False)


@pytest.mark.parametrize(
    "error", [RuntimeError("out of memory"), SystemExit(3)], ids=repr
)
def test_a_trained_model_stays_as_it_was(trained_model, toy_query, error):
    """Also in a thread, where signals cannot be handled."""
    model = trained_model
    probabilities = model.predict(toy_query, soft=True)
    attributes = dict(model.__dict__)
    text = repr(model)
    losses = model.history["train_loss"].copy()

    def end():
        raise error

    with ThreadPoolExecutor(1) as pool, pytest.raises(type(error)):
        pool.submit(model.train, **ONCE, callbacks=[At(7, end)]).result()
    with pytest.raises(type(error)):
        model.train(**ONCE, callbacks=[At(7, end)])
    assert_frame_equal(model.predict(toy_query, soft=True), probabilities)
    assert_frame_equal(model.history["train_loss"], losses)
    assert repr(model) == text
    assert model.__dict__.keys() == attributes.keys()
    assert model.trainer is attributes["trainer"]
    assert not model.module.training


def test_a_training_that_diverges(new):
    model = new(linear=False)

    class Spoil(Callback):
        def on_train_batch_end(self, trainer, plan, *_):
            with torch.no_grad():
                plan.module.head.bias.fill_(torch.nan)

    with pytest.raises(ValueError, match=r"diverged: weights are not finite"):
        model.train(**ONCE, refit=False, callbacks=[Spoil()])
    assert not model.is_trained


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_ctrl_c_at_any_moment(toy, toy_query, train, caplog, seed):
    """A real signal, wherever the training is: the model is as before, or can be used."""
    model = train(toy)
    fingerprint = model.fingerprint
    delay = float(np.random.default_rng(seed).uniform(0.01, 1.0))
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        model.train(**{**ONCE, "max_epochs": 20})
        timer.join()
    except KeyboardInterrupt:
        pass
    if "did not end" in caplog.text:
        assert model.fingerprint == fingerprint
    assert (model.predict(toy_query) == toy_query.obs["kind"].astype(str)).mean() > 0.8


# --------------------------------------------------------------------------- checkpoints


def assert_same(model, expected):
    """Compare everything that a training leaves, bit by bit."""
    state = model.module.state_dict()
    weights = expected.module.state_dict()
    assert [
        name for name in weights if not torch.equal(state[name], weights[name])
    ] == []
    for name, table in expected.history.items():
        assert_frame_equal(model.history[name].astype(float), table.astype(float))
    for name in ("train_indices_", "validation_indices_", "mislabeled_indices"):
        np.testing.assert_array_equal(getattr(model, name), getattr(expected, name))
    assert model.training_.label_counts == expected.training_.label_counts
    np.testing.assert_array_equal(
        model.training_.held_out_codes, expected.training_.held_out_codes
    )


STOPPING = {
    "early_stopping": True,
    "early_stopping_patience": 2,
    "plan_kwargs": {"lr": 0.1},
}


@pytest.mark.parametrize(
    ("step", "linear", "options"),
    [
        (N_STEPS, True, {}),
        # At the end of an epoch.
        (12, False, {"precision": "bf16-mixed", "accumulate_grad_batches": 2}),
        (13, False, STOPPING),
    ],
    ids=str,
)
def test_it_ends_with_the_same_weights(new, tmp_path, caplog, step, linear, options):
    expected = new(linear=linear)
    expected.train(**ONCE, **options)
    with pytest.raises(KeyboardInterrupt):
        new(linear=linear).train(
            **ONCE, **options, checkpoint_dir=tmp_path, callbacks=[At(step, press)]
        )
    path = tmp_path / "training.pt"
    assert f"train with the same arguments and resume={str(path)!r}" in caplog.text
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    model = new(linear=linear)
    torch.rand(3)
    model.train(**ONCE, **options, resume=path if step % 2 else tmp_path)
    assert_same(model, expected)


def test_of_a_finished_training_on_disk(toy, new, monkeypatch, tmp_path):
    monkeypatch.setattr(_phases, "BUFFER_SIZE", 30)
    monkeypatch.setattr(_reference_on_disk, "BLOCK", 20)
    toy.write_h5ad(tmp_path / "toy.h5ad")
    reference, same_reference = (
        anndata.read_h5ad(tmp_path / "toy.h5ad", backed="r") for _ in range(2)
    )
    expected = new(reference)
    model = new(same_reference)
    expected.train(**ONCE, check_labels=False, checkpoint_dir=tmp_path / "new" / "run")
    model.train(**ONCE, check_labels=False, resume=tmp_path / "new" / "run")
    assert_same(model, expected)
    reference.file.close()
    same_reference.file.close()


def test_another_training_is_refused(new, toy, tmp_path):
    new = partial(new, linear=False)
    new().train(**ONCE, checkpoint_dir=tmp_path)
    resume = {**ONCE, "resume": tmp_path}
    for name, renamed in {
        "batch_size": 8,
        "refit": False,
        "plan_kwargs": {"lr": 1.0},
    }.items():
        with pytest.raises(
            ValueError, match=f"another {name.removesuffix('_kwargs')}:"
        ):
            new().train(**resume | {name: renamed})
    renamed = toy.copy()
    renamed.obs["kind"] = renamed.obs["kind"].cat.rename_categories({"a": "x"})
    with pytest.raises(ValueError, match="another model or reference"):
        new(renamed).train(**resume)
    scvi.settings.seed = 0
    model = new()
    scvi.settings.seed = 3
    with pytest.raises(ValueError, match="another seed"):
        model.train(**resume)


def test_what_is_no_checkpoint_is_refused_and_not_executed(new, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    path = tmp_path / "training.pt"
    for content in (Evil(), {"tosica": Evil()}, {"state_dict": {}}, [1, 2]):
        torch.save(content, path)
        with pytest.raises(ValueError, match="no checkpoint of this version"):
            new().train(**ONCE, resume=path)
    path.write_bytes(b"PK not a file")
    with pytest.raises(ValueError, match="no checkpoint of this version"):
        new().train(**ONCE, resume=path)
    assert not (tmp_path / "executed").exists()
    with pytest.raises(FileNotFoundError):
        new().train(**ONCE, resume=tmp_path / "none.pt")
    with pytest.raises(FileExistsError):
        new().train(**ONCE, checkpoint_dir=path)


def test_a_full_disk_does_not_end_the_training(new, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(
        "lightning.pytorch.Trainer.save_checkpoint",
        Mock(side_effect=OSError("No space left")),
    )
    model = new()
    model.train(**ONCE, checkpoint_dir=tmp_path)
    assert "goes on without a new checkpoint (No space left)" in caplog.text
    assert model.training_.refitted
