"""What all commands have in common."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import click
import pytest
import scvi
import torch
import yaml

from tosica import cli

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
    words = python(
        "-m", "tosica.cli", _TOSICA_COMPLETE="bash_complete", COMP_WORDS="tosica an", COMP_CWORD="1"
    )
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
            scvi.settings.progress_bar_style,
            warnings.showwarning,
            list(warnings.filters),
        )

    before = state()
    assert run("info", query).code == 0
    assert state() == before
