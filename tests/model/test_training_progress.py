"""One bar for a whole training and one for annotate, and no other."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace

import pytest
from lightning.pytorch.callbacks import TQDMProgressBar

from tosica import _progress
from tosica.model._training_progress import take_bar

ONCE = {"max_epochs": 2, "batch_size": 16, "accelerator": "cpu"}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    stream = Terminal()
    # pytest puts its own stderr back between a fixture and the test.
    fake = SimpleNamespace(stderr=stream, modules=sys.modules)
    monkeypatch.setattr(_progress, "sys", fake)
    monkeypatch.setattr(_progress, "_INTERVAL", 0.0)
    monkeypatch.setenv("COLUMNS", "120")
    return stream


def lines(stream) -> list[str]:
    return [line for line in re.split(r"[\r\n]+", stream.getvalue()) if "%|" in line]


def test_a_training_has_one_bar(toy, train, terminal, capsys):
    model = train(toy, setup={"batch_key": "donor"})
    assert lines(terminal) == []  # the bar is switched off there
    model.train(**ONCE)
    assert capsys.readouterr().out == ""
    found = lines(terminal)
    assert all(line.startswith("train: ") for line in found)
    names = [line.split("%|")[0].rsplit(":", 1)[0] for line in found]
    assert list(dict.fromkeys(names)) == [
        "train: checking labels",
        "train: batch directions",
        "train: linear branch",
        "train: network, epoch 1/2",
        "train: network, epoch 2/2",
        "train: calibration",
        "train: refit, epoch 1/1",
        # And the linear branch again.
        "train: missing genes",
        "train: novelty",
        "train",
    ]
    share = [int(re.search(r"(\d+)%", line)[1]) for line in found]
    assert share == sorted(share)
    assert share[0] == 0
    assert share[-1] == 100
    figures = [line for line in found if "network" in line and "cells/s" in line]
    assert all(re.search(r"[\d ]+ cells/s, \d\d:\d\d left$", line.rstrip()) for line in figures)
    assert len(figures) >= 12


def test_and_none_if_it_is_switched_off(toy, train, terminal, capsys):
    train(toy)
    assert lines(terminal) == []
    assert capsys.readouterr().out == ""


def test_one_line_says_how_it_went(toy, train, caplog, capsys):
    model = train(toy, max_epochs=9, early_stopping=True, early_stopping_patience=1)
    n_epochs = len(model.history["train_loss"])
    said = [line for line in caplog.messages if line.startswith("train: ")]
    assert len(said) == 1
    early = " of 9 (stopped early)" if n_epochs < 9 else ""
    assert re.fullmatch(
        rf"train: {n_epochs} epochs{re.escape(early)} on 90 cells in \d\d:\d\d; "
        r"\d+\.\d% of 9 held-out cells got their label",
        said[0],
    )
    # Neither Lightning nor the early stopping of scvi-tools says anything.
    assert {record.name for record in caplog.records if "Seed" not in record.message} == {"tosica"}
    assert capsys.readouterr().out == ""


def test_an_own_bar_takes_its_place(toy, train, terminal):
    class Own(TQDMProgressBar):
        n_steps = 0

        def on_train_batch_end(self, *args):
            super().on_train_batch_end(*args)
            self.n_steps += 1

    own = Own()
    model = train(toy, max_epochs=1)
    model.train(**ONCE, callbacks=[own])
    assert own.n_steps == 12
    assert not [line for line in lines(terminal) if line.startswith("train: ")]


def test_the_bars_of_the_trainer_are_off():
    assert take_bar({}) == (True, {"enable_progress_bar": False})
    for off in ({"enable_progress_bar": False}, {"progress_bar_refresh_rate": 0}):
        assert take_bar(off) == (False, {"enable_progress_bar": False})
    shown, rest = take_bar({"simple_progress_bar": False, "precision": "32-true"})
    assert (shown, rest) == (True, {"precision": "32-true", "enable_progress_bar": False})
    with pytest.raises(TypeError, match=r"^enable_progress_bar must be True or False, not 'no'"):
        take_bar({"enable_progress_bar": "no"})
