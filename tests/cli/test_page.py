"""What the page on the command line shows: its commands, the rule and the process."""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from functools import partial
from importlib.metadata import version
from pathlib import Path

import anndata as ad
import pytest
import yaml

from tosica import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "command_line.md").read_text(
    "utf-8"
)


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def call(tmp_path):
    """Start a process that finds ``tosica`` on its PATH."""
    command = tmp_path / "bin" / "tosica"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tosica.cli "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    }
    return partial(
        subprocess.run,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_options_of_the_page_exist():
    rows = re.findall(r"^\| (`--.*?) \| (.*?) \| .* \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) > 15
    for options, commands in rows:
        named = re.findall("`([a-z-]+)`", commands)
        for option in re.findall("(--[a-z-]+)", options):
            having = {
                name
                for name, command in cli.commands.commands.items()
                if any(option in parameter.opts for parameter in command.params)
            }
            assert set(named) <= having
            assert commands != "all" or having == set(cli.commands.commands)


def test_commands_of_the_table_are_all():
    rows = re.findall(r"^\| `tosica ([a-z-]+)", PAGE, flags=re.MULTILINE)
    assert sorted(rows) == sorted([*cli.commands.commands, "--versions"])


@pytest.mark.slow
@pytest.mark.weekly
def test_rule_is_run_by_snakemake(tmp_path, query, toy_model, call):
    pytest.importorskip("snakemake", reason="snakemake is in the dependency group test")
    [rule] = [block for block in blocks("python") if block.startswith("rule ")]
    (tmp_path / "Snakefile").write_text(rule)
    (tmp_path / "queries").mkdir()
    query.rename(tmp_path / "queries" / "patient1.h5ad")
    toy_model.save(tmp_path / "pbmc_model")
    [line] = [
        line
        for block in blocks("bash")
        for line in block.splitlines()
        if "snakem" in line
    ]
    words = [sys.executable, "-m", *shlex.split(line)]
    # The reference's folder is no model yet: the log has the line, and no output is left.
    (tmp_path / "pbmc_model" / "model.pt").rename(tmp_path / "kept.pt")
    assert call(words).returncode != 0
    log = (tmp_path / "logs" / "annotate_patient1.log").read_text()
    assert log.startswith("tosica: error: ")
    assert log.count("\n") == 1
    assert not list(tmp_path.glob("annotated/*"))

    (tmp_path / "kept.pt").rename(tmp_path / "pbmc_model" / "model.pt")
    done = call(words)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "annotated"
    assert {path.suffix for path in folder.glob("patient1.*")} == {
        ".h5ad",
        ".csv",
        ".json",
        ".html",
    }
    assert "tosica_prediction" in ad.read_h5ad(folder / "patient1.h5ad").obs
    summary = json.loads((folder / "patient1.json").read_text())
    assert summary["model"] == toy_model.fingerprint


@pytest.mark.slow
def test_script_of_the_process_runs(tmp_path, query, toy_model, call):
    """As Nextflow would run it: indentation and escapes are removed, and values put in."""
    toy_model.save(tmp_path / "pbmc_model")
    [process] = blocks("groovy")
    script = textwrap.dedent(re.findall('"""\n(.*?)"""', process, flags=re.DOTALL)[0])
    values = {
        "query": query.name,
        "model": "pbmc_model",
        "prefix": "patient1_annotated",
        "args": "--cutoff 0.5",
        "task.cpus": "1",
        "task.process": "TOSICA_ANNOTATE",
    }
    variables = set(re.findall(r"(?<!\\)\$\{?([a-z][a-z.]*)", script))
    assert variables == set(values)
    for name, value in values.items():
        script = re.sub(rf"(?<!\\)\$(\{{{name}\}}|{name}\b)", value, script)
    script = script.replace("\\$", "$").replace("\\\\", "\\")
    done = call(["bash", "-euo", "pipefail", "-c", script])
    assert done.returncode == 0, done.stderr
    outputs = set(re.findall(r'path\(?\s*"([^"]+)"', process))
    assert outputs == {
        "${prefix}.h5ad",
        "${prefix}.csv",
        "${prefix}.json",
        "versions.yml",
    }
    for name in outputs:
        assert (tmp_path / name.replace("${prefix}", values["prefix"])).stat().st_size
    summary = json.loads((tmp_path / "patient1_annotated.json").read_text())
    assert summary["n_cells"] == 60
    versions = yaml.safe_load((tmp_path / "versions.yml").read_text())
    assert versions["TOSICA_ANNOTATE"]["tosica"] == version("tosica")
