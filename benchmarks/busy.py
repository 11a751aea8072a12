"""What do training and annotation cost beside other busy processes, with one thread and with all?

Threads that spin while they wait for one another take processor time from whatever else runs. Each
measurement is a process of its own. By turns, it has one thread (``OMP_NUM_THREADS=1``) or as many
as there are processors, first alone and then beside processes that never rest.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from benchmarks._report import table, version_lines, versions, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tosica import TOSICA

THREADS = ("one", "all")
_FOREVER = "while True: sum(range(100_000))"


def prepare(folder: Path, n_cells: int) -> None:
    """Write a reference, a query, and a model that is trained on the reference."""
    import scanpy as sc
    import scvi

    import tosica

    cells = sc.datasets.pbmc68k_reduced().raw.to_adata()
    cells.obs_names_make_unique()
    reference = cells[: len(cells) // 2].copy()
    # The same cells again and again: only the time matters.
    rows = [i % cells.n_obs for i in range(n_cells)]
    query = cells[rows].copy()
    query.obs_names = [str(i) for i in range(n_cells)]
    tosica.pp.build_mask(reference)
    reference.write_h5ad(folder / "reference.h5ad")
    query.write_h5ad(folder / "query.h5ad")
    scvi.settings.seed = 0
    model = untrained(folder)
    model.train(max_epochs=1, enable_progress_bar=False)
    model.save(folder / "model")


def untrained(folder: Path) -> TOSICA:
    """A model of the reference."""
    import anndata as ad

    import tosica

    reference = ad.read_h5ad(folder / "reference.h5ad")
    tosica.TOSICA.setup_anndata(reference, labels_key="bulk_labels")
    return tosica.TOSICA(reference)


def measure(task: str, folder: Path) -> dict[str, float]:
    """Seconds of processor time and of waiting for one task."""
    import anndata as ad
    import scvi

    import tosica

    scvi.settings.seed = 0
    if task == "train":
        model = untrained(folder)
        train = {"max_epochs": 8, "accelerator": "cpu", "enable_progress_bar": False}
        return timed(lambda: model.train(**train))
    query = ad.read_h5ad(folder / "query.h5ad")
    model = tosica.TOSICA.load(folder / "model", accelerator="cpu")
    if task == "annotate":
        model.annotate(query[:64].copy())  # compiled code is loaded at the first call
        return timed(lambda: model.annotate(query))
    few = query[:200].copy()
    model.annotate(few)
    return timed(lambda: tosica.tl.attribute(few, model))


TASKS = {
    "train": "`train`, 350 cells × 765 genes",
    "annotate": "`annotate`",
    "attribute": "`tl.attribute`, 200 cells",
}


def timed(call: Any) -> dict[str, float]:
    """Processor time and time of a call, in seconds."""
    processor, wall = time.process_time(), time.perf_counter()
    call()
    return {
        "processor": time.process_time() - processor,
        "wall": time.perf_counter() - wall,
    }


def in_process(task: str, folder: Path, threads: str) -> dict[str, float]:
    """Measure in a new process."""
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS",)}
    if threads == "one":
        environment["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "benchmarks.busy", "--measure", task, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Keep processors busy."""
    others = [subprocess.Popen([sys.executable, "-c", _FOREVER]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def report(result: dict[str, Any]) -> str:
    """The page."""
    runs = pd.DataFrame(result["runs"])
    rows = []
    for (n_busy, task), of_task in runs.groupby(["busy", "task"], sort=False):
        median = of_task.groupby("threads")[["processor", "wall"]].median()
        ratio = median.loc["all"] / median.loc["one"]
        times = [
            float(median.loc[threads, what])
            for what in ("processor", "wall")
            for threads in THREADS
        ]
        rows.append(
            [
                n_busy,
                TASKS[task],
                *times[:2],
                float(ratio["processor"]),
                *times[2:],
                float(ratio["wall"]),
            ]
        )
    head = ["busy processes", "task"]
    for what in ("processor time", "time"):
        head += [f"{what}, one thread", f"{what}, all threads", "ratio"]
    lines = [
        "# Beside other busy processes",
        "",
        f"Written by `python -m benchmarks.busy` on {result['processors']} processors. Times are "
        "in seconds, the median of",
        f"{result['repeats']} runs, each in a process of its own. Runs with one thread "
        "(`OMP_NUM_THREADS=1`) and with one thread a",
        "processor take turns. A busy process never rests. `annotate` has "
        f"{result['cells']} cells and 765 genes.",
        *([result["note"]] if result.get("note") else []),
        "",
        *table(head, rows),
        "",
        "Weights and labels do not depend on the number of threads; "
        "`tests/model/test_model_threads.py` checks it bit by bit.",
        "",
        *version_lines(result),
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--measure", nargs=2, metavar=("TASK", "FOLDER"), help="used by itself")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 3], help="busy processes")
    parser.add_argument("--cells", type=int, default=2_000, help="cells that are annotated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--note", help="a sentence for the page")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if given.measure:
        print(json.dumps(measure(given.measure[0], Path(given.measure[1]))))
        return
    runs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, given.cells)
        for n_busy in given.busy:
            with busy_processes(n_busy):
                for task in given.tasks:
                    for _ in range(given.repeats):
                        for threads in THREADS:
                            which = {"busy": n_busy, "task": task, "threads": threads}
                            runs.append({**which, **in_process(task, folder, threads)})
    result = {
        "runs": runs,
        "processors": len(os.sched_getaffinity(0)),
        "repeats": given.repeats,
        "cells": given.cells,
        "note": given.note,
        "versions": versions("numba"),
    }
    write(given.out, "busy", result, report(result))


if __name__ == "__main__":
    main()
