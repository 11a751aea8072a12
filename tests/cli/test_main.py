"""What all commands have in common."""

import logging
import os
import signal
import subprocess
import sys
import warnings
from importlib.metadata import version

import click
import pytest
import torch
import yaml

import tosica
from tosica import cli
from tosica._settings import logger, warn_user
from tosica._text import call, parameter

COMMANDS = [
    "train",
    "annotate",
    "novelty",
    "evaluate",
    "report",
    "gene-sets",
    "info",
    "demo",
]
HEAVY = ("torch", "scanpy", "anndata", "pandas", "numpy", "scvi", "lightning")


def test_what_is_asked_first_imports_nothing_heavy():
    code = (
        "import sys; from tosica.cli import main; "
        "codes = [main(words.split()) for words in ('--help', '--version', '--versions', 'annotate --help')]; "
        f"print(codes, sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0] []", done.stderr


def test_every_command_and_option_says_what_it_is(run):
    result = run("--help")
    assert result.code == 0
    assert set(cli.commands.commands) == set(COMMANDS)
    for name in COMMANDS:
        assert f"\n  {name} " in result.out
        text = run(name, "--help").out
        assert all(
            option in text for option in ("--json", "--quiet", "--verbose", "--debug")
        )
        options = [
            parameter
            for parameter in cli.commands.commands[name].params
            if isinstance(parameter, click.Option)
        ]
        assert {parameter.name for parameter in options if not parameter.help} <= {
            "batch_size",
            "precision",
        }


def test_versions_are_yaml_of_strings(run):
    assert run("--version") == (0, f"tosica {version('tosica')}\n", "")
    versions = yaml.safe_load(run("--versions").out)
    assert next(iter(versions)) == "tosica"
    assert versions["tosica"] == version("tosica")
    assert {"python", "torch", "anndata", "scvi-tools"} <= set(versions)
    assert all(isinstance(value, str) for value in versions.values())


@pytest.mark.parametrize(
    "words",
    [
        "nothing",
        "annotate",
        "annotate query.h5ad --model m -o out.txt",
        "annotate query.h5ad --model m --obs-out out.h5ad",
        *(
            f"annotate q.h5ad --model m -o o.h5ad {wrong}"
            for wrong in (
                "--layer a --use-raw",
                "--over-clustering a",
                "--device tpu",
                "--device cpu:1",
                "--cutoff 2",
                "--organism mouse",
                "--census-version 2025-11-08",
            )
        ),
        "annotate q.h5ad --model m -o o.h5ad --threads 0",
        "annotate q.h5ad --model m -o o.h5ad --adapted-model without_adapt",
        "train r.h5ad --labels-key k -o m --layer a --use-raw",
        "train r.h5ad --labels-key k -o m --census-version 2025-11-08",
        "gene-sets --for r.h5ad",
        "report a.h5ad -o page.pdf",
        f"demo --out {__file__}",
    ],
)
def test_wrong_usage_exits_with_2(words, run):
    result = run(*words.split())
    assert (result.code, result.out) == (2, "")
    if words == "nothing":
        words = ""
    assert result.err.startswith("tosica: error: ")
    assert f"Try 'tosica {words.partition(' ')[0]}".rstrip() in result.err
    assert result.err.count("\n") == 2


@pytest.mark.parametrize(
    ("option", "text", "meant"),
    [
        ("--device", "cuda:1", ("gpu", 1)),
        ("--device", "gpu", ("gpu", "auto")),
        ("--device", "mps", ("mps", "auto")),
        ("--device", "auto", ("auto", "auto")),
        ("--cutoff", "auto", "auto"),
        ("--cutoff", "0.25", 0.25),
    ],
)
def test_values_that_click_does_not_know(option, text, meant):
    context = cli.commands.commands["annotate"].make_context(
        "annotate", ["q", "--model", "m", option, text]
    )
    assert context.params[option.removeprefix("--")] == meant


def test_threads_are_set_before_torch_is_imported(run, query):
    n_threads = torch.get_num_threads()
    try:
        # A model that is missing ends the command early.
        run(
            "annotate",
            query,
            "--model",
            "none",
            "-o",
            query.with_name("o.h5ad"),
            "--threads",
            3,
        )
        assert torch.get_num_threads() == 3
        assert os.environ["OMP_NUM_THREADS"] == os.environ["NUMBA_NUM_THREADS"] == "3"
    finally:
        torch.set_num_threads(n_threads)


# --------------------------------------------------------------------------- errors and messages


@pytest.fixture
def evaluated(monkeypatch, run, query):
    """Run ``tosica evaluate``, in which Python's function does something else."""

    def call(function, *options):
        monkeypatch.setattr(tosica.tl, "evaluate", function)
        return run("evaluate", query, "--labels-key", "kind", *options)

    return call


def raising(error):
    def function(*_, **__):
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            ZeroDivisionError("by zero"),
            "ZeroDivisionError: by zero; this was not expected: ",
        ),
        (
            KeyError("column"),
            "KeyError: column; this was not expected: --debug shows where.",
        ),
        (ValueError("line 1\nline 2"), "line 1 line 2"),
        (OSError(28, "No space left", "a.h5ad"), "No space left: 'a.h5ad'"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (KeyboardInterrupt(), "stopped."),
    ],
)
def test_errors_are_one_line(error, line, evaluated):
    result = evaluated(raising(error))
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"tosica: error: {line}")
    assert result.err.count("\n") == 1
    assert ("Traceback" in evaluated(raising(error), "--debug").err) == isinstance(
        error, Exception
    )


def test_a_reader_that_went_is_no_error(evaluated):
    assert evaluated(raising(BrokenPipeError(32, "Broken pipe"))) == (1, "", "")


def test_parameters_of_python_are_options(evaluated, query, run):
    def refuse(*_, **__):
        raise ValueError(
            f"Run {call('model.annotate', 'adata')} with {parameter('overwrite', True)}, "
            f"{parameter('key', 'k')} or {parameter('labels_key')}."
        )

    # Evaluate has no option for overwrite=True.
    line = "Run tosica annotate with overwrite=True, --key 'k' or --labels-key."
    assert evaluated(refuse).err == f"tosica: error: {line}\n"
    with pytest.raises(
        ValueError, match=r"Run model\.annotate\(adata\) with .* key='k'"
    ):
        refuse()


@pytest.mark.parametrize(
    ("options", "letters"),
    [
        ([], "aw"),
        (["--verbose"], "saw"),
        (["--quiet"], ""),
        (["--quiet", "--verbose"], ""),
        (["terminal"], "saw"),
    ],
)
def test_what_is_said(options, letters, evaluated, monkeypatch):
    """Warnings of tosica, each once, and steps for those who look; nothing of libraries."""

    def talk(*_, **__):
        logger.info("a step")
        logger.warning("of tosica,\nin two lines")
        logging.getLogger("scvi").warning("of a library")
        warnings.warn("of a library", FutureWarning, stacklevel=1)
        for _ in range(2):
            warn_user("for users")
        raise ValueError("The end.")

    def state():
        levels = [
            logging.getLogger(name).level
            for name in ("tosica", "lightning.pytorch", "scvi")
        ]
        return (
            levels,
            [h.formatter for h in logger.handlers],
            warnings.showwarning,
            list(warnings.filters),
        )

    state_at_first = state()
    if options == ["terminal"]:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    result = evaluated(talk, *[option for option in options if option != "terminal"])
    lines = {
        "s": "a step",
        "a": "tosica: warning: of tosica, in two lines",
        "w": "tosica: warning: for users",
    }
    # Before the last return of the cursor is the progress of the imports.
    assert result.err.rpartition("\r")[2].splitlines() == [
        *(lines[letter] for letter in letters),
        "tosica: error: The end.",
    ]
    assert state() == state_at_first


@pytest.mark.parametrize("ctrl_c", [signal.SIG_IGN, signal.default_int_handler])
def test_sigterm_ends_a_command_with_1(ctrl_c, evaluated):
    """Shells start jobs in the background with Ctrl-C ignored."""
    earlier_handler = signal.signal(signal.SIGINT, ctrl_c)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        result = evaluated(lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
        assert result == (1, "", "tosica: error: stopped.\n")
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGINT, earlier_handler)
