"""Accuracy and calibration of tosica and other methods.

``python -m benchmarks.accuracy FOLDER`` from the repository's root, with the files named in
``_accuracy_tasks.py`` in that folder and ``benchmarks/requirements.txt`` installed, writes
``accuracy.json``; with ``--unseen``, on other tasks and with
other seeds, ``accuracy_unseen.json``. An interrupted run continues where it stopped; ``--again
METHOD`` repeats a method.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchmarks._accuracy_methods import METHODS, quietly
from benchmarks._accuracy_tasks import LABEL, TASKS, UNSEEN
from benchmarks._results import (
    load,
    make_parser,
    quiet,
    table,
    version_lines,
    versions,
    write,
)
from benchmarks._scores import BY_CHANCE, METRICS, scores

if TYPE_CHECKING:
    from benchmarks._accuracy_tasks import Split, Task

OURS = "tosica"
# Smaller seeds are those of the other page.
_FIRST_UNSEEN_SEED = 5


def one_run(splits: list[Split], method: str, seed: int) -> dict[str, Any]:
    """Run a method on the splits of a task, and score their queries together."""
    truth = []
    predicted = []
    probability = []
    covered = []
    start_time = time.perf_counter()
    for reference, query in splits:
        probabilities = quietly(METHODS[method][1], reference, query, seed)
        probabilities.columns = probabilities.columns.astype(str)
        labels = query.obs[LABEL].astype(str)
        truth.append(labels.to_numpy())
        predicted.append(probabilities.idxmax(axis=1).to_numpy())
        probability.append(probabilities.max(axis=1).to_numpy())
        label_sets = probabilities.attrs.get("sets", {})
        covered.append(
            {level: _contains(sets, labels) for level, sets in label_sets.items()}
        )
    seconds = time.perf_counter() - start_time
    # There are no sets for a coverage that a reference has too few cells for.
    levels = [level for level in covered[0] if all(level in sets for sets in covered)]
    return {
        **scores(
            np.concatenate(truth),
            np.concatenate(predicted),
            np.concatenate(probability),
        ),
        "seconds": seconds / len(splits),
        "covered": {
            str(level): float(np.concatenate([sets[level] for sets in covered]).mean())
            for level in levels
        },
    }


def _contains(sets: pd.DataFrame, labels: pd.Series) -> np.ndarray:
    """Whether the set of each cell contains its label."""
    return sets.to_numpy()[np.arange(len(sets)), sets.columns.get_indexer(labels)]


# The tasks with the largest calibration errors of all methods, and those in which tosica leads by most.
EXTREME = ("breast cells", "breast nuclei", "gut")
LARGEST_LEADS = ("kang noisy", "gut")
_TITLE = [
    "# Twelve tasks",
    "",
    "`python -m benchmarks.accuracy`. Six of the tasks are of one data set, Kang. Settings of tosica were chosen on",
    "references of Kang, pbmc68k, breast and mouse gut. An arrow means that reference and query differ in batch,",
    "technology or condition. All methods get the same cells and genes, and have their defaults. Values are means over",
    "seeds (± standard deviation), of scANVI and the authors' code one.",
]
_UNSEEN_TITLE = [
    "# Other data",
    "",
    "`python -m benchmarks.accuracy --unseen`. No setting was chosen on the simulated cells. Settings of the",
    "linear branch were chosen on references that included small ones of the CITE-seq data, whose labels come",
    "from antibodies.",
]


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    if "tables" in result:
        lines = [*result["text"], ""]
        for head, rows in result["tables"]:
            lines += [*table(head, rows), ""]
        return "\n".join(lines)
    runs = pd.DataFrame(result["runs"])
    all_tasks = UNSEEN if result["unseen"] else TASKS
    tasks = {
        name: task for name, task in all_tasks.items() if name in set(runs["task"])
    }
    methods = [name for name in METHODS if name in set(runs["method"])]
    lines = list(_UNSEEN_TITLE if result["unseen"] else _TITLE)
    if result.get("note"):
        lines.append(result["note"])
    by_task = runs.groupby(["method", "task"])[list(METRICS)]
    means = by_task.mean()
    spreads = by_task.std()
    lines += ["", *_means(runs, means, len(tasks))]
    lines += _accuracy_by_task(means, spreads, tasks, methods)
    methods = [name for name in methods if name not in ("svm platt", "literal")]
    if not result["unseen"]:
        lines += _error_by_task(runs, means, spreads, tasks, methods)
        if OURS in methods:
            lines += _label_sets(runs[runs["method"] == OURS], tasks)
    lines += version_lines(result)
    return "\n".join(lines)


def _means(runs: pd.DataFrame, means: pd.DataFrame, n_tasks: int) -> list[str]:
    """Means over the tasks of the methods that were run on all of them."""
    n_seeds = runs.groupby("method")["seed"].nunique()
    rows = []
    has_hard_tasks = False
    for method in METHODS:
        if method not in n_seeds.index or len(means.loc[method]) != n_tasks:
            continue
        by_task = means.loc[method]
        row = [METHODS[method][0]]
        row += [_format(by_task[metric].mean(), metric) for metric in METRICS]
        row.append(n_seeds[method])
        has_hard_tasks = set(EXTREME) < set(by_task.index)
        if has_hard_tasks:
            error = by_task["calibration error"].drop(list(EXTREME)).mean()
            accuracy = by_task["accuracy"].drop(list(LARGEST_LEADS)).mean()
            row.insert(-2, _format(error, "calibration error"))
            row.insert(2, _format(accuracy, "accuracy"))
        rows.append(row)
    head = ["mean over the tasks", *METRICS.values(), "seeds"]
    if has_hard_tasks:
        head.insert(-2, "the same without breast and gut")
        head.insert(2, "the same without wrong labels and gut")
    return [*table(head, rows), "", *_means_of_scanvi(means)]


def _means_of_scanvi(means: pd.DataFrame) -> list[str]:
    """The means of scANVI, which was run on some of the tasks, and of tosica on these."""
    if not {OURS, "scanvi"} <= set(means.index.get_level_values("method")):
        return []
    tasks = means.loc["scanvi"].index
    theirs = means.loc["scanvi"].mean()
    ours = means.loc[OURS].loc[tasks].mean()
    return [
        f"On {len(tasks)} tasks scANVI has an accuracy of {theirs['accuracy']:.3f} in {theirs['seconds']:.0f} seconds, "
        f"tosica {ours['accuracy']:.3f} in {ours['seconds']:.0f}.",
        "",
    ]


def _row_of_task(
    task: str,
    title: str,
    means: pd.DataFrame,
    spreads: pd.DataFrame,
    methods: list[str],
    metric: str,
) -> list[str]:
    """A metric of each method in a task, with the standard deviation of tosica."""
    row = [title]
    for method in methods:
        mean = means[metric].get((method, task), np.nan)
        spread = spreads[metric].get((method, task), np.nan)
        text = "" if np.isnan(mean) else _format(mean, metric)
        if method == OURS and not np.isnan(spread):
            text += f" ± {_format(spread, metric)}"
        row.append(text)
    return row


def _accuracy_by_task(
    means: pd.DataFrame,
    spreads: pd.DataFrame,
    tasks: dict[str, Task],
    methods: list[str],
) -> list[str]:
    """Accuracy in each task, and the points between tosica and the best peer."""
    peers = [method for method in methods if method != OURS]
    is_compared = OURS in methods and bool(peers)
    rows = []
    for name, task in tasks.items():
        row = _row_of_task(name, task.title, means, spreads, methods, "accuracy")
        if is_compared:
            accuracy = means["accuracy"].xs(name, level="task").reindex(methods)
            row.append(f"{100 * (accuracy[OURS] - accuracy[peers].max()):+.1f}")
        rows.append(row)
    head = ["accuracy", *(METHODS[method][0] for method in methods)]
    if is_compared:
        head.append("points to the best other")
    return [*table(head, rows), ""]


def _error_by_task(
    runs: pd.DataFrame,
    means: pd.DataFrame,
    spreads: pd.DataFrame,
    tasks: dict[str, Task],
    methods: list[str],
) -> list[str]:
    """Calibration error of tosica in each task, of the best peer, and if tosica was exact."""
    metric = "calibration error"
    if OURS not in methods:
        return []
    peers = [method for method in methods if method != OURS]
    head = [metric, METHODS[OURS][0], "best other"]
    by_chance = None
    if BY_CHANCE in runs:
        by_chance = runs[runs["method"] == OURS].groupby("task")[BY_CHANCE].mean()
        head.append("tosica, if exact")
    rows = []
    for name, task in tasks.items():
        row = _row_of_task(name, task.title, means, spreads, [OURS], metric)
        errors = means[metric].xs(name, level="task").reindex(peers)
        row.append("" if errors.isna().all() else _format(errors.min(), metric))
        if by_chance is not None:
            row.append(_format(by_chance[name], metric) if name in by_chance else "")
        rows.append(row)
    return [*table(head, rows), ""]


def _format(value: float, metric: str) -> str:
    return f"{value:.1f}" if metric == "seconds" else f"{value:.3f}"


def _label_sets(runs: pd.DataFrame, tasks: dict[str, Task]) -> list[str]:
    """Coverage of the label sets of `predict_set` in the reference's batch."""
    runs = runs[[tasks[task].within for task in runs["task"]]]
    covered = pd.DataFrame(list(runs["covered"]), index=runs["task"]).dropna(how="all")
    if covered.empty:
        return []
    rows = []
    for name, shares in covered.groupby(level=0, sort=False):
        spreads = shares.std()
        cells = [f"{mean:.3f} ± {spreads[c]:.3f}" for c, mean in shares.mean().items()]
        rows.append([tasks[str(name)].title, *cells])
    return [
        "Share of cells whose `model.predict_set(allow_empty=True)` contains the right label, in tasks whose",
        "query is of the reference's batch:",
        "",
        *table(["coverage requested", *covered.columns], rows),
        "",
    ]


def main(arguments: list[str] | None = None) -> None:
    """Run missing runs, and write the tables after every task."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--unseen", action="store_true", help="other tasks, and other seeds"
    )
    parser.add_argument("--tasks", nargs="+", help="default: all")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--again", nargs="+", choices=METHODS, default=[])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--note", help="a sentence for the page, such as the load of the machine"
    )
    options = parser.parse_args(arguments)
    quiet()
    name = "accuracy_unseen" if options.unseen else "accuracy"
    all_tasks = UNSEEN if options.unseen else TASKS
    tasks = options.tasks or list(all_tasks)
    if not all_tasks.keys() >= set(tasks):
        parser.error(f"--tasks is of {', '.join(all_tasks)} here")
    result = load(options.out, name)
    # Runs are dropped only if they are repeated now.
    repeated = set(options.again) & set(options.methods)
    result["runs"] = [
        run
        for run in result["runs"]
        if run["method"] not in repeated or run["task"] not in tasks
    ]
    peers = ["celltypist"] if "celltypist" in options.methods else []
    result["versions"] = result.get("versions", {}) | versions("scikit-learn", *peers)
    result["note"] = options.note or result.get("note")
    result["unseen"] = options.unseen
    done = {(run["task"], run["method"], run["seed"]) for run in result["runs"]}
    first_seed = _FIRST_UNSEEN_SEED if options.unseen else 0
    for seed in range(first_seed, first_seed + options.seeds):
        for task in tasks:
            splits = all_tasks[task].splits(options.data, seed)
            for method in options.methods:
                if (task, method, seed) not in done:
                    run = {"task": task, "method": method, "seed": seed}
                    result["runs"].append(run | one_run(splits, method, seed))
            write(options.out, name, result, report(result))


if __name__ == "__main__":
    main()
