"""Do label sets hold the true label in another batch, and what do a few labelled cells restore?"""

from __future__ import annotations

import argparse
import copy
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scvi

import tosica
from benchmarks._accuracy_tasks import LABEL, TASKS, UNSEEN, Task
from benchmarks._results import table, version_lines, versions, write
from tosica._stats import conformal_threshold
from tosica.tl._evaluate import calibration_bins, expected_calibration_error

if TYPE_CHECKING:
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
_KNOWN = "known"


def runs_of(split: Split, seed: int, draws: int, **train: Any) -> list[dict[str, Any]]:
    """Train one model, recalibrate it by random cells of the query, and score the others."""
    reference, query = split.reference.copy(), split.query.copy()
    tosica.pp.build_mask(reference)
    tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
    scvi.settings.seed = seed
    model = tosica.TOSICA(reference)
    model.train(enable_progress_bar=False, accelerator="cpu", **train)
    trained = copy.deepcopy(
        (model.module.temperature, model.training_.held_out_probabilities)
    )
    rng = np.random.default_rng(seed)
    runs = []
    for n_labeled in N_LABELED:
        if n_labeled > query.n_obs // 2:
            continue
        for draw in range(draws if n_labeled else 1):
            model.module.temperature.copy_(trained[0])
            model.training_.held_out_probabilities = trained[1]
            is_labeled = np.zeros(query.n_obs, dtype=bool)
            is_labeled[rng.choice(query.n_obs, n_labeled, replace=False)] = True
            if n_labeled:
                query.obs[_KNOWN] = query.obs[LABEL].astype(str).where(is_labeled)
                model.recalibrate(query, _KNOWN)
            which = {"seed": seed, "labeled": n_labeled, "draw": draw}
            runs.append({**which, **scores(model, query[~is_labeled].copy())})
    return runs


def scores(model: tosica.TOSICA, query: Any) -> dict[str, float]:
    """Accuracy, calibration error, and coverage, size and emptiness of the label sets."""
    soft = model.predict(query, soft=True)
    truth = pd.Categorical(query.obs[LABEL].astype(str), categories=model.labels).codes
    right = soft.to_numpy().argmax(1) == truth
    found = {
        "accuracy": float(right.mean()),
        "calibration error": expected_calibration_error(
            calibration_bins(right, soft.to_numpy().max(1), 10)
        ),
    }
    assert model.training_.held_out_probabilities is not None
    for coverage in COVERAGES:
        try:
            threshold = conformal_threshold(
                model.training_.held_out_probabilities[0], coverage
            )
        except ValueError:  # too few cells for this coverage
            continue
        sets = soft.to_numpy() >= threshold
        found[f"coverage {coverage}"] = float(sets[np.arange(len(sets)), truth].mean())
        with_best = sets | (
            ~sets.any(1, keepdims=True)
            & np.eye(sets.shape[1], dtype=bool)[soft.to_numpy().argmax(1)]
        )
        found[f"default {coverage}"] = float(
            with_best[np.arange(len(sets)), truth].mean()
        )
        found[f"size {coverage}"] = float(sets.sum(1).mean())
        found[f"empty {coverage}"] = float((~sets.any(1)).mean())
    return found


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds and draws, for each task and number of cells."""
    scored = pd.DataFrame(runs)
    names = [name for name in scored if name not in ("task", "labeled", "seed", "draw")]
    return [
        {
            "task": task,
            "labeled": int(n_labeled),
            "seeds": int(some["seed"].nunique()),
            "draws": int(some["draw"].nunique()),
            **{
                name: {"mean": float(some[name].mean()), "std": float(some[name].std())}
                for name in names
                if some[name].notna().any()
            },
        }
        for (task, n_labeled), some in scored.groupby(["task", "labeled"], sort=False)
    ]


def report(result: dict[str, Any]) -> str:
    """What the page says of a result."""
    level = max(COVERAGES)
    of = {(group["task"], group["labeled"]): group for group in result["summary"]}
    rows = []
    for task in dict.fromkeys(group["task"] for group in result["summary"]):
        groups = [of.get((task, n)) for n in N_LABELED]
        covered = [group and group.get(f"coverage {level}") for group in groups]
        errors = [group["calibration error"]["mean"] for group in groups if group]
        few = next(group for group in reversed(groups) if group)
        rows.append(
            [
                ACROSS[task].title,
                "{mean:.3f} ± {std:.3f}".format(**of[task, 0][f"default {level}"]),
                *(
                    f"{each['mean']:.3f} ± {each['std']:.3f}" if each else ""
                    for each in covered
                ),
                *(
                    f"{few[f'{what} {level}']['mean']:.2f}"
                    for what in ("size", "empty")
                ),
                f"{errors[0]:.3f}",
                f"{errors[-1]:.3f}",
            ]
        )
    n_seeds = max(group["seeds"] for group in result["summary"])
    n_draws = max(group["draws"] for group in result["summary"])
    head = [
        "reference → query",
        "no cell, default",
        "no cell labelled",
        *(f"{n} cells" for n in N_LABELED[1:]),
    ]
    head += [
        "labels in a set",
        "empty sets",
        "calibration error, no cell",
        "calibration error, most cells",
    ]
    lines = [
        "# Label sets in another batch",
        "",
        "Written by `python -m benchmarks.label_sets`. A model annotates cells of another batch. Then",
        "`model.recalibrate` takes random cells of the query whose labels are known, and the others are scored. The",
        f"table has the share of sets that hold the true label, for a coverage of {level} asked of `predict_set` with",
        f"`allow_empty=True`: mean and standard deviation of {n_seeds} seeds with {n_draws} draws each. By default the",
        "best label takes the place of an empty set. The last four columns are the size of the sets and the share of",
        "empty ones with most labelled cells, and the calibration error before and after.",
        *([result["note"]] if result.get("note") else []),
        "",
        *table(head, rows),
        "",
        *version_lines(result),
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--tasks", nargs="+", choices=ACROSS, default=list(ACROSS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--epochs", type=int, help="by default the model's own")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    runs: list[dict[str, Any]] = []
    for task in given.tasks:
        for seed in range(given.seeds):
            for split in ACROSS[task].splits(given.data, seed):
                found = runs_of(split, seed, given.draws, max_epochs=given.epochs)
                runs += [{"task": task, **run} for run in found]
    result = {"summary": summarize(runs), "versions": versions("scikit-learn")}
    write(given.out, "label_sets", result, report(result))


if __name__ == "__main__":
    main()
