"""How fast are files of up to millions of cells trained on and annotated, with how much memory?

Synthetic counts, 3 000 genes and a model with all defaults. Each measurement is a process of its
own. Of large files, a share is annotated in memory. ``--whole`` names a file that is annotated as a whole,
once without and once with kills, and trained on for an epoch.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import _scale_runs
from benchmarks._results import (
    make_parser,
    quiet,
    table,
    version_lines,
    versions,
    write,
)
from tosica._text import format_thousands

ANNOTATE = ("memory", "h5ad", "zarr", "dask1", "dask2")
TRAIN = ("memory", "h5ad", "zarr")
NAMES = {
    "memory": "memory",
    "h5ad": "`.h5ad`",
    "zarr": "Zarr",
    "dask1": "Zarr, 1 Dask worker",
    "dask2": "Zarr, 2 Dask workers",
}
# Cells that are annotated, and minibatches that are trained on, of files that have more.
_MEASURED = 100_000
_BATCHES = 400
_N_KILLS = 5


def in_process(*arguments: object) -> dict[str, Any]:
    """Measure in a new process."""
    command = [sys.executable, "-m", "benchmarks.scale", "--run", *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{process.stderr}")
    return json.loads(process.stdout.splitlines()[-1])


def measure_rates(folder: Path, sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    """All measurements of cells of each file, by turns."""
    runs = []
    for n_cells in sizes:
        share = max(n_cells // _MEASURED, 1)
        for _ in range(repeats):
            tasks = [("annotate", way, share) for way in ANNOTATE]
            # The labels of a large reference are checked for longer than its training is measured.
            if share == 1:
                tasks += [("train", way, _BATCHES) for way in TRAIN]
            for task, way, number in tasks:
                run = {"task": task, "file": n_cells, "way": way}
                runs.append(run | in_process(task, folder, n_cells, way, number))
    return runs


# --------------------------------------------------------------------------- a whole file


def measure_whole(folder: Path, n_cells: int) -> dict[str, Any]:
    """Annotate a whole file twice, the second time with kills, and train an epoch on it."""
    output = folder / f"annotated_{n_cells}_zarr.zarr"
    uninterrupted = folder / "plain.zarr"
    result: dict[str, Any] = {"file": n_cells}
    result["annotate"] = in_process("annotate", folder, n_cells, "zarr", 1)
    shutil.rmtree(uninterrupted, ignore_errors=True)
    output.rename(uninterrupted)
    seconds = result["annotate"]["seconds"]
    result["kills"] = _annotate_with_kills(folder, n_cells, seconds)
    result["same"] = same_files(output, uninterrupted)
    shutil.rmtree(uninterrupted)
    result["train"] = in_process("train", folder, n_cells, "zarr", 0)
    return result


def _annotate_with_kills(folder: Path, n_cells: int, seconds: float) -> dict[str, Any]:
    """Kill an annotation at random moments, and begin it again each time, until it ends."""
    script = (
        "import sys, tosica\n"
        "from benchmarks._results import quiet\n"
        "quiet()\n"
        "query, model, output = sys.argv[1:]\n"
        "tosica.tl.annotate_file(query, model, output, include_x=False)\n"
    )
    output = folder / f"annotated_{n_cells}_zarr.zarr"
    arguments = [folder / f"{n_cells}.zarr", folder / "model", output]
    command = [sys.executable, "-c", script, *map(str, arguments)]
    rng = random.Random(0)
    moments = []
    start_time = time.perf_counter()
    for _ in range(_N_KILLS):
        # Finished work shortens the next call, so that most moments are in its midst.
        moment = rng.uniform(0.02, 2 / _N_KILLS) * seconds
        process = subprocess.Popen(command)
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            moments.append(moment)
            continue
        break
    if not output.exists():
        subprocess.run(command, check=True)
    return {"moments": moments, "seconds": time.perf_counter() - start_time}


def same_files(folder: Path, reference: Path) -> bool:
    """Whether two folders have the same files with the same bytes."""
    names = _file_names(folder)
    if names != _file_names(reference):
        return False
    return all(
        (folder / name).read_bytes() == (reference / name).read_bytes()
        for name in names
    )


def _file_names(folder: Path) -> set[str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix() for path in paths}


# --------------------------------------------------------------------------- the page


def rates(runs: list[dict[str, Any]]) -> pd.DataFrame:
    """Cells per second and peak memory, the median over repeats."""
    frame = pd.DataFrame(runs)
    seconds = frame["seconds"]
    if "network" in frame:
        seconds = frame["network"].fillna(seconds)
    frame["rate"] = frame["cells"] / seconds
    columns = ["rate", "peak_mb"]
    return frame.groupby(["task", "file", "way"], sort=False)[columns].median()


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    measured = rates(result["runs"])
    files = list(dict.fromkeys(run["file"] for run in result["runs"]))
    lines = [
        "# Large data",
        "",
        f"`python -m benchmarks.scale` on {result['processors']} processors, with made-up counts of 3 000 genes",
        f"and 13 labels. Each measurement is a process of its own, the median of {result['repeats']}. Of files",
        f"with more cells, some {format_thousands(result['measured'])} are annotated in memory and",
        f"{result['batches']} minibatches of 64 cells are trained on. Memory is that of one process; with Dask, of",
        "the largest worker, of one thread.",
        *([result["note"]] if result.get("note") else []),
        "",
    ]
    for task, ways in (("annotate", ANNOTATE), ("train", TRAIN)):
        lines += [_TITLES[task], ""]
        rows = []
        # Small files say little of large ones.
        for n_cells, way in product(files[-2:], ways):
            if (task, n_cells, way) in measured.index:
                rate, peak = measured.loc[(task, n_cells, way)]
                row = [format_thousands(n_cells), NAMES[way], float(rate), float(peak)]
                rows.append(row)
        head = ["cells in the file", "read", "cells per second", "peak memory, MB"]
        lines += [*table(head, rows), ""]
    if result.get("whole"):
        lines += [*_complete_file(result["whole"]), ""]
    disk = result["disk_bytes"]
    lines += [
        f"A part of the output takes {disk['parts']:.0f} bytes a cell (attention to 300 gene sets), the output",
        "without `X`",
        f"{disk['output']:.0f}.",
        "",
        *version_lines(result),
    ]
    return "\n".join(lines)


_TITLES = {"annotate": "## Annotation", "train": "## Training"}


def _complete_file(measured: dict[str, Any]) -> list[str]:
    """Lines on a file that was annotated and trained on as a whole."""
    n_trained = format_thousands(measured["train"]["cells"])
    titles = {
        "annotate": "annotate, from Zarr to Zarr",
        "train": f"train, an epoch of {n_trained} of the cells, from Zarr",
    }
    rows = []
    for task, title in titles.items():
        run = measured[task]
        rate = run["cells"] / run.get("network", run["seconds"])
        rows.append([title, run["seconds"] / 60, rate, run["peak_mb"]])
    head = ["work", "minutes, everything", "cells per second", "peak memory, MB"]
    same = "the same bytes" if measured["same"] else "OTHER BYTES"
    return [
        f"## A whole file: {format_thousands(measured['file'])} cells",
        "",
        *table(head, rows),
        "",
        "Cells per second of the training are those of the network. A second annotation was killed by SIGKILL",
        f"{len(measured['kills']['moments'])} times and begun again: its output has {same}.",
    ]


def disk_bytes(folder: Path, n_cells: int) -> dict[str, float]:
    """Bytes a cell of the parts and of the output without X."""
    output = folder / f"annotated_{n_cells}_zarr.zarr"
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    # Parts are not compressed: attention in single precision, and four more numbers.
    return {"parts": 300 * 4 + 4 * 8.0, "output": size / n_cells}


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = make_parser(__doc__, has_data=False)
    parser.add_argument("--run", nargs=5, help="used by itself")
    default = [10_000, 100_000, 1_000_000, 3_000_000]
    parser.add_argument(
        "--cells", nargs="+", type=int, default=default, help="sizes of files"
    )
    parser.add_argument(
        "--whole", type=int, help="size of a file that is measured as a whole"
    )
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--note", help="a sentence for the page")
    parser.add_argument(
        "--folder", type=Path, default=Path("scale_benchmark"), help="for files"
    )
    options = parser.parse_args(arguments)
    quiet()
    if options.run:
        print(json.dumps(_scale_runs.run(*options.run)))
        return
    folder = options.folder.resolve()
    folder.mkdir(exist_ok=True)
    _scale_runs.prepare(folder, options.cells)
    result = {
        "runs": measure_rates(folder, options.cells, options.repeats),
        "processors": len(os.sched_getaffinity(0)),
        "repeats": options.repeats,
        "measured": _MEASURED,
        "batches": _BATCHES,
        "disk_bytes": disk_bytes(folder, options.cells[0]),
        "note": options.note,
    }
    if options.whole:
        result["whole"] = measure_whole(folder, options.whole)
    result["versions"] = versions("zarr", "dask", "distributed")
    write(options.out, "scale", result, report(result))


if __name__ == "__main__":
    main()
