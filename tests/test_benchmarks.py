"""The benchmarks: each page is what was measured, and each script runs on a little data."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from functools import partialmethod
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from anndata import AnnData
from scipy.sparse import csr_matrix

import tosica

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
PAGES = ROOT / "docs" / "benchmarks"
SCRIPTS = sorted(p.stem for p in BENCHMARKS.glob("[!_]*.py"))
# Their commands make these quiet.
LOGGERS = ("lightning.pytorch", "tosica", "celltypist", "scvi")
pytestmark = pytest.mark.skipif(
    not BENCHMARKS.is_dir(), reason="not part of an installed package"
)


@pytest.fixture
def load(monkeypatch):
    """Import a module of ``benchmarks`` by its name, and forget it afterwards."""
    monkeypatch.syspath_prepend(ROOT)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    yield lambda name: importlib.import_module(f"benchmarks.{name}")
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_command_says_what_it_measures(name, load, capsys):
    with pytest.raises(SystemExit) as ended:
        load(name).main(["--help"])
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out


def test_pages_are_what_was_measured(load):
    written = load("_report")
    assert {path.stem for path in PAGES.glob("*.md")} == {*written.PAGES, "index"}
    assert {path.stem for path in PAGES.glob("*.json")} == {
        x for _, shown in written.PAGES.values() for x in shown
    }
    for name in written.PAGES:
        assert (PAGES / f"{name}.md").read_text() == written.page(name, PAGES), name


def cells():
    """Three types, each with ten genes of its own, two of one process and two of the other."""
    rng = np.random.default_rng(0)
    sets = tosica.gs.load("human_gobp")
    processes = ("glycolytic process", "T cell receptor signaling pathway")
    genes = list(
        dict.fromkeys(gene for name in processes for gene in sorted(sets[name])[:30])
    )
    kind = np.arange(120) % 3
    rate = np.full((len(kind), len(genes)), 0.5)
    for i in range(3):
        rate[np.ix_(kind == i, np.arange(i, 30, 3))] = 5
    adata = AnnData(csr_matrix(rng.poisson(rate).astype(np.float32)))
    adata.var_names = genes
    adata.obs["kind"] = np.array(list("abc"))[kind]
    return adata


# Arguments of a short run of each script, and what is made smaller for it.
RUNS = {
    "accuracy": (
        ["{data}", "--tasks", "pbmc68k", "--methods", "tosica", "svm", "--seeds=1"],
        {},
    ),
    "explanation": (["{data}", "--seeds=2"], {"DATASETS": "made"}),
    "adapt": (
        ["{data}", "--pairs", "kang back", "sext", "--left-out", "--seeds=1"],
        {},
    ),
    "parts": (["{data}", "--tasks", "kang", "--seeds=1"], {}),
    "missing_genes": (
        ["{data}", "--pairs", "pbmc68k", "--draws=1", "--epochs=2"],
        {"SHARES": (0.3,)},
    ),
}


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RUNS)
def test_a_short_run(name, load, shared, tmp_path, monkeypatch, capsys):
    script = load(name)
    arguments, smaller = RUNS[name]
    if smaller.pop("DATASETS", None):
        made = load("_accuracy_tasks").prepared(cells(), "kind")
        monkeypatch.setattr(script, "DATASETS", {"made": ("made", lambda _: made)})
        monkeypatch.setattr(script, "OF_PART", dict.fromkeys(script.OF_PART, ("made",)))
    for attribute, value in smaller.items():
        monkeypatch.setattr(script, attribute, value)
    train = partialmethod(tosica.TOSICA.train, max_epochs=2)
    if name != "missing_genes":
        monkeypatch.setattr(tosica.TOSICA, "train", train)
    given = [argument.format(data=shared) for argument in arguments]
    script.main([*given, "--out", str(tmp_path / "out")])
    result = json.loads((tmp_path / "out" / f"{name}.json").read_text())
    (page,) = (tmp_path / "out").glob("*.md")
    assert page.read_text() == load("_report").page(page.stem, tmp_path / "out")
    assert result.get("runs", True)
    assert "|" in capsys.readouterr().out


def test_simulated_types_raise_their_own_gene_sets(load):
    synthetic = load("_synthetic").synthetic
    adata = synthetic(4000, seed=3)
    assert (adata.X != synthetic(4000, seed=3).X).nnz == 0
    cells = sc.pp.normalize_total(adata, target_sum=1e4, copy=True)
    gene_sets, labels = tosica.gs.load("human_gobp"), cells.obs["cell_type"]
    frequent = labels.value_counts().index[:5]
    for label in frequent:
        for name in adata.uns["synthetic"]["gene_sets"][label]:
            summed = cells[:, cells.var_names.isin(gene_sets[name])].X.sum(axis=1).A1
            assert (
                pd.Series(summed).groupby(labels.to_numpy()).mean()[frequent].idxmax()
                == label
            ), name


@pytest.mark.slow
def test_rates_are_measured_on_a_processor_if_asked(load, capsys):
    load("gpu").main(["--accelerator", "cpu", "--cells", "300", "--side", "64"])
    assert capsys.readouterr().out.count("cells/s") == 4
