"""Ranks of marker sets in explanations, and stability of explanations.

``python -m benchmarks.markers FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``docs/benchmarks/markers.md`` and ``markers.json``.
Marker sets of one half of the cells are added to the default gene sets, and a model is trained on
the other half. The benchmark ranks each label's own markers in the readings of that half. It also
measures whether the first gene sets of a label depend on the seed or on the cells of the reference,
and how fast the probability of a label falls when gene sets are removed. If decoupler is installed
(``benchmarks/requirements.txt``), its scores of the same gene sets are included.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections import Counter
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchmarks._accuracy_tasks import LABEL, few, kang, lung, pbmc68k
from benchmarks._marker_readings import (
    N_CELLS,
    N_LEADING,
    N_MARKERS,
    READINGS,
    deletion_areas,
    jaccard,
    leading,
    marker_name,
    marker_sets,
    own_ranks,
    readings,
    train,
)
from benchmarks._report import table, version_lines, versions, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData

DATASETS: dict[str, tuple[str, Callable[[Path], AnnData]]] = {
    "kang": ("Kang", kang),
    "pbmc68k": ("pbmc68k", pbmc68k),
    "lung": ("lung", lung),
}
# Labels with fewer cells are left out.
FEWEST = 30
# Cells from which gene sets are removed.
N_DELETED = 200
# The default readings.
SHOWN = ("presence, mean", "attribution, mean")
RANDOM = "random order"
SAME, HALVES = "other seed, same reference", "halves of the reference"


def asked(adata: AnnData) -> list[str]:
    """Labels with enough cells."""
    n_cells = adata.obs[LABEL].value_counts()
    return sorted(str(label) for label in n_cells.index[n_cells >= FEWEST])


def halves(adata: AnnData, seed: int) -> tuple[AnnData, AnnData]:
    """Two halves with as many cells of each label."""
    ((first, second),) = few(adata, adata.n_obs // 2, seed)
    return first, second


def own_markers(adata: AnnData, seed: int) -> list[dict[str, Any]]:
    """Ranks of each label's own markers, which come from the other half of the cells."""
    of_markers, taught = halves(adata, seed)
    model = train(taught.copy(), seed, marker_sets(of_markers))
    labels = asked(adata)
    found = readings(model, taught, labels)
    runs = []
    for label in labels:
        ranks, first = own_ranks(found, label)
        kept = marker_name(label) in model.gene_sets
        which = {"seed": seed, "label": label, "kept": kept, "tokens": len(model.gene_sets)}
        runs.append(which | {"ranks": ranks, "first": first})
    return runs


def stability(adata: AnnData, n_seeds: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Overlap of first gene sets between seeds and between halves, and areas of deletion.

    All models explain the same cells, which none of them was trained on.
    """
    held_out, reference = halves(adata, 0)
    labels = asked(adata)
    shared: list[dict[str, Any]] = []
    areas: list[dict[str, Any]] = []

    def compare(kind: str, first: dict[str, set[str]], second: dict[str, set[str]]) -> None:
        shared.extend(
            {"kind": kind, "label": label, "jaccard": jaccard(first[label], second[label])} for label in labels
        )

    of_seeds = []
    for seed in range(n_seeds):
        model = train(reference.copy(), seed)
        of_seeds.append(leading(model, held_out, labels))
        found = deletion_areas(model, held_out, N_DELETED)
        areas += [{"seed": seed, "order": name, "area": area} for name, area in found.items()]
        parts = [train(half.copy(), seed) for half in halves(reference, seed)]
        compare(HALVES, *(leading(part, held_out, labels) for part in parts))
    for first, second in combinations(of_seeds, 2):
        compare(SAME, first, second)
    return shared, areas


def report(result: dict[str, Any]) -> str:
    """The page."""
    runs = pd.DataFrame(result["runs"])
    there = [name for name in DATASETS if name in set(runs["dataset"])]
    lines = [
        "# Markers among gene sets",
        "",
        "Written by `python -m benchmarks.markers`. The markers of each label are the first "
        f"{N_MARKERS} genes of scanpy's t-test in one half of the",
        "cells. These sets are added to the Gene Ontology (`human_gobp`), and a model with "
        "defaults is trained on the other half. For each",
        f"label of at least {FEWEST} cells, the tables show the rank of its own markers among all "
        "tokens in that half. There are",
        f"{runs['seed'].nunique()} seeds, each with its own halves and markers, and at most "
        f"{runs['tokens'].max()} tokens. A marker set is a token only if the model",
        "chooses it. If not, its rank is the number of tokens plus one, which was so in "
        f"{(~runs['kept']).sum()} of {len(runs)} cases.",
        "",
        "| reading | definition |",
        "| --- | --- |",
        f"| presence, attribution | {{func}}`~tosica.tl.attribute` of up to {N_CELLS} cells of the "
        "label, with the label as `target` |",
        "| mean | mean over the label's cells, without a comparison |",
        "| rank-sum test | {func}`~tosica.tl.rank_gene_sets` against all other cells |",
        "| expression alone | scores of the same tokens without a model: mean of the label minus mean of all others |",
        *([result["note"]] if result.get("note") else []),
        "",
    ]
    for title, of in [
        *((DATASETS[name][0], runs[runs["dataset"] == name]) for name in there),
        *([("All data", runs)] if len(there) > 1 else []),
    ]:
        head = ["", "first", "among the first five", "median rank"]
        lines += [f"## {title}", "", *table(head, _summary(of)), ""]
    lines += _not_first(runs)
    lines += _stability(pd.DataFrame(result["stability"]))
    lines += _areas(pd.DataFrame(result["areas"]))
    lines += version_lines(result)
    return "\n".join(lines)


def _summary(runs: pd.DataFrame) -> list[list[str]]:
    """How often each reading ranks the own markers first."""
    ranks = pd.DataFrame(list(runs["ranks"]))
    rows = [
        [
            what,
            f"{(ranks[name] == 1).mean():.0%}",
            f"{(ranks[name] <= 5).mean():.0%}",
            f"{ranks[name].median():.1f}".removesuffix(".0"),
        ]
        for name, what in READINGS.items()
        if name in ranks
    ]
    chance = runs["kept"] / runs["tokens"]
    middle = np.where(runs["kept"], (runs["tokens"] + 1) / 2, runs["tokens"] + 1)
    expected = [f"{chance.mean():.1%}", f"{5 * chance.mean():.1%}", f"{np.median(middle):.0f}"]
    return [*rows, [f"*{RANDOM}*", *expected]]


def _not_first(runs: pd.DataFrame) -> list[str]:
    """Labels whose markers were not always first, and the gene sets that were."""
    rows = []
    for (dataset, label), of in runs.groupby(["dataset", "label"], sort=False):
        row = [DATASETS[dataset][0], label]
        for name in SHOWN:
            ranks = [each[name] for each in of["ranks"]]
            others = Counter(
                first[name]
                for first, rank in zip(of["first"], ranks, strict=True)
                if rank != 1 and first[name] != marker_name(label)
            )
            row.append(", ".join(f"{rank:g}" for rank in ranks))
            row.append("; ".join(f"{other} ({n})" for other, n in others.most_common(3)))
        if any(each[name] != 1 for each in of["ranks"] for name in SHOWN):
            rows.append(row)
    head = ["", "label"]
    for name in SHOWN:
        head += [f"ranks by {name.removesuffix(', mean')}", "first instead (number of seeds)"]
    return [
        "## Labels whose markers are not always first",
        "",
        "The table has the rank of the own markers with each seed, by the mean over the label's cells.",
        "",
        *(table(head, rows) if rows else ["There are none."]),
        "",
    ]


def _stability(shared: pd.DataFrame) -> list[str]:
    """Overlap of the first gene sets of models."""
    if shared.empty:
        return []
    rows = []
    for dataset, of in shared.groupby("dataset", sort=False):
        row = [DATASETS[dataset][0]]
        for kind in (SAME, HALVES):
            mine = of[of["kind"] == kind]
            if mine.empty:
                row += ["", ""]
                continue
            by_label = mine.groupby("label")["jaccard"].mean()
            least = f"{by_label.min():.2f} ({by_label.idxmin()})"
            row += [f"{mine['jaccard'].mean():.2f} ± {mine['jaccard'].std():.2f}", least]
        rows.append(row)
    head = ["", SAME, "least stable label", HALVES, "least stable label"]
    return [
        "## Stability",
        "",
        f"The {N_LEADING} gene sets with the largest mean presence of each label, in cells that "
        "no model was trained on, are compared by the",
        "Jaccard index: between models of the same reference with other seeds, and between models "
        "of two halves of a reference.",
        "Values are means ± standard deviation over pairs and labels. Modules have other genes and "
        "names in each half, so they always differ.",
        "",
        *table(head, rows),
        "",
    ]


def _areas(areas: pd.DataFrame) -> list[str]:
    """Areas of deletion."""
    if areas.empty:
        return []
    of = areas.groupby(["order", "dataset"], sort=False)["area"].agg(["mean", "std"])
    datasets = list(dict.fromkeys(areas["dataset"]))
    rows = [
        [order, *("{:.3f} ± {:.3f}".format(*of.loc[(order, name)]) for name in datasets)]
        for order in dict.fromkeys(areas["order"])
    ]
    return [
        "## Deletion",
        "",
        "Values are areas under the probability of a cell's label while gene sets are removed in "
        "the order of a reading",
        f"({{func}}`~tosica.tl.faithfulness`), in {N_DELETED} cells that the model was not trained "
        "on. A smaller area is more faithful. They are means ±",
        "standard deviation over the seeds.",
        "",
        *table(["order", *(DATASETS[name][0] for name in datasets)], rows),
        "",
    ]


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the page after every part."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning|scanpy")
    with_decoupler = find_spec("decoupler") is not None
    result: dict[str, Any] = {
        "versions": versions(*(["decoupler"] if with_decoupler else [])),
        "note": None if with_decoupler else "decoupler was not installed, so it has no row.",
        "runs": [],
        "stability": [],
        "areas": [],
    }
    for name in given.datasets:
        adata = DATASETS[name][1](given.data)
        for seed in range(given.seeds):
            result["runs"] += [{"dataset": name, **run} for run in own_markers(adata, seed)]
        write(given.out, "markers", result, report(result))
        shared, areas = stability(adata, given.seeds)
        result["stability"] += [{"dataset": name, **row} for row in shared]
        result["areas"] += [{"dataset": name, **row} for row in areas]
        write(given.out, "markers", result, report(result))


if __name__ == "__main__":
    main()
