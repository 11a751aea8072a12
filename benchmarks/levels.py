"""Are broad and fine labels of one model as good as those of a model of each level alone?

``python -m benchmarks.levels FOLDER`` from the repository's root, with ``sorted_blood.h5ad`` and
``mouse_tissues.h5ad`` in that folder, writes ``levels.json``. It goes on where it ended.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import pandas as pd
from sklearn.model_selection import train_test_split

from benchmarks._models import train_default
from benchmarks._results import (
    load,
    make_parser,
    quiet,
    table,
    version_lines,
    versions,
    write,
)
from benchmarks._scores import scores
from tosica.onto._ontology import is_kind_of, match_label

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData

FINE, BROAD = "cell_type", "broad"
# Tissues by terms of the Cell Ontology; a label is of the first one that its term is a kind of.
TISSUES = {
    "blood": "CL:0000988",
    "endothelium": "CL:0000115",
    "epithelium": "CL:0000066",
    "nervous tissue": "CL:0002319",
    "muscle": "CL:0000187",
}


def lineage(label: str) -> str:
    """Join the T cells of sorted blood."""
    return "T cell" if label.startswith(("CD4+", "CD8+")) else label


def tissue(label: str) -> str:
    """Name the kind of tissue that a cell type of the mouse is of."""
    term = match_label(label).term
    for name, root in TISSUES.items():
        if term is not None and is_kind_of(term, root):
            return name
    return "other"


class Case(NamedTuple):
    """Title, file, share of the cells that are the reference, and the broad label of a fine one."""

    title: str
    file: str
    share: float
    broad: Callable[[str], str]


CASES = {
    "sorted": Case(
        "sorted blood, two thirds → one third", "sorted_blood.h5ad", 2 / 3, lineage
    ),
    "mouse": Case("mouse tissues, halves", "mouse_tissues.h5ad", 1 / 2, tissue),
}


def run(cells: AnnData, share: float, seed: int) -> dict[str, float]:
    """Train a model of both levels and one of each level, and score the labels of each."""
    rows, others = train_test_split(
        range(cells.n_obs),
        train_size=share,
        stratify=cells.obs[FINE],
        random_state=seed,
    )
    reference, query = cells[rows].copy(), cells[others].copy()
    truth = query.obs.astype(str)
    labels_keys = {"both": [BROAD, FINE], "fine": FINE, "broad": BROAD}
    models = {}
    seconds = {}
    for name, labels_key in labels_keys.items():
        begin = time.process_time()
        models[name] = train_default(reference.copy(), seed, labels_key=labels_key)
        seconds[name] = time.process_time() - begin
    both = models["both"]
    both.annotate(query, cutoff=0)
    predicted = {
        "fine": query.obs["tosica_prediction"],
        "broad": query.obs[f"tosica_prediction_{BROAD}"],
    }
    probability = {
        "fine": query.obs["tosica_probability"],
        "broad": query.obs[f"tosica_probability_{BROAD}"],
    }
    result: dict[str, float] = {
        "labels": len(both.labels),
        "groups": len(models["broad"].labels),
        "cells": query.n_obs,
    }
    for level, key in (("broad", BROAD), ("fine", FINE)):
        alone = models[level].predict(query, soft=True)
        for name, labels, certainty in (
            (level, predicted[level], probability[level]),
            (f"{level} alone", alone.idxmax(axis=1), alone.max(axis=1)),
        ):
            of_level = scores(
                truth[key].to_numpy(),
                labels.astype(str).to_numpy(),
                certainty.to_numpy(),
            )
            result[name] = of_level["accuracy"]
            result[f"{name} calibration"] = of_level["calibration error"]
    group_of = dict(reference.obs[[FINE, BROAD]].astype(str).to_numpy())
    groups = predicted["fine"].astype(str).map(group_of)
    result["inconsistent"] = float((groups != predicted["broad"].astype(str)).mean())
    result["group weight"] = both.training_.regression.group_weight
    result["seconds"] = seconds["both"]
    result["seconds alone"] = seconds["fine"]
    return result


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    runs = pd.DataFrame(result["runs"])
    rows = []
    for name, of_case in runs.groupby("case", sort=False):
        title = CASES[str(name)].title
        n_labels = f"{of_case['labels'].iat[0]} in {of_case['groups'].iat[0]}"
        for level in ("broad", "fine"):
            points = 100 * (of_case[level] - of_case[f"{level} alone"])
            accuracies = [of_case[key].mean() for key in (level, f"{level} alone")]
            errors = [
                of_case[f"{key} calibration"].mean()
                for key in (level, f"{level} alone")
            ]
            rows.append(
                [
                    title,
                    n_labels,
                    len(of_case),
                    level,
                    *(f"{accuracy:.3f}" for accuracy in accuracies),
                    f"{points.mean():+.1f}",
                    f"{points.min():+.1f}",
                    *(f"{error:.3f}" for error in errors),
                ]
            )
            title = n_labels = ""
    head = ["", "labels", "seeds", "level", "accuracy", "alone"]
    head += ["points", "worst seed", "calibration error", "alone"]
    return "\n".join(
        [
            "# Labels of two levels",
            "",
            "`python -m benchmarks.levels`. A model of `labels_key=[broad, fine]`, beside a model of each column",
            "alone: accuracy, its difference in points, and calibration error. Broad labels of the mouse are kinds of",
            "tissue.",
            "",
            *table(head, rows),
            "",
            f"{runs['inconsistent'].max():.0%} of the fine labels are not of their broad one.",
            "",
            *version_lines(result),
        ]
    )


def main(arguments: list[str] | None = None) -> None:
    """Run all cases, and write the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    quiet()
    result = load(options.out, "levels")
    finished = {(run["case"], run["seed"]) for run in result["runs"]}
    for seed in range(options.seeds):
        for name in options.cases:
            if (name, seed) in finished:
                continue
            case = CASES[name]
            cells = ad.read_h5ad(options.data / case.file)
            labels = cells.obs[FINE].astype(str)
            cells.obs[BROAD] = pd.Categorical(labels.map(case.broad))
            scores = run(cells, case.share, seed)
            result["runs"].append({"case": name, "seed": seed, **scores})
            print(json.dumps(result["runs"][-1]), flush=True)
            result["versions"] = versions()
            result["runs"].sort(
                key=lambda run: (list(CASES).index(run["case"]), run["seed"])
            )
            write(options.out, "levels", result, report(result))


if __name__ == "__main__":
    main()
