"""Measure time and memory of the linear part of a training, by the number of labels.

``python -m benchmarks.many_labels`` from the repository's root writes
``docs/benchmarks/many_labels.md`` and ``many_labels.json``. The linear part is all of
:meth:`tosica.TOSICA.train` that is not the network. Its stages are called one after the other, with
the tokens that a model with defaults chooses. Each number of labels has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scvi
from scipy.sparse import csr_matrix

import tosica
from benchmarks._report import table, version_lines, versions, write
from tosica import linear
from tosica._threads import thread_pool
from tosica.data import CellMatrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData

N_LABELS = (20, 50, 100, 200)
_GENE_SETS_OF_LABEL = 3
STAGES = {
    "tokens": "tokens are chosen",
    "label check": "label check",
    "batch directions": "batch directions",
    "cross-validation": "cross-validation",
    "fit": "fit of the regressions",
    "refit": "refit",
    "missing genes": "imputation of missing genes",
    "novelty": "statistics of novelty",
}


def reference(n_cells: int, n_genes: int, n_labels: int) -> AnnData:
    """Cells in ten batches, with a mask."""
    adata = tosica.datasets.synthetic(
        n_cells,
        n_genes,
        n_labels=n_labels,
        n_batches=10,
        n_gene_sets=max(300, _GENE_SETS_OF_LABEL * n_labels),
    )
    tosica.pp.build_mask(adata)
    tosica.TOSICA.setup_anndata(adata, labels_key="cell_type", batch_key="batch")
    return adata


def measure(adata: AnnData) -> list[dict[str, Any]]:
    """Seconds and peak memory of each stage."""
    runs = []

    def stage(name: str, work: Callable[[], Any]) -> Any:
        _peak_mb(reset=True)
        start = time.perf_counter()
        with thread_pool():
            found = work()
        seconds = time.perf_counter() - start
        runs.append({"stage": name, "seconds": seconds, "megabytes": _peak_mb()})
        return found

    scvi.settings.seed = 0
    model = stage("tokens", lambda: tosica.TOSICA(adata))
    modality, tokens, cells = model.module.slices[0], _tokens(model), np.arange(adata.n_obs)
    rows = CellMatrix(adata)
    labels, batches = (
        adata.obs[key].cat.codes.to_numpy(dtype=np.int64) for key in ("cell_type", "batch")
    )
    n_labels = labels.max() + 1

    def fit() -> linear.LinearClassifier:
        return linear.fit_linear_classifier(
            rows, cells, labels, n_labels, modality, tokens, batch_directions=directions, **chosen
        )

    def novelty() -> linear.NoveltyStatistics | None:
        some = linear.subsample_by_label(labels, linear.MAX_CELLS_NOVELTY)
        return linear.fit_novelty(linear.read_normalized(rows, some, modality), labels[some])

    stage("label check", lambda: linear.find_label_errors(rows, cells, labels, modality))
    directions = stage(
        "batch directions",
        lambda: linear.find_batch_directions(rows, cells, labels, batches, modality),
    )
    chosen = stage(
        "cross-validation",
        lambda: linear.cross_validate(rows, cells, labels, modality, tokens, directions),
    )._asdict()
    stage("fit", fit)
    stage("refit", fit)
    stage("missing genes", lambda: linear.fit_ppca(rows, cells, labels, modality))
    stage("novelty", novelty)
    return runs


def _tokens(model: tosica.TOSICA) -> csr_matrix:
    """Which gene is in which token, ``(n_tokens, n_genes)``."""
    pairs = model.get_linear_weights().index
    token, names = pd.factorize(pairs.get_level_values("gene_set"))
    genes = model.adata.var_names
    gene = genes.get_indexer(pairs.get_level_values("gene"))
    return csr_matrix((np.ones(len(token)), (token, gene)), shape=(len(names), len(genes)))


def _peak_mb(*, reset: bool = False) -> float:
    """Largest memory of this process, the data included, since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def report(result: dict[str, Any]) -> str:
    """The page."""
    runs = pd.DataFrame(result["runs"])
    there = list(dict.fromkeys(runs["labels"]))
    lines = [
        "# The linear part of a training with many labels",
        "",
        "Written by `python -m benchmarks.many_labels`. The linear part is all of "
        "{meth}`~tosica.TOSICA.train` that is not the network,",
        f"with {result['threads']} threads. References are synthetic: {result['cells']:,} cells of "
        f"{result['genes']:,} genes in ten batches. With 200 labels, the rarest",
        "ones have two cells each.",
        "",
    ]
    seconds = runs.pivot_table(index="stage", columns="labels", values="seconds")
    peaks = runs.pivot_table(index="stage", columns="labels", values="megabytes")
    rows = [[name, *(float(seconds.loc[key, n]) for n in there)] for key, name in STAGES.items()]
    rows += [["**sum**", *(float(seconds[n].sum()) for n in there)]]
    head = ["", *(f"{n} labels" for n in there)]
    lines += ["## Seconds", "", *table(head, rows), ""]
    rows = [
        [name, *(float(peaks.loc[key, n]) / 1024 for n in there)] for key, name in STAGES.items()
    ]
    lines += [
        "## Peak memory",
        "",
        "In gigabytes, of the whole process with the reference.",
        "",
        *table(head, rows),
        "",
    ]
    return "\n".join(lines + version_lines(result))


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the tables after every number of labels."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--labels", nargs="+", type=int, default=N_LABELS)
    parser.add_argument("--cells", type=int, default=40_000)
    parser.add_argument("--genes", type=int, default=3_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    logging.getLogger("tosica").setLevel(logging.ERROR)
    if given.one:
        warnings.filterwarnings("ignore", message=".*single cell")
        print(json.dumps(measure(reference(given.cells, given.genes, *given.labels))))
        return
    result: dict[str, Any] = {
        "versions": versions("scikit-learn"),
        "cells": given.cells,
        "genes": given.genes,
        "threads": given.threads,
        "runs": [],
    }
    sizes = ["--cells", str(given.cells), "--genes", str(given.genes), "--one"]
    for n_labels in given.labels:
        call = [sys.executable, "-m", "benchmarks.many_labels", "--labels", str(n_labels), *sizes]
        # torch has as many threads as OpenMP.
        environment = os.environ | {"OMP_NUM_THREADS": str(given.threads)}
        done = subprocess.run(call, check=True, stdout=subprocess.PIPE, env=environment)
        found = json.loads(done.stdout.splitlines()[-1])
        result["runs"] += [{"labels": n_labels, **run} for run in found]
        write(given.out, "many_labels", result, report(result))


if __name__ == "__main__":
    main()
