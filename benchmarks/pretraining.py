"""Is a model with few labels more accurate if it is pretrained on cells without labels?

``python -m benchmarks.pretraining FOLDER`` from the repository's root, with the files named in
``_accuracy_tasks.py`` in that folder, writes ``docs/benchmarks/pretraining.md`` and
``pretraining.json``. Settings are tried first, on other splits. An interrupted run continues where
it stopped.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sklearn.metrics import f1_score

from benchmarks._accuracy_tasks import LABEL
from benchmarks._few_labels import TASKS, TUNING, draw, more_cells
from benchmarks._few_labels_methods import (
    METHODS,
    run_distilled,
    run_pretrained,
    run_random,
    run_train,
)
from benchmarks._pretraining_page import GATE_SIZES, report
from benchmarks._report import versions, write

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from benchmarks._few_labels import FewLabels
    from benchmarks._few_labels_methods import Found

SIZES = (5, 10, 50)
# Reported seeds are 0 to 4.
FIRST_TUNING_SEED = 100
N_TUNING_SEEDS = 2


def settings(data: Path) -> dict[str, Callable[..., Found]]:
    """What was tried, one change at a time."""
    pretrained = functools.partial(run_pretrained, steps=300)
    return {
        "train": run_train,
        "pretrained": pretrained,
        "kept": functools.partial(pretrained, keep=True),
        "kept short": functools.partial(pretrained, keep=True, steps=100),
        "kept slow": functools.partial(pretrained, keep=True, lr=1e-3),
        "random": run_random,
        "plain": functools.partial(pretrained, standardize=False),
        "more": functools.partial(pretrained, more=more_cells(data)),
        "distilled": functools.partial(run_distilled, confident=0.9),
        "distilled half": functools.partial(run_distilled, confident=None),
        "distilled query": functools.partial(run_distilled, confident=0.9, query_only=True),
    }


def scores(called: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Accuracy and macro-F1 over the labels of the query."""
    f1 = f1_score(truth, called, labels=sorted(set(truth)), average="macro", zero_division=0)
    return {"accuracy": float((called == truth).mean()), "macro-F1": float(f1)}


def one_run(
    split: FewLabels, run: Callable[..., Found], seed: int, epochs: int | None
) -> tuple[dict[str, Any], Found]:
    """Run a method and score its labels of the query, and those of its network alone."""
    with warnings.catch_warnings(action="ignore"):
        # Set before each run, because scanpy's tools change the number of threads of torch.
        torch.set_num_threads(1)
        found = run(split, seed, epochs)
    truth = split.query.obs[LABEL].astype(str).to_numpy()
    result: dict[str, Any] = scores(found.labels, truth)
    if found.of_network is not None:
        result["network"] = scores(found.of_network, truth)["macro-F1"]
    if found.explained is not None:
        result["explained"] = found.explained
    if found.n_added is not None:
        result["added"] = found.n_added
    return result, found


def try_settings(given: argparse.Namespace, result: dict[str, Any]) -> None:
    """Run what is missing of the settings."""
    adata, variants = TUNING.read(given.data), settings(given.data)
    there = {(run["setting"], run["labeled"], run["seed"]) for run in result["tried"]}
    for seed in range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + N_TUNING_SEEDS):
        for n_labeled in TUNING.sizes:
            split = draw(adata, TUNING, n_labeled, seed)
            for name in given.settings if given.settings is not None else variants:
                if (name, n_labeled, seed) in there:
                    continue
                which = {"setting": name, "labeled": n_labeled, "seed": seed}
                found, _ = one_run(split, variants[name], seed, given.epochs)
                result["tried"].append({**which, **found})
                write(given.out, "pretraining", result, report(result))


def compare_methods(given: argparse.Namespace, result: dict[str, Any]) -> None:
    """Run what is missing of the methods, of the sizes that decide first."""
    splits = [
        (n_labeled, seed, task)
        for sizes in (GATE_SIZES, [size for size in SIZES if size not in GATE_SIZES])
        for seed in range(given.seeds)
        for task in given.tasks
        for n_labeled in sizes
        if n_labeled in TASKS[task].sizes and n_labeled in given.sizes
    ]
    for n_labeled, seed, task in splits:
        which = {"task": task, "labeled": n_labeled, "seed": seed}
        there = {run["method"] for run in result["runs"] if which.items() <= run.items()}
        missing = [method for method in given.methods if method not in there]
        if not missing:
            continue
        split = draw(TASKS[task].read(given.data), TASKS[task], n_labeled, seed)
        teacher = None
        for method in missing:
            run = METHODS[method][1]
            if method == "distilled":
                run = functools.partial(run, teacher=teacher)
            scored, found = one_run(split, run, seed, given.epochs)
            teacher = found.model if method == "train" else teacher
            result["runs"].append({**which, "method": method, **scored})
        write(given.out, "pretraining", result, report(result))


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and write the page after every split."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--sizes", nargs="+", type=int, choices=SIZES, default=list(SIZES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--settings", nargs="*", help="settings to try, by default all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="of train(), by default its own")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    for name in ("lightning.pytorch", "tosica", "scvi"):
        logging.getLogger(name).setLevel(logging.ERROR)
    result: dict[str, Any] = {"tried": [], "runs": []}
    path = given.out / "pretraining.json"
    if path.exists():
        result = json.loads(path.read_text())
    result["versions"] = versions("scikit-learn")
    try_settings(given, result)
    compare_methods(given, result)


if __name__ == "__main__":
    main()
