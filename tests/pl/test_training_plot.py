"""Losses and accuracy over the epochs, and the epoch that is marked."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from pl.explained_pbmc import history

from tosica import pl


def labels(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_losses_and_accuracy_have_a_panel_each():
    losses, accuracy = pl.training(history(), show=False)
    assert losses.get_ylabel() == "cross-entropy"
    assert labels(losses) == ["training loss", "validation loss", "lowest validation loss: epoch 8"]
    assert accuracy.get_ylabel() == "accuracy"
    assert labels(accuracy) == ["validation accuracy"]
    assert (losses.get_xlabel(), accuracy.get_xlabel()) == ("", "epoch")
    assert losses.get_xlim() == accuracy.get_xlim()


def test_the_epoch_with_the_lowest_validation_loss_is_marked():
    table = history()
    for ax in pl.training(table, show=False):
        dots = [line for line in ax.lines if line.get_marker() == "o"]
        assert [float(dot.get_xdata()[0]) for dot in dots] == [8]
    expected = float(table["validation_accuracy"].iloc[7, 0])
    assert float(dots[0].get_ydata()[0]) == pytest.approx(expected)


def test_epochs_are_counted_from_one(toy_model):
    losses, _ = pl.training(toy_model, show=False)
    n_epochs = len(toy_model.history["train_loss"])
    np.testing.assert_array_equal(losses.lines[0].get_xdata(), np.arange(1, n_epochs + 1))
    expected = toy_model.history["train_loss"].to_numpy(float).ravel()
    np.testing.assert_allclose(losses.lines[0].get_ydata(), expected)


def test_given_axes_get_the_losses():
    _, ax = plt.subplots()
    assert pl.training(history(), ax=ax) is ax
    assert labels(ax)[:2] == ["training loss", "validation loss"]
    _, ax = plt.subplots()
    pl.training(history(), keys=["validation_accuracy"], ax=ax, title="a title")
    assert ax.get_ylabel() == "accuracy"
    assert ax.get_title() == "a title"


def test_without_held_out_cells_there_is_the_training_loss():
    ax = pl.training({"train_loss": history()["train_loss"]}, show=False)
    assert labels(ax) == ["training loss"]


def test_one_epoch_is_seen():
    single = {name: table[:1] for name, table in history().items()}
    for ax in pl.training(single, show=False):
        assert {line.get_marker() for line in ax.lines} == {"o"}
        assert not [name for name in labels(ax) if "lowest" in name]


def test_other_quantities_are_drawn():
    table = history() | {"lr-AdamW": pd.DataFrame({"lr-AdamW": np.linspace(0, 1, 10)})}
    axes = pl.training(table, keys=["train_loss", "lr-AdamW", "lr-AdamW"], show=False)
    assert [ax.get_ylabel() for ax in axes] == ["cross-entropy", ""]
    assert labels(axes[1]) == ["lr-AdamW"]
