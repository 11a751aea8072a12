"""Accuracy and calibration of tosica and other methods.

``python -m benchmarks.accuracy FOLDER`` from the repository's root, with the files named in
``_accuracy_tasks.py`` in that folder and ``benchmarks/requirements.txt`` installed, writes
``docs/benchmarks/accuracy.md`` and ``accuracy.json``; with ``--unseen``, on other tasks and with
other seeds, ``accuracy_unseen.md`` and ``accuracy_unseen.json``. An interrupted run continues where
it stopped; ``--again METHOD`` repeats a method.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from anndata import AnnData

import tosica
from benchmarks._accuracy_methods import METHODS, quietly
from benchmarks._accuracy_tasks import LABEL, TASKS, UNSEEN
from benchmarks._report import table, version_lines, versions, write

if TYPE_CHECKING:
    from collections.abc import Hashable

    from benchmarks._accuracy_tasks import Split, Task

METRICS = {
    "accuracy": "Accuracy",
    "macro-F1": "Macro-F1",
    "balanced accuracy": "Balanced accuracy",
    "calibration error": "Expected calibration error, 15 bins",
    "seconds": "Seconds, one thread",
}
OURS = "tosica"
N_BINS = 15
# Expected calibration error if all probabilities were exact. It is above 0, most of all in tasks
# with few cells.
BY_CHANCE = "calibration error by chance"
# Smaller seeds are those of the other page.
_FIRST_UNSEEN_SEED = 5


def one_run(splits: list[Split], method: str, seed: int) -> dict[str, Any]:
    """Run a method on the splits of a task, and score their queries together."""
    truth, called, probability, sets = [], [], [], []
    started = time.perf_counter()
    for reference, query in splits:
        found = quietly(METHODS[method][1], reference, query, seed)
        found.columns = found.columns.astype(str)
        known = query.obs[LABEL].astype(str)
        truth.append(known.to_numpy())
        called.append(found.idxmax(axis=1).to_numpy())
        probability.append(found.max(axis=1).to_numpy())
        sets.append({coverage: _inside(table, known) for coverage, table in found.attrs.get("sets", {}).items()})
    seconds = time.perf_counter() - started
    # There are no sets for a coverage that a reference has too few cells for.
    levels = [level for level in sets[0] if all(level in part for part in sets)]
    obs = pd.DataFrame(
        {
            LABEL: np.concatenate(truth),
            f"{OURS}_prediction": np.concatenate(called),
            f"{OURS}_probability": np.concatenate(probability).astype(float),
        }
    )
    obs.index = obs.index.astype(str)
    score = tosica.tl.evaluate(AnnData(obs=obs), LABEL, n_bins=N_BINS).summary.iloc[0]
    return {
        "accuracy": float(score["accuracy"]),
        "macro-F1": float(score["macro_f1"]),
        "balanced accuracy": float(score["balanced_accuracy"]),
        "calibration error": float(score["expected_calibration_error"]),
        BY_CHANCE: error_by_chance(obs[f"{OURS}_probability"].to_numpy()),
        "seconds": seconds / len(splits),
        "covered": {str(level): float(np.concatenate([part[level] for part in sets]).mean()) for level in levels},
    }


def error_by_chance(probability: np.ndarray, n_draws: int = 200) -> float:
    """Calibration error of labels that are correct with exactly their probability."""
    drawn = np.random.default_rng(0).random((n_draws, len(probability))) < probability
    bins = np.maximum(np.ceil(N_BINS * probability), 1).astype(int) - 1
    gaps = (drawn - probability) @ np.eye(N_BINS)[bins]
    return float(np.abs(gaps).sum(1).mean() / len(probability))


def _inside(table: pd.DataFrame, truth: pd.Series) -> np.ndarray:
    """Whether each cell's label is in its set."""
    return table.to_numpy()[np.arange(len(table)), table.columns.get_indexer(truth)]


_TITLE = ["# Accuracy", "", "Written by `python -m benchmarks.accuracy`."]
_UNSEEN_TITLE = [
    "# Accuracy on other data",
    "",
    "Written by `python -m benchmarks.accuracy --unseen`, with data and seeds that are not in the "
    "[first benchmark](accuracy.md).",
    "No setting of the model was chosen on the simulated cells. Settings of the linear branch were "
    "chosen on references",
    "that included small ones of the CITE-seq data. The labels of these data come from antibodies, "
    "and it is unknown how",
    "many of them RNA can distinguish.",
    "",
]


def _known(unseen: bool) -> dict[str, Task]:
    return UNSEEN if unseen else TASKS


def report(result: dict[str, Any]) -> str:
    """The page."""
    runs = pd.DataFrame(result["runs"])
    known = _known(result["unseen"])
    tasks = [name for name in known if name in set(runs["task"])]
    methods = [name for name in METHODS if name in set(runs["method"])]
    n_seeds = runs.groupby("method")["seed"].nunique()
    lines = [
        *(_UNSEEN_TITLE if result["unseen"] else _TITLE),
        "All methods get the same cells and genes, and are called with their defaults, as in their documentation;",
        "tosica is `model.train()` without arguments, on its default gene sets. Values are means over seeds ± standard",
        "deviation. The seed determines folds, small references, wrong labels, and the random numbers of the methods.",
        "Slow methods have fewer seeds, and a single seed has no deviation. Blank cells were not "
        "run." + (f" {result['note']}" if result.get("note") else ""),
        "",
    ]
    of_task = runs.groupby(["method", "task"])[list(METRICS)]
    means, spreads = of_task.mean(), of_task.std()
    lines += ["Mean over the tasks:", ""]
    rows = [
        [METHODS[m][0], *(_shown(means.loc[m][metric].mean(), metric) for metric in METRICS), n_seeds[m]]
        for m in methods
        # A mean over other tasks would be another number.
        if len(means.loc[m]) == len(tasks)
    ]
    lines += [*table(["", *METRICS.values(), "seeds"], rows), ""]
    lines += _beside_the_best(means, {task: known[task].what for task in tasks}, methods)
    for metric, what in METRICS.items():
        lines += [f"## {what}", ""]
        rows = [[METHODS[m][0], *(_cell(means, spreads, (m, task), metric) for task in tasks)] for m in methods]
        if metric == "calibration error" and BY_CHANCE in runs:
            rows += [_by_chance(runs[runs["method"] == OURS], tasks)]
        lines += [*table(["", *(known[task].what for task in tasks)], rows), ""]
    if OURS in methods:
        within = {name: known[name].what for name in tasks if known[name].within}
        lines += _label_sets(runs[runs["method"] == OURS], within)
    lines += version_lines(result)
    return "\n".join(lines)


def _beside_the_best(means: pd.DataFrame, tasks: dict[str, str], methods: list[str]) -> list[str]:
    """Difference of tosica to the best other method in each task."""
    peers = [m for m in methods if m != OURS]
    if OURS not in methods or not peers:
        return []
    rows, measured = [], set(means.index)
    for task, what in tasks.items():
        if (OURS, task) not in measured or not any((m, task) in measured for m in peers):
            continue
        row = [what]
        for metric in ("accuracy", "macro-F1"):
            of = means[metric].xs(task, level="task")
            best = of.reindex(peers).idxmax()
            row += [METHODS[best][0], f"{100 * (of[OURS] - of[best]):+.1f}"]
        rows.append(row)
    gain = "tosica, points"
    head = ["", "best other by accuracy", gain, "best other by macro-F1", gain]
    return ["Difference to the best other method of each task:", "", *table(head, rows), ""]


def _by_chance(runs: pd.DataFrame, tasks: list[str]) -> list[str]:
    """A row for the expected calibration error of exact probabilities."""
    of_task = runs.dropna(subset=BY_CHANCE).groupby("task")[[BY_CHANCE]]
    means, spreads = of_task.mean(), of_task.std()
    cells = [_cell(means, spreads, task, BY_CHANCE) for task in tasks]
    return [f"{METHODS[OURS][0]}, if its probabilities were exact", *cells]


def _cell(means: pd.DataFrame, spreads: pd.DataFrame, at: Hashable, metric: str) -> str:
    """Mean and deviation; nothing where a method was not run."""
    if at not in means.index:
        return ""
    mean, spread = means.loc[at, metric], spreads.loc[at, metric]
    shown = _shown(mean, metric)
    return shown if np.isnan(spread) else f"{shown} ± {_shown(spread, metric)}"


def _shown(value: float, metric: str) -> str:
    return f"{value:.1f}" if metric == "seconds" else f"{value:.3f}"


def _label_sets(runs: pd.DataFrame, tasks: dict[str, str]) -> list[str]:
    """Coverage of the label sets of `predict_set` in the reference's batch."""
    runs = runs[runs["task"].isin(tasks)]
    covered = pd.DataFrame(list(runs["covered"]), index=runs["task"]).dropna(how="all")
    if covered.empty:
        return []
    means = covered.groupby(level=0, sort=False)
    rows = [
        [tasks[task], *(f"{m:.3f} ± {s:.3f}" for m, s in zip(of.mean(), of.std(), strict=True))] for task, of in means
    ]
    return [
        "## Label sets",
        "",
        "Share of the query's cells whose set (`model.predict_set` with `allow_empty=True`) "
        "contains the right label, in",
        "tasks whose query is of the reference's batch:",
        "",
        *table(["requested", *covered.columns], rows),
        "",
    ]


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and write the tables after every task."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--unseen", action="store_true", help="other tasks, and other seeds")
    parser.add_argument("--tasks", nargs="+", help="some of them")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--again", nargs="+", choices=METHODS, default=[])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--note", help="a sentence for the page, such as what else was running")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    for name in ("lightning.pytorch", "tosica", "celltypist", "scvi"):
        logging.getLogger(name).setLevel(logging.ERROR)
    page = "accuracy_unseen" if given.unseen else "accuracy"
    known = _known(given.unseen)
    tasks = given.tasks or list(known)
    if not known.keys() >= set(tasks):
        parser.error(f"--tasks is of {', '.join(known)} here")
    first = _FIRST_UNSEEN_SEED if given.unseen else 0
    result: dict[str, Any] = {"runs": []}
    path = given.out / f"{page}.json"
    if path.exists():
        result = json.loads(path.read_text())
        # Nothing is dropped that is not measured now.
        again = set(given.again) & set(given.methods)
        result["runs"] = [run for run in result["runs"] if run["method"] not in again or run["task"] not in tasks]
    peers = ["celltypist"] if "celltypist" in given.methods else []
    result["versions"] = result.get("versions", {}) | versions("scikit-learn", *peers)
    result["note"] = given.note or result.get("note")
    result["unseen"] = given.unseen
    there = {(run["task"], run["method"], run["seed"]) for run in result["runs"]}
    for seed in range(first, first + given.seeds):
        for task in tasks:
            splits = known[task].splits(given.data, seed)
            for method in given.methods:
                if (task, method, seed) in there:
                    continue
                found = one_run(splits, method, seed)
                result["runs"].append({"task": task, "method": method, "seed": seed, **found})
            write(given.out, page, result, report(result))


if __name__ == "__main__":
    main()
