"""Training: reproducible, checked, interrupted at the right time, and of use."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import torch
from _cells import untrained
from anndata import AnnData
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import TQDMProgressBar
from numpy.testing import assert_array_equal
from sklearn.metrics import log_loss

import tosica
from tosica import TOSICA
from tosica.model._phases import PHASES, fit_network, refit
from tosica.model._plan import TrainingPlan, TrainingPlanConfig
from tosica.model._reference import ReferenceData


def weights_of(model):
    """Everything that is saved, but for the mean cell, which is found once training is over."""
    state = model.module.state_dict()
    return {
        name: value.numpy().copy()
        for name, value in state.items()
        if name != "baseline"
    }


def same(weights, expected):
    return all(np.array_equal(weights[name], expected[name]) for name in weights)


# --------------------------------------------------------------------------- the course


def test_same_seed_same_weights_and_their_history(toy, train):
    refitted = train(toy.copy(), max_epochs=4)
    not_refitted = train(toy.copy(), max_epochs=4, refit=False)
    # The refit learns the held-out cells; what the model tells of the training before is the same.
    assert set(refitted.history) == {
        "train_loss",
        "validation_loss",
        "validation_accuracy",
    }
    for name, table in refitted.history.items():
        assert table.columns.tolist() == [name]
        assert table.index.tolist() == [0, 1, 2, 3]
        assert np.isfinite(table[name].astype(float)).all()
        pd.testing.assert_frame_equal(not_refitted.history[name], table)
    assert_array_equal(refitted.train_indices, not_refitted.train_indices)
    assert_array_equal(refitted.validation_indices, not_refitted.validation_indices)
    assert refitted.module.temperature == not_refitted.module.temperature
    assert not same(weights_of(refitted), weights_of(not_refitted))
    assert train(toy.copy(), max_epochs=4).fingerprint == refitted.fingerprint


def test_last_losses_are_those_of_the_weights(toy, train):
    # Losses are the network's, whatever the linear branch adds afterwards.
    model = train(
        toy, max_epochs=4, calibrate=False, refit=False, batch_size=7, linear=False
    )
    held_out = model.validation_indices
    truth = toy.obs["kind"].astype(str).to_numpy()[held_out]
    loss = log_loss(
        truth, model.predict(indices=held_out, soft=True), labels=model.labels
    )
    last = {name: float(table.iloc[-1, 0]) for name, table in model.history.items()}
    assert last["validation_loss"] == pytest.approx(loss, rel=1e-4)
    accuracy = (model.predict(indices=held_out) == truth).mean()
    assert last["validation_accuracy"] == pytest.approx(accuracy, rel=1e-5)


ONE_CELL = pytest.mark.filterwarnings("ignore:labels with a single cell:UserWarning")


@pytest.mark.slow
@ONE_CELL
@pytest.mark.parametrize("linear", [True, False])
def test_a_label_with_a_single_cell_is_learnt_and_not_held_out(
    toy, toy_query, train, save_and_load, fast_plan, linear
):
    of_c = np.flatnonzero(toy.obs["kind"] == "c")
    reference = toy[np.setdiff1d(np.arange(90), of_c[1:])].copy()
    single = np.flatnonzero(reference.obs["kind"] == "c")
    model = train(reference, max_epochs=15, linear=linear, plan_kwargs=fast_plan)
    assert set(single) <= set(model.train_indices)
    assert not set(single) & set(model.validation_indices)
    assert len(model.mislabeled_indices) == 0
    # One probability a held-out cell, from which the temperature is, too.
    assert model.training_.held_out_probabilities.shape == (
        1,
        len(model.validation_indices),
    )
    truth = toy_query.obs["kind"].astype(str).to_numpy()
    predictions = model.predict(toy_query)
    assert (predictions == truth)[truth != "c"].mean() > 0.9
    assert model.predict(reference)[single] == ["c"]
    if linear:
        # The network knows the cell by heart, the regressions its gene set.
        assert (predictions == truth)[truth == "c"].mean() > 0.5
    assert np.isfinite(model.predict(toy_query, soft=True).to_numpy()).all()
    assert model.predict_set(toy_query, coverage=0.8).shape == (60, 3)
    loaded = save_and_load(model)
    assert_array_equal(loaded.predict(toy_query), predictions)


@ONE_CELL
@pytest.mark.parametrize("linear", [True, False])
def test_labels_that_all_have_a_single_cell(toy, toy_query, train, linear):
    """As of a reference that has one profile a type: nothing can be held out."""
    model = train(toy[:3].copy(), linear=linear)
    assert_array_equal(model.train_indices, [0, 1, 2])
    assert len(model.validation_indices) == 0
    assert model.training_.held_out_probabilities is None
    assert np.isfinite(model.predict(toy_query, soft=True).to_numpy()).all()
    if linear:
        truth = toy_query.obs["kind"].astype(str).to_numpy()
        assert (model.predict(toy_query) == truth).mean() > 0.7
    with pytest.raises(
        ValueError, match="no held-out cells to calibrate label sets by"
    ):
        model.predict_set(toy_query)
    with pytest.raises(
        ValueError, match="because no label has two cells: train without it"
    ):
        train(toy[:3].copy(), early_stopping=True)


@pytest.mark.parametrize(("n_labels", "n_cells"), [(2, 5), (2, 60), (500, 3)])
def test_references_of_any_size(n_labels, n_cells):
    """Ten cells, two labels, many labels of three cells each."""
    rng = np.random.default_rng(0)
    rates = rng.gamma(0.5, 1, (n_labels, 100))[np.repeat(np.arange(n_labels), n_cells)]
    reference, query = (
        AnnData(rng.poisson(rates).astype(np.float32)) for _ in range(2)
    )
    for adata in (reference, query):
        adata.obs["kind"] = [
            f"type {i:03}" for i in np.repeat(np.arange(n_labels), n_cells)
        ]
    tosica.pp.build_mask(
        reference, {f"set {i}": reference.var_names[i::10] for i in range(10)}
    )
    model = untrained(reference)
    model.train(accelerator="cpu")
    model.annotate(query)
    assert (
        query.obs["tosica_prediction"].astype(str) == query.obs["kind"]
    ).mean() > 0.95
    assert query.obs["tosica_probability"].between(1 / n_labels, 1).all()


# --------------------------------------------------------------------------- an early end


@pytest.mark.parametrize("max_time", [0, {"seconds": 0}, "00:00:00:00"])
def test_a_limit_that_leaves_no_time_for_the_network(toy, toy_query, train, max_time):
    with pytest.warns(UserWarning, match="so that the linear branch labels alone"):
        model = train(toy, max_time=max_time)
    assert (model.predict(toy_query) == toy_query.obs["kind"].astype(str)).mean() > 0.9
    with pytest.raises(ValueError, match="the model has no linear branch"):
        train(toy, linear=False, max_time=max_time)


def test_a_limit_ends_the_network(toy, train):
    model = train(toy, max_time=3, max_epochs=10_000)
    assert 0 < len(model.history["train_loss"]) < 10_000


def test_training_twice_goes_on(toy, toy_query, train, fast_plan):
    """In bfloat16, with validation now and then."""
    options = {"precision": "bf16-mixed", "check_val_every_n_epoch": 2}
    model = train(
        toy, max_epochs=8, plan_kwargs=fast_plan | {"weight_decay": 0.3}, **options
    )
    weights = weights_of(model)
    loss = float(model.history["train_loss"].iloc[-1, 0])
    assert (
        len(model.history["train_loss"]),
        len(model.history["validation_loss"]),
    ) == (8, 4)
    # Weight decay spares biases, norms and the class token.
    (optimizer,) = model.trainer.optimizers
    decayed, spared = optimizer.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.3, 0.0)
    named = dict(model.module.named_parameters())
    assert {p.dtype for p in named.values()} == {torch.float32}
    for group, names in (
        (spared, ("head.bias", "encoder.class_token", "encoder.norm.weight")),
        (decayed, ("head.weight", "embedding.weight")),
    ):
        assert {id(named[name]) for name in names} <= {id(p) for p in group["params"]}
    assert len(decayed["params"]) + len(spared["params"]) == len(named)
    model.train(
        max_epochs=2,
        accelerator="cpu",
        batch_size=16,
        plan_kwargs={**fast_plan, "lr": 1e-4},
    )
    assert not same(weights, weights_of(model))
    table = model.history["train_loss"]
    assert table.index.tolist() == list(range(10))
    # It starts from where it was, not from chance (log 3 = 1.1).
    assert float(table.iloc[8, 0]) < loss + 0.1 < 1
    assert "trained (10 epochs)" in repr(model)
    assert (model.predict(toy_query) == toy_query.obs["kind"].astype(str)).mean() >= 0.9


class Losses(Callback):
    """Note the validation loss and the weights of each epoch."""

    def __init__(self):
        self.seen: list[tuple[float, dict[str, np.ndarray]]] = []

    def on_validation_epoch_end(self, trainer, pl_module):
        loss = float(trainer.callback_metrics["validation_loss"])
        self.seen.append((loss, weights_of(pl_module)))


def test_a_reference_that_was_set_up_again_is_refused(toy):
    first = untrained(toy)
    toy.obs["side"] = np.where(toy.obs["kind"] == "a", "left", "right")
    TOSICA.setup_anndata(toy, labels_key="side")
    with pytest.raises(ValueError, match="set up again"):
        first.train(max_epochs=1)
    TOSICA(toy, embed_dim=8, n_heads=2).train(max_epochs=1)


def test_a_reference_that_was_normalized_since_is_refused(toy):
    model = untrained(toy)
    sc.pp.normalize_total(toy, target_sum=1e4)
    sc.pp.log1p(toy)
    with pytest.raises(
        ValueError,
        match=r"adata\.X holds log-normalized expression now, and counts when it was set up",
    ):
        model.train(max_epochs=1)


def test_early_stopping_goes_back_to_the_best_weights(toy, train):
    losses = Losses()
    # Far too large a step, so that the loss soon rises.
    stopping = {
        "max_epochs": 60,
        "early_stopping": True,
        "early_stopping_patience": 3,
        "plan_kwargs": {"lr": 0.1},
    }
    model = train(
        toy, **stopping, calibrate=False, refit=False, linear=False, callbacks=[losses]
    )
    values = [loss for loss, _ in losses.seen]
    best = int(np.argmin(values))
    assert len(values) == best + 1 + 3 < 60
    assert same(losses.seen[best][1], weights_of(model))
    assert not same(losses.seen[-1][1], weights_of(model))


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("arguments", "error", "word"),
    [
        ({"plan_kwargs": 3}, TypeError, "plan_kwargs"),
        ({"enable_progress_bar": "no"}, TypeError, "enable_progress_bar"),
        ({"devices": 0}, ValueError, "devices=0 cannot be used"),
        ({"devices": "two"}, ValueError, "devices='two' cannot be used"),
    ],
)
def test_training_that_cannot_be(toy, arguments, error, word):
    model = untrained(toy)
    with pytest.raises(error, match=word):
        model.train(accelerator="cpu", **arguments)
    assert not model.is_trained


# --------------------------------------------------------------------------- the plan itself


@pytest.mark.parametrize(
    ("hidden", "changes"),
    [
        ({"gene_dropout": 0.5}, True),
        ({"token_dropout": 0.5}, True),
        ({}, False),
        ({"gene_dropout": 0.5, "complete_cells": 1.0}, False),
    ],
    ids=["genes", "gene sets", "nothing", "genes of no cell"],
)
def test_hiding_makes_steps_random(toy, hidden, changes):
    module = untrained(toy).module
    plan = TrainingPlan(
        module,
        TrainingPlanConfig(**{"gene_dropout": 0.0, "token_dropout": 0.0, **hidden}),
    )
    module.train()
    plan.log = lambda *args, **kwargs: None
    batch = {
        "X": torch.from_numpy(toy.X[:30].toarray()),
        "labels": torch.from_numpy(
            toy.obs["kind"].cat.codes.to_numpy(dtype=np.int64)[:30, None]
        ),
    }
    losses = {plan.training_step(batch, 0).item() for _ in range(5)}
    assert (len(losses) > 1) is changes


# --------------------------------------------------------------------------- what is said


def test_one_line_says_how_it_went(toy, train, caplog, capsys):
    model = train(toy, max_epochs=9, early_stopping=True, early_stopping_patience=1)
    n_epochs = len(model.history["train_loss"])
    messages = [line for line in caplog.messages if line.startswith("train: ")]
    early = " of 9 (stopped early)" if n_epochs < 9 else ""
    assert len(messages) == 1
    line = rf"train: {n_epochs} epochs{re.escape(early)} on 90 cells in [\d:]+; validation accuracy [\d.]+% \(9 cells\)"
    assert re.fullmatch(line, messages[0])
    # Neither Lightning nor the early stopping of scvi-tools says anything.
    assert {
        record.name for record in caplog.records if "Seed" not in record.message
    } == {"tosica"}
    assert capsys.readouterr().out == ""


def test_the_bar_of_a_training(toy, train, terminal):
    train(toy, max_epochs=2)
    assert "train: network, epoch 2/2: 100%" in terminal.getvalue()


@pytest.mark.parametrize("form", [list, tuple, next], ids=["list", "tuple", "alone"])
def test_a_bar_of_the_callers_takes_its_place(toy, train, terminal, form):
    callbacks = form(iter([TQDMProgressBar()]))
    train(toy, max_epochs=2, callbacks=callbacks)
    assert "network, epoch" not in terminal.getvalue()


# --------------------------------------------------------------------------- extension


def test_parts_can_be_replaced(toy):
    """As in models of scvi-tools."""

    class Plan(TrainingPlan):
        n_steps = 0

        def training_step(self, *args):
            type(self).n_steps += 1
            return super().training_step(*args)

    class Data(ReferenceData):
        pass

    class Own(TOSICA):
        _training_plan_cls = Plan
        _data_splitter_cls = Data
        _training_phases = tuple(phase for phase in PHASES if phase.__name__ != "refit")

    Own.setup_anndata(toy, labels_key="kind")
    model = Own(toy, embed_dim=8, n_heads=2)
    model.train(max_epochs=1, batch_size=16, accelerator="cpu")
    assert Plan.n_steps == 6
    assert not model.training_.refitted


@pytest.mark.parametrize(
    ("poor", "weight"),
    [
        ("network", 1000),
        ("linear branch", 0),
        ("doubt of the branch", 1),
        ("neither", 16.9),
    ],
)
def test_held_out_cells_choose_the_share_of_the_network(
    toy, train, monkeypatch, poor, weight, caplog
):
    def damage(state):
        network = state.model.module.head.weight
        line = state.linear._fitted[0].weights
        noise = (
            np.random.default_rng(0).normal(size=line.shape) * 2 * np.abs(line).mean()
        )
        damages = {
            "network": lambda: network.data.mul_(-1000),
            "linear branch": lambda: np.negative(line, line),
        }
        # Right as often, and less sure: only the likelihood tells.
        damages["doubt of the branch"] = lambda: np.add(line, noise, line)
        damages.get(poor, int)()

    trained = PHASES.index(fit_network) + 1
    refitted = PHASES.index(refit)
    phases = (*PHASES[:trained], damage, *PHASES[trained:refitted])
    monkeypatch.setattr(TOSICA, "_training_phases", phases)
    model = train(toy, max_epochs=10, train_size=0.5)
    assert model.module.temperature.item() == pytest.approx(1 + weight, rel=0.3)
    assert (poor == "linear branch") == (
        not model.get_linear_weights().to_numpy().any()
    )
    assert ("labeled better without the network" in caplog.text) == (poor == "network")


def test_one_step_may_be_all_warmup(toy, train):
    model = train(toy, max_epochs=1, batch_size=90, plan_kwargs={"warmup": 1.0})
    assert np.isfinite(model.history["train_loss"].to_numpy(dtype=float)).all()
