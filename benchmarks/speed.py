"""How long do training, annotation and explanation take, beside an earlier commit?

``python -m benchmarks.speed FOLDER --beside COMMIT`` from the repository's root, with the files named below in
that folder, writes ``speed.json`` and its page. Each measurement is a process of its own with one thread; its
processor time does not depend on what else the machine does, or little.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks._results import table, version_lines, versions, write

# File, column of the labels, and number or share of the cells that are the reference.
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
WORK = """
import json, logging, sys, time, warnings
import anndata as ad, numpy as np, scvi
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
warnings.simplefilter("ignore")
import tosica
for name in ("lightning.pytorch", "tosica"):
    logging.getLogger(name).setLevel(logging.ERROR)
path, labels_key, size, seed = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
scvi.settings.seed = seed
adata = ad.read_h5ad(path)
labels = adata.obs[labels_key].astype(str).to_numpy()
train, test = train_test_split(np.arange(adata.n_obs), train_size=size, stratify=labels, random_state=seed)
ref, query = adata[np.sort(train)].copy(), adata[np.sort(test)].copy()
found, started = {}, time.process_time()
def lap(name):
    global started
    found[name], started = time.process_time() - started, time.process_time()
tosica.pp.build_mask(ref)
tosica.TOSICA.setup_anndata(ref, labels_key=labels_key)
lap("mask")
model = tosica.TOSICA(ref)
model.train(enable_progress_bar=False)
lap("train")
model.annotate(query)
lap("annotate")
try:
    tosica.tl.attribute(query, model)
    lap("attribute")
except ImportError:  # a package that an earlier commit needed
    found["attribute"] = float("nan")
known = query.obs[labels_key].astype(str)
found["accuracy"] = float((query.obs["tosica_prediction"].astype(str) == known).mean())
started = time.process_time()
def log_normalized(x):
    total = np.asarray(x.sum(1)).ravel()[:, None]
    return np.log1p(np.asarray(x.todense() if hasattr(x, "todense") else x) / total * 1e4)
line = LogisticRegression(max_iter=1000).fit(log_normalized(ref.X), ref.obs[labels_key].astype(str))
lap("regression")
found["accuracy of the regression"] = float((line.predict(log_normalized(query.X)) == known).mean())
print("FOUND", json.dumps(found))
"""


def measure(source: Path, data: Path, case: str, seed: int) -> dict[str, float] | None:
    """Processor seconds of one run of the package in a folder; ``None`` if it failed."""
    _, file, labels_key, size = CASES[case]
    one_thread = {
        f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")
    }
    command = [
        sys.executable,
        "-c",
        WORK,
        str(data / file),
        labels_key,
        json.dumps(size),
        str(seed),
    ]
    environment = {**os.environ, **one_thread, "PYTHONPATH": str(source / "src")}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{case}, {source}: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return None
    return json.loads(done.stdout.split("FOUND")[-1])


def report(result: dict[str, Any]) -> str:
    """What the page says of a result."""
    runs = pd.DataFrame(result["runs"])
    means = runs.groupby(["case", "commit"], sort=False).mean(numeric_only=True)
    rows = []
    for case, (what, *_) in CASES.items():
        for commit in [name for of, name in means.index if of == case]:
            of = means.loc[(case, commit)]
            works = ("mask", "train", "annotate", "attribute", "regression")
            seconds = ["" if pd.isna(of[name]) else f"{of[name]:.1f}" for name in works]
            n_seeds = ((runs["case"] == case) & (runs["commit"] == commit)).sum()
            rows.append(
                [
                    what,
                    commit,
                    n_seeds,
                    *seconds,
                    f"{of['accuracy']:.3f}",
                    f"{of['accuracy of the regression']:.3f}",
                ]
            )
    head = [
        "reference",
        "commit",
        "seeds",
        "`build_mask`",
        "`TOSICA` and `train`",
        "`annotate`",
        "`attribute`",
    ]
    head += ["logistic regression", "accuracy", "of the regression"]
    return "\n".join(
        [
            "# Small references",
            "",
            "Written by `python -m benchmarks.speed`. Processor seconds of one thread, all defaults; the other cells",
            "of the file are the query. Logistic regression is that of scikit-learn on all genes. Commits are named",
            "beside that of today.",
            "",
            *table(head, rows),
            "",
            *version_lines(result),
        ]
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--beside", metavar="COMMIT", help="measure this commit in the same run"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    root, runs = Path(__file__).parents[1], []
    with tempfile.TemporaryDirectory() as folder:
        sources = {"of today": root}
        if given.beside:
            sources[given.beside] = Path(folder)
            archive = subprocess.run(
                ["git", "archive", given.beside, "src"],
                cwd=root,
                capture_output=True,
                check=True,
            )
            with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
                files.extractall(folder, filter="data")
        for case in given.cases:
            for seed in range(given.seeds):
                for commit, source in sources.items():
                    if found := measure(source, given.data, case, seed):
                        runs.append(
                            {"case": case, "commit": commit, "seed": seed, **found}
                        )
                        print(json.dumps(runs[-1]), flush=True)
    result = {"runs": runs, "versions": versions()}
    write(given.out, "speed", result, report(result))


if __name__ == "__main__":
    main()
