"""The progress bar: where it is drawn, what it says, and when there is none."""

from __future__ import annotations

import io
import logging
import pickle
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import scvi

from tosica import _progress
from tosica._logging import logger
from tosica._progress import ProgressBar, is_watched, noted, track
from tosica._settings import settings


class Terminal(io.StringIO):
    """A stream that says that somebody is looking."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    stream = Terminal()
    # pytest puts its own stderr back between a fixture and the test.
    fake = SimpleNamespace(stderr=stream, modules=sys.modules)
    monkeypatch.setattr(_progress, "sys", fake)
    monkeypatch.setattr(_progress, "_INTERVAL", 0.0)
    return stream


@pytest.fixture(params=["tqdm", "rich"])
def style(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    scvi.settings.progress_bar_style = request.param
    yield request.param
    scvi.settings.progress_bar_style = "tqdm"


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when it is told to."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(_progress, "time", clock)
    return clock


def test_it_says_what_how_fast_and_how_long(terminal, style, clock, capsys):
    with ProgressBar("work", 2000) as bar:
        clock.now += 1
        bar.advance(1500)
        text = terminal.getvalue()
        assert "work" in text
        assert " 75%" in text
        assert "1 500 cells/s, 00:00 left" in text
        clock.now += 1
        bar.restart("other work")
        clock.now += 10
        bar.advance(100, seconds_after=3000)
        text = terminal.getvalue()
        assert "other work" in text
        # Ten cells a second, and 400 of them left.
        assert "10 cells/s, 50:40 left" in text
    assert "took 00:12" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_short_work_has_none(terminal, style, clock):
    with ProgressBar("work", 100, delay=2) as bar:
        for _ in range(10):
            clock.now += 0.1
            bar.advance(10)
    assert terminal.getvalue() == ""


def test_longer_work_has_one_after_the_delay(terminal, style, clock):
    with ProgressBar("work", 100, delay=2) as bar:
        clock.now += 1.9
        bar.advance(10)
        assert terminal.getvalue() == ""
        clock.now += 0.2
        bar.advance(10)
        assert "work" in terminal.getvalue()


def test_it_is_drawn_rarely(monkeypatch, clock):
    """Ten times a second."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar("work", 4000) as bar:
        for _ in range(2000):
            clock.now += 0.001
            bar.advance(1)
        drawn = stream.getvalue()
    assert drawn.count("work") == pytest.approx(20, abs=1)


def test_a_file_has_a_line_a_minute(monkeypatch, clock, caplog):
    """Nothing else: what is drawn over and over would be a mess there."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar("work", 400) as bar:
        bar.restart("other work")
        for _ in range(30):
            clock.now += 5
            bar.advance(2)
    assert stream.getvalue() == ""
    assert caplog.messages == [
        "other work: 6 %, 15:40 left",
        "other work: 12 %, 14:40 left",
    ]


@pytest.mark.parametrize("total", [None, 0])
def test_what_is_not_counted_has_notes(terminal, style, clock, total):
    with ProgressBar("work", total):
        clock.now += 3
        with noted("fold 2 of 5"), noted("step 1 of 9"):
            pass
        assert "work:" in terminal.getvalue()
        assert "fold 2 of 5, step 1 of 9, 00:03" in terminal.getvalue()
        assert ("0%" in terminal.getvalue()) is (total == 0)
        with noted("step 2 of 9"):
            pass
        assert " step 2 of 9, 00:03" in terminal.getvalue().rpartition("work:")[2]


def test_time_is_shown_while_a_library_works(terminal, style, monkeypatch):
    monkeypatch.setattr(_progress, "_TICK", 0.01)
    with ProgressBar("work", None):
        end = time.monotonic() + 20
        while "work: 00:0" not in terminal.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
    assert "work: 00:0" in terminal.getvalue()
    assert "work: took 00:" in terminal.getvalue()
    assert "tosica-progress" not in {thread.name for thread in threading.enumerate()}


def test_notes_without_a_bar_are_lost(terminal):
    with noted("fold 2 of 5"):
        pass
    with ProgressBar("work", 10):
        # Several threads would write over one another.
        thread = threading.Thread(target=noted("fold 3 of 5").__enter__)
        thread.start()
        thread.join()
    assert "fold" not in terminal.getvalue()


def test_there_is_one_bar_at_a_time(terminal, style):
    with ProgressBar("outer", 10) as outer:
        with ProgressBar("inner", 10) as inner:
            inner.advance(5)
        outer.advance(5)
    assert "outer" in terminal.getvalue()
    assert "inner" not in terminal.getvalue()
    with ProgressBar("outer", 10, enabled=False), ProgressBar("inner", 10) as inner:
        inner.advance(5)
    assert "inner" in terminal.getvalue()


def test_items_are_tracked(terminal, style, clock):
    seen = []
    for item in track("abcd", "work", total=4, unit="letters"):
        clock.now += 0.7
        seen.append(item)
    assert seen == list("abcd")
    assert " 75%" in terminal.getvalue()
    assert "1 letters/s, 00:00 left" in terminal.getvalue()


def test_there_is_none_if_it_is_switched_off(terminal, style):
    with ProgressBar("work", 100, enabled=False) as bar:
        bar.restart("work")
        bar.advance(100)
    scvi.settings.verbosity = logging.WARNING
    try:
        with ProgressBar("work", 100) as bar:
            bar.restart("work")
            bar.advance(100)
    finally:
        scvi.settings.verbosity = logging.INFO
    for name, value in {"verbosity": "warning", "progress_bar": False}.items():
        before = getattr(settings, name)
        setattr(settings, name, value)
        try:
            with ProgressBar("work", 100) as bar:
                bar.restart("work")
                bar.advance(100)
        finally:
            setattr(settings, name, before)
    assert terminal.getvalue() == ""


def test_log_lines_have_lines_of_their_own(terminal, style, monkeypatch):
    handler = logging.StreamHandler(terminal)
    logger.addHandler(handler)
    try:
        with ProgressBar("work", 100) as bar:
            bar.advance(10)
            logger.info("a line")
            bar.advance(10)
        # What precedes it on its line was overwritten or erased.
        before = terminal.getvalue().partition("a line\n")[0]
        assert before[-1] in "\r\nK"
        assert handler.filters == []
    finally:
        logger.removeHandler(handler)


def test_an_error_ends_it(terminal, style):
    bar = ProgressBar("work", 100)

    def work():
        with bar:
            bar.advance(10)
            raise RuntimeError("the work fails")

    with pytest.raises(RuntimeError, match="the work fails"):
        work()
    assert "took" not in terminal.getvalue()
    assert all(bar._filter not in handler.filters for handler in logger.handlers)


def test_another_process_draws_a_bar_of_its_own(terminal):
    with ProgressBar("work", 100) as bar:
        bar.advance(10)
        copy = pickle.loads(pickle.dumps(bar))
        assert copy.n_done == 10
        copy.advance(10)
        assert copy.n_done == 20
        assert bar.n_done == 10


def test_who_is_watching(monkeypatch):
    for stream, expected in ((Terminal(), True), (io.StringIO(), False), (None, False)):
        monkeypatch.setattr(sys, "stderr", stream)
        assert is_watched() is expected
    # A notebook: its stderr is no terminal.
    shell = type("Shell", (), {"config": {"IPKernelApp": {}}})()
    ipython = type("IPython", (), {"get_ipython": staticmethod(lambda: shell)})
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert is_watched()
    shell.config = {}
    assert not is_watched()
