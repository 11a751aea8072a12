"""What all commands have in common."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
import warnings
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import click
import pytest
import torch
import yaml

import tosica
from tosica import cli
from tosica._settings import logger
from tosica.cli._session import Session, _as_options

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = ["train", "annotate", "evaluate", "report", "gene-sets", "info", "demo"]
HEAVY = ("torch", "scanpy", "anndata", "pandas", "numpy", "scvi", "lightning")


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("option", ["--help", "--version", "--versions", "annotate --help"])
def test_what_is_asked_first_imports_nothing_heavy(option: str) -> None:
    code = (
        "import sys; from tosica.cli import main; "
        f"code = main({option.split()!r}); "
        f"print(code, sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = python("-c", code)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr


def test_help_names_all_commands(run: Any) -> None:
    result = run("--help")
    assert result.code == 0
    assert all(f"\n  {name} " in result.out for name in COMMANDS)
    assert set(cli.commands.commands) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_common_options(name: str, run: Any) -> None:
    result = run(name, "--help")
    assert result.code == 0
    assert all(option in result.out for option in ("--json", "--quiet", "--verbose", "--debug"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is(name: str) -> None:
    plain = {"batch_size", "precision"}
    options = [p for p in cli.commands.commands[name].params if isinstance(p, click.Option)]
    assert [p.name for p in options if not p.help and p.name not in plain] == []


def test_version(run: Any) -> None:
    assert run("--version") == (0, f"tosica {version('tosica')}\n", "")


def test_versions_are_yaml_of_strings(run: Any) -> None:
    result = run("--versions")
    versions = yaml.safe_load(result.out)
    assert next(iter(versions)) == "tosica"
    assert versions["tosica"] == version("tosica")
    assert {"python", "torch", "anndata", "scvi-tools"} <= set(versions)
    assert all(isinstance(value, str) for value in versions.values())


def test_a_version_that_looks_like_a_number(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "version", lambda _: "1.10")
    assert yaml.safe_load(run("--versions").out)["torch"] == "1.10"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["annotate"],
        ["annotate", "query.h5ad", "--model", "m"],
        ["annotate", "query.h5ad", "--model", "m", "-o", "out.txt"],
        ["annotate", "query.h5ad", "--model", "m", "--obs-out", "out.h5ad"],
        ["annotate", "q.h5ad", "--model", "m", "-o", "o.h5ad", "--layer", "a", "--use-raw"],
        ["annotate", "q.h5ad", "--model", "m", "-o", "o.h5ad", "--over-clustering", "a"],
        ["annotate", "q.h5ad", "--model", "m", "-o", "o.h5ad", "--device", "tpu"],
        ["annotate", "q.h5ad", "--model", "m", "-o", "o.h5ad", "--device", "cpu:1"],
        ["annotate", "q.h5ad", "--model", "m", "-o", "o.h5ad", "--threads", "0"],
        ["annotate", "q.h5ad", "--model", "m", "-o", "o.h5ad", "--cutoff", "2"],
        ["train", "r.h5ad", "-o", "m"],
        ["train", "r.h5ad", "--labels-key", "k", "-o", "m", "--layer", "a", "--use-raw"],
        ["gene-sets", "--for", "r.h5ad"],
        ["report", "a.h5ad", "-o", "page.pdf"],
        ["demo", "--seed", "-1"],
        ["demo", "--out", __file__],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], run: Any) -> None:
    result = run(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert "Error: " in result.err


def test_completion_is_that_of_click() -> None:
    done = python("-m", "tosica.cli", _TOSICA_COMPLETE="bash_source")
    assert done.returncode == 0
    words = python("-m", "tosica.cli", _TOSICA_COMPLETE="bash_complete", COMP_WORDS="tosica an", COMP_CWORD="1")
    assert words.stdout.split() == ["plain,annotate"]


def test_threads_are_set_before_torch_is_imported(run: Any, query: Path) -> None:
    before = torch.get_num_threads()
    try:
        # A model that is missing ends the command early.
        run("annotate", query, "--model", "none", "-o", query.with_name("o.h5ad"), "--threads", 3)
        assert torch.get_num_threads() == 3
        assert os.environ["OMP_NUM_THREADS"] == os.environ["NUMBA_NUM_THREADS"] == "3"
    finally:
        torch.set_num_threads(before)


def test_loggers_warnings_and_settings_are_as_before(run: Any, query: Path) -> None:
    logger = logging.getLogger("tosica")
    libraries = [logging.getLogger(name) for name in ("lightning.pytorch", "scvi")]

    def state() -> Any:
        return (
            list(logger.handlers),
            [library.level for library in libraries],
            warnings.showwarning,
            list(warnings.filters),
        )

    before = state()
    assert run("info", query).code == 0
    assert state() == before


# --------------------------------------------------------------------------- errors and messages


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
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero; this was not expected: "),
        (KeyError("column"), "KeyError: column; this was not expected: --debug shows where."),
        (ValueError("line 1\nline 2"), "line 1 line 2"),
        (OSError(28, "No space left", "a.h5ad"), "No space left: 'a.h5ad'"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (KeyboardInterrupt(), "stopped."),
    ],
)
def test_errors_are_one_line(error: BaseException, line: str, evaluated: Any) -> None:
    result = evaluated(raising(error))
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"tosica: error: {line}")
    assert result.err.count("\n") == 1


def test_debug_shows_the_traceback(evaluated: Any) -> None:
    result = evaluated(raising(ZeroDivisionError("division by zero")), "--debug")
    assert "Traceback (most recent call last)" in result.err
    assert result.err.splitlines()[-1].startswith("tosica: error: ZeroDivisionError")


def test_a_reader_that_went_is_no_error(evaluated: Any) -> None:
    assert evaluated(raising(BrokenPipeError(32, "Broken pipe"))) == (1, "", "")


@pytest.mark.parametrize(
    ("sentence", "line"),
    [
        ("pass overwrite=True to replace it.", "pass --overwrite to replace it."),
        ("X is in adata.raw (use_raw=True).", "X is in adata.raw (--use-raw)."),
        ("layer='counts' was given.", "--layer 'counts' was given."),
        ("pass accelerator='cpu' or 'auto'.", "pass --device 'cpu' or 'auto'."),
        ("run model.annotate(adata, key_added='k') first.", "run tosica annotate first."),
    ],
)
def test_arguments_of_python_are_options(sentence: str, line: str) -> None:
    assert _as_options(sentence, cli.commands.commands["annotate"]) == line


def test_only_warnings_of_tosica_are_shown(evaluated: Any) -> None:
    evaluate = tosica.tl.evaluate

    def warned(*arguments: Any, **options: Any) -> Any:
        print("of a library")
        warnings.warn("of a library", FutureWarning, stacklevel=1)
        logger.warning("of tosica,\nin two lines")
        # Of a module of tosica, each once.
        for _ in range(2):
            exec("import warnings\nwarnings.warn('for users')", {"__name__": "tosica.data._x"})
        adata = arguments[0]
        adata.obs["tosica_prediction"] = adata.obs["kind"].to_numpy()
        adata.obs["tosica_probability"] = 1.0
        return evaluate(*arguments, **options)

    result = evaluated(warned)
    assert result.out.startswith("Evaluation of")
    assert result.err == ("tosica: warning: of tosica, in two lines\ntosica: warning: for users\n")
    assert evaluated(warned, "--quiet").err == ""


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
    given = dict.fromkeys(("quiet", "verbose", "debug", "as_json"), False) | options
    with Session(**given) as session, session.busy("reading …"):
        logger.info("a step")
    assert stream.getvalue().count("a step") == lines


@pytest.mark.parametrize("ctrl_c", [signal.SIG_IGN, signal.default_int_handler])
def test_sigterm_ends_a_command_with_1(ctrl_c: Any, evaluated: Any) -> None:
    """Shells start jobs in the background with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, ctrl_c)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        result = evaluated(lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
        assert result == (1, "", "tosica: error: stopped.\n")
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGINT, before)
