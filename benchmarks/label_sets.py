"""Do label sets hold the true label in another batch, and what do a few labeled cells restore?"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchmarks._accuracy_tasks import LABEL, TASKS, UNSEEN, Task
from benchmarks._models import codes_of_labels, train_default
from benchmarks._results import (
    make_parser,
    quiet,
    table,
    version_lines,
    versions,
    write,
)
from tosica._probabilities import conformal_threshold
from tosica.tl._evaluate import calibration_bins, expected_calibration_error

if TYPE_CHECKING:
    from anndata import AnnData

    import tosica
    from benchmarks._accuracy_tasks import Split

ACROSS: dict[str, Task] = {
    **{
        name: task
        for name, task in TASKS.items()
        if not task.within and "noisy" not in name
    },
    "simulated": UNSEEN["simulated"],
}
N_LABELED = (0, 10, 20, 50, 100)
COVERAGES = (0.8, 0.9)


def runs_of(split: Split, seed: int, draws: int, **kwargs: Any) -> list[dict[str, Any]]:
    """Train one model, recalibrate it by random cells of the query, and score the others."""
    query = split.query.copy()
    model = train_default(split.reference.copy(), seed, **kwargs)
    temperature = model.module.temperature.clone()
    held_out = model.training_.held_out_probabilities
    rng = np.random.default_rng(seed)
    runs = []
    for n_labeled in N_LABELED:
        if n_labeled > query.n_obs // 2:
            continue
        for draw in range(draws if n_labeled else 1):
            model.module.temperature.copy_(temperature)
            model.training_.held_out_probabilities = copy.deepcopy(held_out)
            is_labeled = np.zeros(query.n_obs, dtype=bool)
            is_labeled[rng.choice(query.n_obs, n_labeled, replace=False)] = True
            if n_labeled:
                query.obs["label_seen"] = query.obs[LABEL].astype(str).where(is_labeled)
                model.recalibrate(query, "label_seen")
            run = {"seed": seed, "labeled": n_labeled, "draw": draw}
            runs.append(run | scores(model, query[~is_labeled].copy()))
    return runs


def scores(model: tosica.TOSICA, query: AnnData) -> dict[str, float]:
    """Accuracy, calibration error, and coverage, size and emptiness of the label sets."""
    probabilities = model.predict(query, soft=True).to_numpy()
    truth = codes_of_labels(model, query)
    cells = np.arange(len(truth))
    best = probabilities.argmax(1)
    bins = calibration_bins(best == truth, probabilities.max(1), 10)
    values = {
        "accuracy": float((best == truth).mean()),
        "calibration error": expected_calibration_error(bins),
    }
    held_out = model.training_.held_out_probabilities
    assert held_out is not None
    for coverage in COVERAGES:
        try:
            threshold = conformal_threshold(held_out[0], coverage)
        except ValueError:  # too few cells for this coverage
            continue
        sets = probabilities >= threshold
        is_covered = sets[cells, truth]
        is_empty = ~sets.any(1)
        values[f"coverage {coverage}"] = float(is_covered.mean())
        # By default the best label takes the place of an empty set.
        is_covered_by_default = is_covered | (is_empty & (best == truth))
        values[f"default {coverage}"] = float(is_covered_by_default.mean())
        values[f"size {coverage}"] = float(sets.sum(1).mean())
        values[f"empty {coverage}"] = float(is_empty.mean())
    return values


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds and draws, for each task and number of cells."""
    scored = pd.DataFrame(runs)
    names = [name for name in scored if name not in ("task", "labeled", "seed", "draw")]
    summary = []
    for (task, n_labeled), rows in scored.groupby(["task", "labeled"], sort=False):
        group: dict[str, Any] = {
            "task": task,
            "labeled": int(n_labeled),
            "seeds": int(rows["seed"].nunique()),
            "draws": int(rows["draw"].nunique()),
        }
        for name in names:
            values = rows[name]
            if values.notna().any():
                group[name] = {"mean": float(values.mean()), "std": float(values.std())}
        summary.append(group)
    return summary


def _format(statistics: dict[str, float]) -> str:
    return f"{statistics['mean']:.3f} ± {statistics['std']:.3f}"


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    level = max(COVERAGES)
    groups = {(group["task"], group["labeled"]): group for group in result["summary"]}
    rows = []
    for task in dict.fromkeys(group["task"] for group in result["summary"]):
        of_task = [groups.get((task, n)) for n in N_LABELED]
        measured = [group for group in of_task if group]
        row = [ACROSS[task].title, _format(measured[0][f"default {level}"])]
        for group in of_task:
            coverage = group and group.get(f"coverage {level}")
            row.append(_format(coverage) if coverage else "")
        row.append(f"{measured[-1][f'size {level}']['mean']:.2f}")
        row.append(f"{measured[-1][f'empty {level}']['mean']:.2f}")
        row.append(f"{measured[0]['calibration error']['mean']:.3f}")
        row.append(f"{measured[-1]['calibration error']['mean']:.3f}")
        rows.append(row)
    n_seeds = max(group["seeds"] for group in result["summary"])
    n_draws = max(group["draws"] for group in result["summary"])
    head = [
        "reference → query",
        "no cell, default",
        "no cell labeled",
        *(f"{n} cells" for n in N_LABELED[1:]),
        "labels in a set",
        "empty sets",
        "calibration error, no cell",
        "calibration error, most cells",
    ]
    lines = [
        "# Label sets in another batch",
        "",
        "`python -m benchmarks.label_sets`. `model.recalibrate` takes random cells of a query of another batch",
        "whose labels are known; the others are scored. Share of sets that hold the true label, for a coverage of",
        f"{level} asked of `predict_set` with `allow_empty=True`: mean and standard deviation of {n_seeds} seeds",
        f"with {n_draws} draws each. By default the best label takes the place of an empty set. The size of the",
        "sets and the share of empty ones are with most labeled cells.",
        "",
        *table(head, rows),
        "",
        *version_lines(result),
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=ACROSS, default=list(ACROSS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=10)
    options = parser.parse_args(arguments)
    quiet()
    runs: list[dict[str, Any]] = []
    for task in options.tasks:
        for seed in range(options.seeds):
            for split in ACROSS[task].splits(options.data, seed):
                runs += [
                    {"task": task, **run} for run in runs_of(split, seed, options.draws)
                ]
    result = {"summary": summarize(runs), "versions": versions("scikit-learn")}
    write(options.out, "label_sets", result, report(result))


if __name__ == "__main__":
    main()
