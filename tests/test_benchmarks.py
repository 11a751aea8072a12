"""The benchmarks: each page is what was measured, and each script runs on a little data."""

import contextlib
import importlib
import io
import json
import logging
import runpy
import subprocess
import sys
from functools import partialmethod
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from anndata import AnnData
from mudata import MuData
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
    report = load("_report")
    assert {path.stem for path in PAGES.glob("*.md")} == {*report.PAGES, "index"}
    results = {name for _, reports in report.PAGES.values() for name in reports}
    assert {path.stem for path in PAGES.glob("*.json")} == results
    for name in report.PAGES:
        assert (PAGES / f"{name}.md").read_text() == report.page(name, PAGES), name


# --------------------------------------------------------------------------- short runs

N_CELLS = 240
LABELS = ["B cells", "CD14+ Monocytes", "CD4 T cells"]


def make_cells():
    """Counts of three types, each with genes of its own from two processes."""
    rng = np.random.default_rng(0)
    sets = tosica.gs.load("human_gobp")
    genes = dict.fromkeys(["MS4A1", "LYZ"])
    for name in ("glycolytic process", "T cell receptor signaling pathway"):
        genes |= dict.fromkeys(sorted(sets[name])[:30])
    codes = np.arange(N_CELLS) % len(LABELS)
    rates = np.full((N_CELLS, len(genes)), 0.5)
    for i in range(len(LABELS)):
        rates[np.ix_(codes == i, np.arange(i, 30, 3))] = 5
    adata = AnnData(csr_matrix(rng.poisson(rates).astype(np.float32)))
    adata.var_names = list(genes)
    adata.obs_names = [f"cell {i}" for i in range(N_CELLS)]
    labels = pd.Categorical.from_codes(codes, LABELS)
    for key in ("cluster_id", "cell_type", "cell_line", "adt_cluster"):
        adata.obs[key] = labels
    is_first = np.arange(N_CELLS) < N_CELLS / 2
    adata.obs["group_id"] = np.where(is_first, "ctrl", "stim")
    adata.obs["protocol"] = np.where(is_first, "sc_celseq2", "sc_dropseq")
    stages = np.array(["MDP", "CDP", "PreDC"])
    adata.obs["stage"] = pd.Categorical(stages[codes], categories=stages)
    return adata


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folder with little files under the names that the scripts read."""
    folder = tmp_path_factory.mktemp("data")
    adata = make_cells()
    for name in ("kang_pbmc", "lungmix_celseq2_dropseq", "dc_progenitors"):
        adata.write_h5ad(folder / f"{name}.h5ad")
    adata.write_h5ad(folder / "sorted_blood.h5ad")
    protein = AnnData(csr_matrix(adata.X[:, :4]), obs=adata.obs[[]])
    protein.var_names = ["CD19", "CD14", "CD3", "CD4"]
    mdata = MuData({"rna": adata, "protein": protein})
    mdata.obs["adt_cluster"] = adata.obs["adt_cluster"]
    mdata.write(folder / "cite_pbmc.h5mu")
    return folder


# Arguments of a short run of each script, and the constants that are made smaller; a name with a dot
# is of another module.
RUNS = {
    "accuracy": (
        ["{data}", "--tasks=kang", "--methods", "tosica", "svm", "--seeds=1"],
        {},
    ),
    "adapt": (["{data}", "--pairs=kang", "--left-out", "--seeds=1"], {}),
    "batches": (
        [
            "{data}",
            "--tasks=kang whole",
            "--methods",
            "tosica",
            "svm",
            "--no-embeddings",
        ],
        {"N_REFERENCE": 120},
    ),
    "cite_seq": (["{data}/cite_pbmc.h5mu", "--splits=1"], {}),
    "confident": (["{data}", "--cases=kang", "--seeds=1"], {}),
    "explanation": (
        ["{data}", "--seeds=2"],
        {"N_PLANTED": 1, "N_PERMUTATIONS": 1, "OF_PART": "kang"},
    ),
    "label_sets": (
        ["{data}", "--tasks=kang", "--seeds=1", "--draws=1"],
        {"N_LABELED": (0, 20)},
    ),
    "levels": (["{data}", "--cases=sorted", "--seeds=1"], {}),
    "missing_genes": (
        ["{data}", "--pairs=control", "--draws=1"],
        {"SHARES": (0.3,)},
    ),
    "new_labels": (
        ["--data={data}", "--seeds=0", "--methods=tosica", "--only=B cells"],
        {"_new_label_methods.SIZES": (30,)},
    ),
    "novelty": (
        ["{data}", "--tasks=kang", "--seeds=2", "--max-epochs=1"],
        {"N_REFERENCES": 1},
    ),
    "ontology": (
        ["{data}", "--sources=kang", "--tasks=kang", "--seeds=1"],
        {"COVERAGES": (0.8,)},
    ),
    "parts": (["{data}", "--tasks=kang", "--seeds=1"], {}),
    "references": (
        ["{data}", "--seeds=1"],
        {
            "STUDIES": {
                name: {label: label for label in LABELS}
                for name in ("kang_pbmc", "sorted_blood", "dc_progenitors")
            }
        },
    ),
    "scale": (
        ["--cells=300", "--folder={out}"],
        {
            "ANNOTATE": ("zarr",),
            "TRAIN": ("memory",),
            "_scale_runs.N_REFERENCE": 300,
            "_scale_runs.N_GENES": 600,
        },
    ),
    "scales": (
        ["{data}", "--names=kang", "--seeds=1", "--epochs=1"],
        {"TARGET": 0.8, "TRANSFORMS": ("counts", "log1p of 1e4", "log1p of 1e6")},
    ),
    "speed": (["{data}", "--cases=kang", "--seeds=1"], {}),
    "trajectory": (["--seeds=1", "--tasks=without CDP"], {}),
}


def run_script(command, **_):
    """What ``subprocess.run`` returns for a Python script, which runs in this process."""
    output = io.StringIO()
    with (
        mock.patch.object(sys, "argv", command[1:]),
        contextlib.redirect_stdout(output),
    ):
        runpy.run_path(command[1], run_name="__main__")
    return subprocess.CompletedProcess(command, 0, output.getvalue(), "")


def test_every_script_has_a_short_run():
    assert {*RUNS, "damage", "gpu"} == set(SCRIPTS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RUNS)
def test_a_short_run(name, load, data, tmp_path, monkeypatch, capsys):
    script = load(name)
    arguments, constants = RUNS[name]
    for path, value in constants.items():
        module_name, _, constant = path.rpartition(".")
        module = load(module_name or name)
        current = getattr(module, constant)
        if constant == "TRANSFORMS":
            value = {key: current[key] for key in value}
        elif constant == "OF_PART":
            value = dict.fromkeys(current, (value,))
        monkeypatch.setattr(module, constant, value)
    if name == "scale":
        measure = load("_scale_runs").run
        monkeypatch.setattr(script, "in_process", lambda *a: measure(*map(str, a)))
    if name == "scales":
        monkeypatch.setitem(script.DATA, "kang", ("Kang", script.kang, N_CELLS // 2))
    if name == "speed":
        monkeypatch.setattr(script.subprocess, "run", run_script)
        monkeypatch.setitem(
            script.CASES, "kang", ("Kang", "kang_pbmc.h5ad", "cluster_id", 120)
        )
    monkeypatch.setenv("TOSICA_DATA", str(data))
    train = partialmethod(tosica.TOSICA.train, max_epochs=2)
    # These choose the length of their trainings, or train a model twice.
    if name not in ("new_labels", "novelty", "scale", "scales"):
        monkeypatch.setattr(tosica.TOSICA, "train", train)
    out = tmp_path / "out"
    script.main(
        [argument.format(data=data, out=tmp_path) for argument in arguments]
        + ["--out", str(out)]
    )
    result = json.loads((out / f"{name}.json").read_text())
    assert result.get("runs", True)
    assert "|" in capsys.readouterr().out
    report = load("_report")
    (page,) = (page for page, (_, results) in report.PAGES.items() if name in results)
    title = script.report(result).splitlines()[0]
    assert f"#{title}\n" in report.page(page, out)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_refused(load, capsys):
    with pytest.raises(SystemExit) as ended:
        load("damage").main(["--mutants=1", "--kills=1"])
    assert ended.value.code == 0
    assert "killed save" in capsys.readouterr().out


def test_simulated_types_raise_their_own_gene_sets(load):
    synthetic = load("_synthetic").synthetic
    adata = synthetic(4000, seed=3)
    assert (adata.X != synthetic(4000, seed=3).X).nnz == 0
    cells = sc.pp.normalize_total(adata, target_sum=1e4, copy=True)
    gene_sets = tosica.gs.load("human_gobp")
    labels = cells.obs["cell_type"]
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
