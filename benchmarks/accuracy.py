"""Accuracy and calibration of tosica and other methods.

``python -m benchmarks.accuracy FOLDER`` from the repository's root, with the files named in
``_accuracy_tasks.py`` in that folder and ``benchmarks/requirements.txt`` installed, writes
``accuracy.json`` and the page in ``docs/benchmarks``; with ``--unseen``, on other tasks and with
other seeds, ``accuracy_unseen.json``. An interrupted run continues where it stopped; ``--again
METHOD`` repeats a method.
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

from benchmarks._accuracy_methods import METHODS, quietly
from benchmarks._accuracy_tasks import LABEL, TASKS, UNSEEN
from benchmarks._results import table, version_lines, versions, write
from benchmarks._scores import BY_CHANCE, METRICS, scores

if TYPE_CHECKING:
    from benchmarks._accuracy_tasks import Split, Task

OURS = "tosica"
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
        sets.append(
            {
                coverage: _inside(table, known)
                for coverage, table in found.attrs.get("sets", {}).items()
            }
        )
    seconds = time.perf_counter() - started
    # There are no sets for a coverage that a reference has too few cells for.
    levels = [level for level in sets[0] if all(level in part for part in sets)]
    return {
        **scores(*map(np.concatenate, (truth, called, probability))),
        "seconds": seconds / len(splits),
        "covered": {
            str(level): float(np.concatenate([part[level] for part in sets]).mean())
            for level in levels
        },
    }


def _inside(table: pd.DataFrame, truth: pd.Series) -> np.ndarray:
    """Whether each cell's label is in its set."""
    return table.to_numpy()[np.arange(len(table)), table.columns.get_indexer(truth)]


# The tasks with the largest calibration errors of all methods, and those in which tosica leads by most.
EXTREME = ("breast cells", "breast nuclei", "gut")
LARGEST_LEADS = ("kang noisy", "gut")
_TITLE = [
    "# Twelve tasks",
    "",
    "Written by `python -m benchmarks.accuracy`. Six of the tasks are of one data set, Kang. Settings of tosica",
    "were chosen on references of Kang, pbmc68k, breast and mouse gut. An arrow means that reference and query",
    "differ in batch, technology or condition. All methods get the same cells and genes, and are called with their",
    "defaults. Values are means over seeds (± standard deviation). The seed determines folds, small references, wrong",
    "labels, and the random numbers of the methods. Blank cells were not run.",
]
_UNSEEN_TITLE = [
    "# Other data",
    "",
    "Written by `python -m benchmarks.accuracy --unseen`, with other data and seeds. No setting was chosen on the",
    "simulated cells. Settings of the linear branch were chosen on references that included small ones of the",
    "CITE-seq data, whose labels come from antibodies. The rest is as above.",
]


def _known(unseen: bool) -> dict[str, Task]:
    return UNSEEN if unseen else TASKS


def report(result: dict[str, Any]) -> str:
    """What the page says of a result."""
    if "tables" in result:
        return "\n".join(
            [
                *result["text"],
                "",
                *(line for t in result["tables"] for line in (*table(*t), "")),
            ]
        )
    runs = pd.DataFrame(result["runs"])
    known = _known(result["unseen"])
    tasks = {
        name: task.title for name, task in known.items() if name in set(runs["task"])
    }
    methods = [name for name in METHODS if name in set(runs["method"])]
    lines = [
        *(_UNSEEN_TITLE if result["unseen"] else _TITLE),
        *([result["note"]] if result.get("note") else []),
        "",
    ]
    of_task = runs.groupby(["method", "task"])[list(METRICS)]
    means, spreads = of_task.mean(), of_task.std()
    lines += _means(runs, means, len(tasks))
    lines += _by_task(means, spreads, tasks, methods, "accuracy")
    methods = [name for name in methods if name not in ("svm platt", "literal")]
    by_chance = (
        runs[runs["method"] == OURS].groupby("task")[BY_CHANCE].mean()
        if BY_CHANCE in runs
        else None
    )
    lines += _by_task(means, spreads, tasks, methods, "calibration error", by_chance)
    if OURS in methods:
        within = {name: known[name].title for name in tasks if known[name].within}
        lines += _label_sets(runs[runs["method"] == OURS], within)
    lines += version_lines(result)
    return "\n".join(lines)


def _means(runs: pd.DataFrame, means: pd.DataFrame, n_tasks: int) -> list[str]:
    """Means over the tasks of the methods that were run on all of them."""
    n_seeds = runs.groupby("method")["seed"].nunique()
    rows = []
    for method in (name for name in METHODS if name in n_seeds.index):
        of = means.loc[method]
        if len(of) == n_tasks:
            row = [
                METHODS[method][0],
                *(_shown(of[metric].mean(), metric) for metric in METRICS),
                n_seeds[method],
            ]
            if set(EXTREME) < set(of.index):
                row.insert(
                    -2,
                    _shown(
                        of["calibration error"].drop(list(EXTREME)).mean(),
                        "calibration error",
                    ),
                )
                row.insert(
                    2,
                    _shown(of["accuracy"].drop(list(LARGEST_LEADS)).mean(), "accuracy"),
                )
            rows.append(row)
    head = ["mean over the tasks", *METRICS.values(), "seeds"]
    if rows and len(rows[0]) > len(head):
        head.insert(-2, "the same without breast and gut")
        head.insert(2, "the same without wrong labels and gut")
    return [*table(head, rows), ""]


def _by_task(
    means: pd.DataFrame,
    spreads: pd.DataFrame,
    tasks: dict[str, str],
    methods: list[str],
    metric: str,
    by_chance: pd.Series | None = None,
) -> list[str]:
    """Each method in each task; for accuracy the points between tosica and the best other method."""
    rows = []
    peers = [method for method in methods if method != OURS]
    for task, what in tasks.items():
        of = means[metric].xs(task, level="task").reindex(methods)
        row = [
            what,
            *("" if np.isnan(of[m]) else _shown(of[m], metric) for m in methods),
        ]
        if OURS in methods and not np.isnan(spreads[metric].get((OURS, task), np.nan)):
            row[1 + methods.index(OURS)] += (
                f" ± {_shown(spreads.loc[(OURS, task), metric], metric)}"
            )
        if metric == "accuracy" and OURS in methods and peers:
            row.append(f"{100 * (of[OURS] - of[peers].max()):+.1f}")
        elif by_chance is not None:
            row.append(_shown(by_chance[task], metric) if task in by_chance else "")
        rows.append(row)
    last = (
        ["points to the best other"]
        if metric == "accuracy" and len(rows[0]) > 1 + len(methods)
        else []
    )
    last += (
        ["tosica, if exact"] if metric != "accuracy" and by_chance is not None else []
    )
    head = [METRICS[metric].lower(), *(METHODS[m][0] for m in methods), *last]
    return [*table(head, rows), ""]


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
        [
            tasks[task],
            *(f"{m:.3f} ± {s:.3f}" for m, s in zip(of.mean(), of.std(), strict=True)),
        ]
        for task, of in means
    ]
    return [
        "Share of the query's cells whose set of labels (`model.predict_set` with `allow_empty=True`) contains the",
        "right one, in tasks whose query is of the reference's batch:",
        "",
        *table(["coverage requested", *covered.columns], rows),
        "",
    ]


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and write the tables after every task."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument(
        "--unseen", action="store_true", help="other tasks, and other seeds"
    )
    parser.add_argument("--tasks", nargs="+", help="some of them")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--again", nargs="+", choices=METHODS, default=[])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--note", help="a sentence for the page, such as what else was running"
    )
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
        result["runs"] = [
            run
            for run in result["runs"]
            if run["method"] not in again or run["task"] not in tasks
        ]
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
                result["runs"].append(
                    {"task": task, "method": method, "seed": seed, **found}
                )
            write(given.out, page, result, report(result))


if __name__ == "__main__":
    main()
