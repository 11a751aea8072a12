"""How fast are files of up to millions of cells trained on and annotated, with how much memory?

Synthetic counts, 3 000 genes and a model with all defaults. Each measurement is a process of its
own. Of large files, a share is annotated in memory. ``--whole`` names a file that is annotated as a whole,
once without and once with kills, and trained on for an epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import _scale_runs
from benchmarks._results import quiet, table, version_lines, versions, write
from tosica._text import format_thousands

ANNOTATE = ("memory", "h5ad", "zarr", "dask1", "dask2")
TRAIN = ("memory", "h5ad", "zarr")
NAMES = {
    "memory": "in memory",
    "h5ad": "from `.h5ad`",
    "zarr": "from Zarr",
    "dask1": "from Zarr, one Dask worker of one thread",
    "dask2": "from Zarr, two Dask workers of one thread",
}
# Cells that are annotated, and minibatches that are trained on, of files that have more.
_MEASURED, _BATCHES = 100_000, 400
_N_KILLS = 5


def in_process(*arguments: object) -> dict[str, Any]:
    """Measure in a new process."""
    command = [sys.executable, "-m", "benchmarks.scale", "--run", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_rates(folder: Path, sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    """All measurements of parts of each file, by turns."""
    runs = []
    for n_cells in sizes:
        share = max(n_cells // _MEASURED, 1)
        for _ in range(repeats):
            for way in ANNOTATE if share == 1 else ("memory",):
                found = in_process("annotate", folder, n_cells, way, share)
                runs.append({"task": "annotate", "file": n_cells, "way": way, **found})
            # The labels of a large reference are checked for longer than its training is measured.
            for way in TRAIN if share == 1 else ():
                found = in_process("train", folder, n_cells, way, _BATCHES)
                runs.append({"task": "train", "file": n_cells, "way": way, **found})
    return runs


# --------------------------------------------------------------------------- a whole file


def measure_whole(folder: Path, n_cells: int) -> dict[str, Any]:
    """Annotate a whole file twice, the second time with kills, and train an epoch on it."""
    plain, killed = folder / f"annotated_{n_cells}_zarr.zarr", folder / "plain.zarr"
    result: dict[str, Any] = {"file": n_cells}
    result["annotate"] = in_process("annotate", folder, n_cells, "zarr", 1)
    shutil.rmtree(killed, ignore_errors=True)
    plain.rename(killed)
    result["kills"] = _annotate_with_kills(
        folder, n_cells, result["annotate"]["seconds"]
    )
    result["same"] = same_files(plain, killed)
    shutil.rmtree(killed)
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
    rng, moments, began = random.Random(0), [], time.perf_counter()
    for _ in range(_N_KILLS):
        # Parts that were finished shorten the next call, so that most moments are in its midst.
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
    return {"moments": moments, "seconds": time.perf_counter() - began}


def same_files(one: Path, other: Path) -> bool:
    """Whether two folders have the same files with the same bytes."""
    names = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    if names != sorted(
        path.relative_to(other) for path in other.rglob("*") if path.is_file()
    ):
        return False
    return all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


# --------------------------------------------------------------------------- the page


def rates(runs: list[dict[str, Any]]) -> pd.DataFrame:
    """Cells per second and peak memory, the median over repeats."""
    frame = pd.DataFrame(runs)
    took = (
        frame["network"].fillna(frame["seconds"])
        if "network" in frame
        else frame["seconds"]
    )
    frame["rate"] = frame["cells"] / took
    columns = ["rate", "peak_mb"]
    return frame.groupby(["task", "file", "way"], sort=False)[columns].median()


def report(result: dict[str, Any]) -> str:
    """The page."""
    measured = rates(result["runs"])
    files = list(dict.fromkeys(run["file"] for run in result["runs"]))
    lines = [
        "# Large data",
        "",
        f"Written by `python -m benchmarks.scale` on {result['processors']} processors. The cells are made "
        "up: counts of 3 000 genes, 13 labels.",
        "The model has all defaults. Each measurement is a process of its own, the median of "
        f"{result['repeats']}. Of files",
        f"with more cells, some {format_thousands(result['measured'])} are annotated in memory and "
        f"{result['batches']} minibatches of 64 cells are trained on.",
        *([result["note"]] if result.get("note") else []),
        "",
    ]
    for task, ways in (("annotate", ANNOTATE), ("train", TRAIN)):
        lines += [_TITLES[task], ""]
        rows = [
            [
                format_thousands(n_cells),
                NAMES[way],
                float(found["rate"]),
                float(found["peak_mb"]),
            ]
            for n_cells in files
            for way in ways
            if (task, n_cells, way) in measured.index
            for found in [measured.loc[(task, n_cells, way)]]
        ]
        head = ["cells in the file", "read", "cells per second", "peak memory, MB"]
        lines += [*table(head, rows), ""]
    lines += ["Memory is that of one process; with workers, of the largest one.", ""]
    if result.get("whole"):
        lines += [*_whole(result["whole"]), ""]
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


def _whole(whole: dict[str, Any]) -> list[str]:
    moments = ", ".join(f"{moment:.0f}" for moment in whole["kills"]["moments"])
    trained = f"train, an epoch of {format_thousands(whole['train']['cells'])} of the cells, from Zarr"
    rows = [
        [
            what,
            found["seconds"] / 60,
            found["cells"] / found["network" if "network" in found else "seconds"],
            found["peak_mb"],
        ]
        for what, found in (
            ("annotate, from Zarr to Zarr", whole["annotate"]),
            (trained, whole["train"]),
        )
    ]
    same = "the same bytes" if whole["same"] else "OTHER BYTES"
    return [
        f"## A whole file: {format_thousands(whole['file'])} cells",
        "",
        *table(
            ["work", "minutes, everything", "cells per second", "peak memory, MB"], rows
        ),
        "",
        "Everything of the training is also labels that are checked, the linear branch and calibration; cells per",
        "second are those of the network. A second annotation was killed by SIGKILL",
        f"{len(whole['kills']['moments'])} times, {moments} seconds after each start, and begun "
        f"again each time: its output has {same}.",
    ]


def disk_bytes(folder: Path, n_cells: int) -> dict[str, float]:
    """Bytes a cell of the parts and of the output without X."""
    output = folder / f"annotated_{n_cells}_zarr.zarr"
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    # Parts are not compressed: attention in single precision, and four more numbers.
    return {"parts": 300 * 4 + 4 * 8.0, "output": size / n_cells}


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
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
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    quiet()
    if given.run:
        print(json.dumps(_scale_runs.run(*given.run)))
        return
    folder = given.folder.resolve()
    folder.mkdir(exist_ok=True)
    _scale_runs.prepare(folder, given.cells)
    result = {
        "runs": measure_rates(folder, given.cells, given.repeats),
        "processors": len(os.sched_getaffinity(0)),
        "repeats": given.repeats,
        "measured": _MEASURED,
        "batches": _BATCHES,
        "disk_bytes": disk_bytes(folder, given.cells[0]),
        "note": given.note,
    }
    if given.whole:
        result["whole"] = measure_whole(folder, given.whole)
    result["versions"] = versions("zarr", "dask", "distributed")
    write(given.out, "scale", result, report(result))


if __name__ == "__main__":
    main()
