"""How much is said: tosica.settings, and what Lightning is kept from saying."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest
import scvi
import torch
from _cells import TOY_SETS

import tosica
from tosica._parallel import thread_map, thread_pool
from tosica._settings import (
    logger,
    only_warnings,
    quiet_libraries,
    warn_user,
    without_warnings,
)

TALKERS = ("lightning", "lightning.pytorch", "lightning.fabric")


@pytest.fixture(autouse=True)
def _restore_settings():
    verbosity = tosica.settings.verbosity
    progress_bar = tosica.settings.progress_bar
    yield
    tosica.settings.verbosity = verbosity
    tosica.settings.progress_bar = progress_bar


def test_the_verbosity_is_a_level_of_logging():
    assert repr(tosica.settings) == "Settings(verbosity='info', progress_bar=True)"
    for value, level in {
        "warning": 30,
        "WARNING": 30,
        logging.ERROR: 40,
        "debug": 10,
        "critical": 50,
        25: 25,
    }.items():
        tosica.settings.verbosity = value
        assert tosica.settings.verbosity == logger.level == level
    tosica.settings.progress_bar = False
    assert repr(tosica.settings) == "Settings(verbosity=25, progress_bar=False)"


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("verbosity", "quiet", ValueError),
        ("verbosity", 0, ValueError),  # a number of scanpy
        ("verbosity", None, TypeError),
        ("progress_bar", "no", TypeError),
        ("seed", "0", TypeError),
        ("seed", -1, ValueError),
        ("verbose", 1, AttributeError),
    ],
)
def test_wrong_values_are_refused(name, value, error):
    values = repr(tosica.settings), scvi.settings.seed
    with pytest.raises(error, match=name):
        setattr(tosica.settings, name, value)
    assert (repr(tosica.settings), scvi.settings.seed) == values


def test_the_seed_is_that_of_scvi_tools_without_a_line(caplog, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--one")
    tosica.settings.seed = 3
    assert scvi.settings.seed == tosica.settings.seed == 3
    assert caplog.messages == []
    assert os.environ["XLA_FLAGS"] == "--one"
    tosica.settings.seed = None
    assert scvi.settings.seed is None


# --------------------------------------------------------------------------- Lightning


def levels():
    return [logging.getLogger(name).level for name in TALKERS]


def test_lightning_says_warnings_only_and_is_as_before_afterwards(caplog, monkeypatch):
    initial = levels()
    talker = logging.getLogger("lightning.pytorch")

    def work():
        with quiet_libraries():
            talker.info("a line")
            talker.warning("a warning")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert caplog.messages == ["a warning"]
    assert levels() == initial
    tosica.settings.verbosity = "debug"
    with quiet_libraries():
        talker.info("everything")
    assert caplog.messages == ["a warning", "everything"]
    tosica.settings.verbosity = "info"
    for name in TALKERS:
        monkeypatch.setattr(logging.getLogger(name), "level", logging.ERROR)
    with quiet_libraries():
        assert levels() == [logging.ERROR] * 3


# --------------------------------------------------------------------------- a whole analysis


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("verbosity", ["info", "warning"])
def test_what_an_analysis_prints(verbosity, toy, capsys):
    """One line or two a step, each with its name; nothing at all if only warnings are wanted."""
    tosica.settings.verbosity = verbosity
    tosica.settings.seed = 0
    capsys.readouterr()
    tosica.pp.build_mask(toy, TOY_SETS)
    tosica.TOSICA.setup_anndata(toy, labels_key="kind")
    model = tosica.TOSICA(toy, embed_dim=8, n_heads=2)
    model.train(
        max_epochs=3, accelerator="cpu", early_stopping=True, early_stopping_patience=1
    )
    model.annotate(toy)
    tosica.tl.attribute(toy, model)
    out, err = capsys.readouterr()
    assert out == ""
    steps = [line.partition(":")[0] for line in err.splitlines()]
    expected = (
        ["build_mask", "TOSICA", "train", "query", "annotate", "attribute"]
        if verbosity == "info"
        else []
    )
    assert list(dict.fromkeys(steps)) == expected
    assert len(steps) <= 10


def test_a_quiet_thread_leaves_others_as_they_are(caplog, recwarn):
    both_are_inside = Barrier(2)
    first_has_left = Event()

    def first():
        with only_warnings(logger), without_warnings():
            both_are_inside.wait(10)
            logger.info("a line of the first")
            warn_user("a warning of the first")
        first_has_left.set()

    def second():
        with only_warnings(logger):
            both_are_inside.wait(10)
            first_has_left.wait(10)
            logger.info("a line of the second")
        logger.info("afterwards")
        warn_user("a warning of the second")

    with ThreadPoolExecutor(2) as pool:
        for work in [pool.submit(first), pool.submit(second)]:
            work.result()
    assert [record.message for record in caplog.records] == ["afterwards"]
    assert [str(x.message) for x in recwarn] == ["a warning of the second"]


def test_threads_of_a_quiet_one_are_quiet(caplog):
    with only_warnings(logger), thread_pool(torch.device("cpu")):
        list(thread_map(logger.info, ["a line", "another line"]))
    assert not caplog.records
