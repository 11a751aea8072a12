"""How long do training, annotation and explanation take, beside an earlier commit?

``python -m benchmarks.speed FOLDER --beside COMMIT`` from the repository's root, with the files named below in
that folder, writes ``speed.json``. Each measurement is a process of its own with one thread; its
processor time does not depend on what else the machine does, or little.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks._results import make_parser, table, version_lines, versions, write

ROOT = Path(__file__).parents[1]
# Title, file, column of the labels, and number or share of the cells that are the reference.
CASES = {
    "kang": ("Kang, 750 cells, 5 labels", "kang_pbmc.h5ad", "cluster_id", 750),
    "sorted": (
        "sorted blood, 2 582 cells, 10 labels",
        "sorted_blood.h5ad",
        "cell_type",
        2 / 3,
    ),
    "mouse": (
        "mouse tissues, 945 cells, 63 labels",
        "mouse_tissues.h5ad",
        "cell_type",
        1 / 2,
    ),
}
WORKS = ("mask", "train", "annotate", "attribute", "regression")
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def measure(source: Path, data: Path, case: str, seed: int) -> dict[str, float] | None:
    """Processor seconds of one run of the package in a folder; ``None`` if it failed."""
    _, file, labels_key, size = CASES[case]
    script = Path(__file__).with_name("_speed_run.py")
    arguments = [data / file, labels_key, json.dumps(size), seed]
    environment = {
        **os.environ,
        **dict.fromkeys(THREAD_VARIABLES, "1"),
        "PYTHONPATH": str(source / "src"),
    }
    process = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        last_line = process.stderr.strip().splitlines()[-1]
        print(f"{case}, {source}: {last_line}", flush=True)
        return None
    return json.loads(process.stdout.split("FOUND")[-1])


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    runs = pd.DataFrame(result["runs"])
    means = runs.groupby(["case", "commit"], sort=False).mean(numeric_only=True)
    n_seeds = runs.groupby(["case", "commit"])["seed"].count()
    has_other_commits = runs["commit"].nunique() > 1
    rows = []
    for case, (title, *_) in CASES.items():
        for name, commit in means.index:
            if name != case:
                continue
            measured = means.loc[(case, commit)]
            row = [title, n_seeds[case, commit]]
            if has_other_commits:
                row.insert(1, commit)
            for work in WORKS:
                seconds = measured[work]
                row.append("" if pd.isna(seconds) else f"{seconds:.1f}")
            row.append(f"{measured['accuracy']:.3f}")
            row.append(f"{measured['accuracy of the regression']:.3f}")
            rows.append(row)
    head = [
        "reference",
        *(["commit"] if has_other_commits else []),
        "seeds",
        "`build_mask`",
        "`TOSICA` and `train`",
        "`annotate`",
        "`attribute`",
        "logistic regression",
        "accuracy",
        "of the regression",
    ]
    return "\n".join(
        [
            "# Small references",
            "",
            "`python -m benchmarks.speed`. Processor seconds of one thread, all defaults; the other cells of the",
            "file are the query. Logistic regression is that of scikit-learn on all genes.",
            "",
            *table(head, rows),
            "",
            *version_lines(result),
        ]
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--beside", metavar="COMMIT", help="measure this commit in the same run"
    )
    options = parser.parse_args(arguments)
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        sources = {"of today": ROOT}
        if options.beside:
            sources[options.beside] = Path(folder)
            unpack(options.beside, Path(folder))
        for case, seed in product(options.cases, range(options.seeds)):
            for commit, source in sources.items():
                measured = measure(source, options.data, case, seed)
                if measured is not None:
                    run = {"case": case, "commit": commit, "seed": seed, **measured}
                    runs.append(run)
                    print(json.dumps(run), flush=True)
    result = {"runs": runs, "versions": versions()}
    write(options.out, "speed", result, report(result))


def unpack(commit: str, folder: Path) -> None:
    """Write the sources of a commit to a folder."""
    archive = subprocess.run(
        ["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")


if __name__ == "__main__":
    main()
