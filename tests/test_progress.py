"""The progress bar: where it is drawn, what it says, and when there is none."""

from __future__ import annotations

import io
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from tosica import _settings
from tosica._settings import is_watched, logger, progress, settings


def wait_for(text, stream):
    end = time.monotonic() + 20
    while text not in stream.getvalue() and time.monotonic() < end:
        time.sleep(0.01)
    return text in stream.getvalue()


def test_it_says_what_how_far_and_how_fast(terminal, capsys):
    with progress(2000, "work") as step:
        step.n += 1500
        assert wait_for("work:  75%", terminal)
        assert "1500/2000" in terminal.getvalue()
        assert "cells/s" in terminal.getvalue()
        step.text = "other work"
        assert wait_for("other work:  75%", terminal)
        step.n += 500
    assert "other work: 100%" in terminal.getvalue()
    assert terminal.getvalue().endswith("\n")
    assert capsys.readouterr().out == ""
    assert "tosica-progress" not in {thread.name for thread in threading.enumerate()}


def test_a_file_has_a_line_now_and_then(monkeypatch, caplog):
    """Nothing else: what is drawn over and over would be a mess there."""
    stream = io.StringIO()
    monkeypatch.setattr(_settings, "sys", SimpleNamespace(stderr=stream, modules={}))
    monkeypatch.setattr(_settings, "INTERVAL_LOG", 0.01)
    for total, line in ((400, "work: 6% after 0"), (None, "work after 0")):
        caplog.clear()
        with progress(total, "work") as step:
            step.n += 24
            end = time.monotonic() + 20
            # Its first line may come before the count.
            while not any(text.startswith(line) for text in caplog.messages):
                assert time.monotonic() < end, caplog.messages
                time.sleep(0.01)
    assert "\r" not in stream.getvalue()


def test_there_is_one_bar_at_a_time(terminal):
    with progress(10, "outer"), progress(10, "inner") as inner:
        inner.n += 5
        assert wait_for("outer", terminal)
    with progress(10, "outer", enabled=False), progress(10, "later"):
        assert wait_for("later", terminal)
    assert "inner" not in terminal.getvalue()


@pytest.mark.parametrize(
    "setting", [("verbosity", "warning"), ("progress_bar", False), ("delay", 60.0)]
)
def test_there_is_none_if_it_is_switched_off_or_the_work_is_short(
    terminal, monkeypatch, setting
):
    name, value = setting
    if name == "delay":
        monkeypatch.setattr(_settings, "DELAY", value)
    else:
        monkeypatch.setattr(settings, name, value)
    with progress(10, "work") as step:
        time.sleep(0.05)
        step.n += 10
    assert terminal.getvalue() == ""


def test_log_lines_have_lines_of_their_own(terminal, monkeypatch):
    with progress(100, "work"):
        assert wait_for("work", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        logger.info("a line")
    # What precedes it on its line was overwritten.
    assert terminal.getvalue().partition("a line\n")[0][-1] == "\r"


def test_an_error_ends_it(terminal):
    with pytest.raises(ZeroDivisionError), progress(100, "work"):
        1 / 0  # noqa: B018
    assert "tosica-progress" not in {thread.name for thread in threading.enumerate()}
    with progress(100, "more"):
        assert wait_for("more", terminal)


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
