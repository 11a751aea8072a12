"""The progress bar: where it is drawn, what it says, and when there is none."""

import io
import sys
import time
from types import SimpleNamespace

import pytest

from tosica import _progress
from tosica._progress import is_watched, progress
from tosica._settings import logger, settings


def test_it_says_what_how_far_and_how_fast(terminal, capsys):
    with progress(2000, "work") as bar:
        time.sleep(0.11)
        bar.update(1500)
        assert "work:  75%" in terminal.getvalue()
        assert "1500/2000" in terminal.getvalue()
        assert "cells/s" in terminal.getvalue()
        bar.set_description("other work")
        assert "other work:  75%" in terminal.getvalue()
        bar.update(500)
    assert "other work: 100%" in terminal.getvalue()
    assert terminal.getvalue().endswith("\n")
    assert capsys.readouterr().out == ""


def test_a_step_without_numbers_is_named_while_it_takes_place(terminal):
    with progress(None, "reading"):
        assert "reading" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")


def test_a_file_has_none(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(_progress, "sys", SimpleNamespace(stderr=stream, modules={}))
    monkeypatch.setattr(_progress, "DELAY", 0.0)
    for total in (400, None):
        with progress(total, "work") as bar:
            bar.update(400)
    assert stream.getvalue() == ""


def test_there_is_one_bar_at_a_time(terminal):
    with progress(10, "outer"), progress(10, "inner") as inner:
        inner.update(5)
        assert "outer" in terminal.getvalue()
    with progress(10, "outer", enabled=False), progress(10, "later"):
        assert "later" in terminal.getvalue()
    assert "inner" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("name", "value"),
    [("verbosity", "warning"), ("progress_bar", False), ("delay", 60.0)],
)
def test_there_is_none_if_it_is_switched_off_or_the_work_is_short(
    terminal, monkeypatch, name, value
):
    if name == "delay":
        monkeypatch.setattr(_progress, "DELAY", value)
    else:
        monkeypatch.setattr(settings, name, value)
    with progress(10, "work") as bar:
        time.sleep(0.11)
        bar.update(10)
    assert terminal.getvalue() == ""


def test_log_lines_have_lines_of_their_own(terminal, monkeypatch):
    with progress(100, "work"):
        assert "work" in terminal.getvalue()
        monkeypatch.setattr(sys, "stderr", terminal)
        logger.info("a line")
    # The bar in front of it was overwritten.
    assert terminal.getvalue().partition("a line\n")[0][-1] == "\r"


def test_after_an_error_there_may_be_another_bar(terminal):
    with pytest.raises(ZeroDivisionError), progress(100, "work"):
        1 / 0  # noqa: B018
    with progress(100, "more"):
        assert "more" in terminal.getvalue()


def test_who_is_watching(monkeypatch):
    for stream, expected in (
        (SimpleNamespace(isatty=lambda: True), True),
        (io.StringIO(), False),
        (None, False),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        assert is_watched() is expected
    # A notebook: its stderr is no terminal.
    shell = type("Shell", (), {"config": {"IPKernelApp": {}}})()
    ipython = type("IPython", (), {"get_ipython": staticmethod(lambda: shell)})
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert is_watched()
    shell.config = {}
    assert not is_watched()
