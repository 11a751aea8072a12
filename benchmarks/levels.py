"""Are broad and fine labels of one model as good as those of a model of each level alone?

``python -m benchmarks.levels FOLDER`` from the repository's root, with ``sorted_blood.h5ad`` and
``mouse_tissues.h5ad`` in that folder, writes ``levels.json``. It goes on where it ended.
"""

from __future__ import annotations

import json
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
    """Train a model of both levels and one of the broad level, and score the labels of each.

    The model of the fine level alone is the one of both without its groups: it gives each cell the
    most probable label.
    """
    rows, others = train_test_split(
        range(cells.n_obs),
        train_size=share,
        stratify=cells.obs[FINE],
        random_state=seed,
    )
    reference, query = cells[rows].copy(), cells[others].copy()
    both = train_default(reference.copy(), seed, labels_key=[BROAD, FINE])
    broad = train_default(reference.copy(), seed, labels_key=BROAD)
    both.annotate(query, cutoff=0)
    fine_label = query.obs["tosica_prediction"].astype(str)
    broad_label = query.obs[f"tosica_prediction_{BROAD}"].astype(str)
    group_of = dict(reference.obs[[FINE, BROAD]].astype(str).to_numpy())
    most_probable = both.predict(query, soft=True).idxmax(axis=1).astype(str)
    truth = query.obs.astype(str)
    return {
        "labels": len(both.labels),
        "groups": len(broad.labels),
        "cells": query.n_obs,
        "fine": float((fine_label == truth[FINE]).mean()),
        "fine alone": float((most_probable == truth[FINE]).mean()),
        "broad": float((broad_label == truth[BROAD]).mean()),
        "broad alone": float((broad.predict(query) == truth[BROAD]).mean()),
        "inconsistent": float((fine_label.map(group_of) != broad_label).mean()),
    }


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    runs = pd.DataFrame(result["runs"])
    rows = []
    for name, of_case in runs.groupby("case", sort=False):
        n_labels = f"{of_case['labels'].iat[0]} in {of_case['groups'].iat[0]}"
        row = [CASES[str(name)].title, n_labels, len(of_case)]
        for level in ("broad", "fine"):
            row += [
                f"{of_case[column].mean():.3f}" for column in (level, f"{level} alone")
            ]
            difference = of_case[level] - of_case[f"{level} alone"]
            row.append(f"{100 * difference.mean():+.1f}")
        row.append(f"{of_case['inconsistent'].max():.0%}")
        rows.append(row)
    head = ["", "labels", "seeds"]
    head += ["broad", "alone", "points", "fine", "alone", "points", "inconsistent"]
    return "\n".join(
        [
            "# Labels of two levels",
            "",
            "`python -m benchmarks.levels`. A model of `labels_key=[broad, fine]`, beside a model of each column",
            "alone: accuracy, its difference in points, and the share of cells whose fine label is not of their",
            "broad one. Broad labels of the mouse are kinds of tissue.",
            "",
            *table(head, rows),
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
