"""One line for whatever goes wrong, and what is said meanwhile."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import warnings
from typing import TYPE_CHECKING, Any

import click
import pytest

import tosica
from tosica import cli
from tosica._logging import logger
from tosica.cli._errors import sentence_of
from tosica.cli._session import Session
from tosica.cli._stopping import stopped_by_signals

if TYPE_CHECKING:
    from pathlib import Path

NOT_EXPECTED = "; this was not expected: --debug shows where it was raised."


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch, run: Any, query: Path) -> Any:
    """Run ``tosica evaluate``, in which Python's function does something else."""

    def call(function: Any, *options: str) -> Any:
        monkeypatch.setattr(tosica.tl, "evaluate", function)
        return run("evaluate", query, "--labels-key", "kind", *options)

    return call


def raising(error: BaseException) -> Any:
    def function(*_: Any, **__: Any) -> None:
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        (AssertionError(), "AssertionError"),
        (ValueError("line 1\nline 2"), "ValueError: line 1 line 2"),
        (KeyError("column"), "KeyError: column"),
        (RuntimeError("x" * 1000), f"RuntimeError: {'x' * 586}…"),
    ],
)
def test_what_is_not_expected_is_named(error: Exception, line: str, evaluated: Any) -> None:
    assert evaluated(raising(error)) == (1, "", f"tosica: error: {line}{NOT_EXPECTED}\n")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "a.h5ad"), "No space left on device: 'a.h5ad'"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (KeyboardInterrupt(), "stopped by Ctrl-C."),
    ],
)
def test_what_the_machine_says(error: BaseException, line: str, evaluated: Any) -> None:
    assert evaluated(raising(error)) == (1, "", f"tosica: error: {line}\n")


def test_debug_shows_the_traceback(evaluated: Any) -> None:
    result = evaluated(raising(ZeroDivisionError("division by zero")), "--debug")
    assert result.code == 1
    assert "Traceback (most recent call last)" in result.err
    assert result.err.splitlines()[-1].startswith("tosica: error: ZeroDivisionError")


def test_a_process_that_ends_itself(evaluated: Any) -> None:
    assert evaluated(raising(SystemExit(143))).code == 1


def test_a_reader_that_went_is_no_error(evaluated: Any) -> None:
    result = evaluated(raising(BrokenPipeError(32, "Broken pipe")))
    assert result == (1, "", "")


@pytest.mark.parametrize(
    ("sentence", "line"),
    [
        ("pass overwrite=True to replace it.", "pass --overwrite to replace it."),
        ("X is in adata.raw (use_raw=True).", "X is in adata.raw (--use-raw)."),
        ("layer='counts' was given.", "--layer 'counts' was given."),
        ("pass accelerator='cpu' or 'auto'.", "pass --device 'cpu' or 'auto'."),
        ("run model.annotate(adata, key_added='k') first.", "run tosica annotate first."),
        (
            "adata looks converted: read its file with tosica.io.read_seurat, or repair it with "
            "tosica.io.from_seurat(adata).",
            "adata looks converted: pass --seurat.",
        ),
    ],
)
def test_arguments_of_python_are_options(sentence: str, line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        exec("raise ValueError(sentence)", {"__name__": "tosica.data", "sentence": sentence})
    assert sentence_of(caught.value, cli.commands.commands["annotate"]) == line


# --------------------------------------------------------------------------- what is said


def test_only_warnings_of_tosica_are_shown_each_once(evaluated: Any) -> None:
    evaluate = tosica.tl.evaluate

    def warned(*arguments: Any, **options: Any) -> Any:
        print("of a library")
        warnings.warn("of a library", FutureWarning, stacklevel=1)
        for _ in range(2):
            logger.warning("of tosica,\nin two lines")
        # Of a module of tosica.
        exec("import warnings\nwarnings.warn('for users')", {"__name__": "tosica.data._align"})
        exec("import warnings\nwarnings.warn('for users')", {"__name__": "tosica.data._align"})
        adata = arguments[0]
        adata.obs["tosica_prediction"] = adata.obs["kind"].to_numpy()
        adata.obs["tosica_probability"] = 1.0
        return evaluate(*arguments, **options)

    result = evaluated(warned)
    assert result.code == 0
    assert result.out.startswith("Evaluation of")
    assert result.err == (
        "tosica: warning: of tosica, in two lines\n" * 2 + "tosica: warning: for users\n"
    )
    result = evaluated(warned, "--quiet")
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    ("terminal", "options", "lines"),
    [
        (False, {}, 0),
        (False, {"verbose": True}, 1),
        (True, {}, 1),
        (True, {"quiet": True}, 0),
        (False, {"quiet": True, "verbose": True}, 0),
    ],
)
def test_steps_are_logged_for_those_who_look(
    terminal: bool, options: dict[str, bool], lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stream)
    with Session(**options) as session, session.busy("reading …"):
        logger.info("a step")
    assert stream.getvalue().count("a step") == lines


# --------------------------------------------------------------------------- signals


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGXCPU"])
def test_signals_end_a_command_with_1(name: str, evaluated: Any) -> None:
    number = getattr(signal, name)
    # The tests may have been started by nohup, which ignores SIGHUP.
    before = signal.signal(number, signal.SIG_DFL)

    def killed(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), number)

    try:
        assert evaluated(killed) == (1, "", f"tosica: error: stopped by {name}.\n")
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_jobs_in_the_background_end_as_well() -> None:
    """Shells start them with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopped_by_signals() as stop, pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.name == "SIGTERM"
    finally:
        signal.signal(signal.SIGINT, before)


def test_signals_that_are_ignored_stay_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_by_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.name == ""
    finally:
        signal.signal(signal.SIGHUP, before)


def test_commands_are_of_one_kind() -> None:
    assert all(isinstance(c, click.Command) for c in cli.commands.commands.values())
    assert {type(c).__name__ for c in cli.commands.commands.values()} == {"Command"}


def test_what_python_ignores_writes_no_line(evaluated: Any) -> None:
    before = sys.unraisablehook

    class Interrupted:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def fails(*_: Any, **__: Any) -> None:
        Interrupted()
        raise AssertionError

    assert evaluated(fails) == (1, "", f"tosica: error: AssertionError{NOT_EXPECTED}\n")
    assert sys.unraisablehook is before
