"""The figure of each page: ``python -m benchmarks._figures`` draws all of them from the JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

# The palette of Okabe and Ito, which colour-blind readers can tell apart.
OURS, PEER, BEST, *MORE = (
    "#0072b2",
    "#e69f00",
    "#000000",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
)
COLORS = [OURS, PEER, *MORE, BEST]
Results = dict[str, dict[str, Any]]


def accuracy(results: Results) -> Figure:
    """Accuracy of tosica, CellTypist and the best other method in each task."""
    from benchmarks._accuracy_tasks import TASKS, UNSEEN

    runs = pd.DataFrame(
        [*results["accuracy"]["runs"], *results["accuracy_unseen"]["runs"]]
    )
    means = runs.pivot_table(index="task", columns="method", values="accuracy").loc[
        [*TASKS, *UNSEEN][::-1]
    ]
    figure, ax = plt.subplots(figsize=(7, 4.6), layout="constrained")
    best = means.drop(columns="tosica").max(axis=1)
    ax.hlines(means.index, means["tosica"], best, color="0.8", zorder=0)
    ax.plot(best, means.index, "|", color=BEST, ms=13, mew=2, label="best other method")
    ax.plot(means["celltypist"], means.index, "D", color=PEER, ms=5, label="CellTypist")
    ax.plot(means["tosica"], means.index, "o", color=OURS, label="tosica")
    ax.set_yticks(
        range(len(means)), [(TASKS | UNSEEN)[name].what for name in means.index]
    )
    ax.set(xlabel="accuracy, mean of the seeds")
    ax.legend(loc="upper left", frameon=False)
    return figure


def adapt(results: Results) -> Figure:
    """Accuracy before and after learning from the query, of the pairs across batches."""
    from benchmarks.adapt import PAIRS

    runs = pd.DataFrame(
        [run for run in results["adapt"]["runs"] if "without" not in run]
    )
    runs = runs[[not PAIRS[pair].within for pair in runs["pair"]]]
    for when in ("before", "after"):
        runs[when] = [of["accuracy"] for of in runs[f"sum {when}"]]
    means = runs.groupby("pair")[["before", "after"]].mean()
    means = means.loc[[name for name in [*PAIRS][::-1] if name in means.index]]
    figure, ax = plt.subplots(figsize=(7, 1 + 0.25 * len(means)), layout="constrained")
    ax.hlines(means.index, means["before"], means["after"], color="0.8", zorder=0)
    ax.plot(means["before"], means.index, "|", color=BEST, ms=11, mew=2, label="model")
    ax.plot(means["after"], means.index, "o", color=OURS, label="model.adapt(query)")
    ax.set_yticks(range(len(means)), [PAIRS[name].what for name in means.index])
    ax.set(xlabel="accuracy on the query, mean of the seeds")
    ax.legend(loc="upper left", frameon=False)
    return figure


def doubt(results: Results) -> Figure:
    """Coverage of label sets by the number of labelled cells of the query."""
    from benchmarks.label_sets import ACROSS, COVERAGES

    found = pd.DataFrame(results["label_sets"]["summary"])
    level = max(COVERAGES)
    figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
    ax.axhline(level, color="0.6", ls="--", lw=1)
    markers = "os^Dvp*"
    for i, (task, of) in enumerate(found.groupby("task", sort=False)):
        covered = [each["mean"] for each in of[f"coverage {level}"]]
        ax.plot(
            of["labeled"],
            covered,
            f"-{markers[i]}",
            color=COLORS[i],
            ms=5,
            label=ACROSS[str(task)].what,
        )
    ax.set(xlabel="labelled cells of the query", ylabel=f"coverage, {level} asked")
    ax.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def robustness(results: Results) -> Figure:
    """Accuracy by the share of missing genes."""
    from benchmarks.missing_genes import PAIRS

    runs = pd.DataFrame(results["missing_genes"]["runs"])
    figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
    for i, (pair, of) in enumerate(
        runs[runs["pair"] != "counts"].groupby("pair", sort=False)
    ):
        means = of.groupby(["way", "share"])["accuracy"].mean()
        ax.plot(
            100 * means["imputed"].index,
            means["imputed"],
            "-o",
            color=COLORS[i],
            ms=4,
            label=PAIRS[str(pair)][0],
        )
        ax.plot(100 * means["zero"].index, means["zero"], ":", color=COLORS[i])
    ax.plot([], [], "k:", label="zeros, not imputed")
    ax.set(xlabel="missing genes, %", ylabel="accuracy")
    ax.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def new_types(results: Results) -> Figure:
    """How well new cells are found, and how well a type is learnt from few cells."""
    from benchmarks.novelty import QUERIES, SCORES, means

    areas = (
        means(pd.DataFrame(results["novelty"]["runs"]))
        .groupby("query")
        .mean()[list(SCORES)]
        .T.iloc[::-1]
    )
    figure, (left, right) = plt.subplots(
        1,
        2,
        figsize=(9, 3.4),
        layout="constrained",
        gridspec_kw={"width_ratios": [3, 2]},
    )
    for query, color, marker in zip(QUERIES, (OURS, PEER), "oD", strict=True):
        left.plot(
            areas[query], range(len(areas)), marker, color=color, label=QUERIES[query]
        )
    left.axvline(0.5, color="0.6", ls="--", lw=1)
    left.set_yticks(
        range(len(areas)), [SCORES[name].strip("`") for name in areas.index], fontsize=8
    )
    left.set(xlabel="AUROC of new cells")
    left.legend(fontsize=8, frameon=False)
    taught = pd.DataFrame(results["new_labels"]["runs"])
    taught = taught[taught["method"] == "tosica"]
    for i, ((data, query), of) in enumerate(
        taught.groupby(["dataset", "query"], sort=False)
    ):
        recall = of.groupby("labeled")["recall"].mean()
        right.plot(
            recall.index,
            recall,
            f"-{'os^D'[i]}",
            color=COLORS[i],
            ms=5,
            label=f"{data}, {query}",
        )
    right.set(xlabel="labelled cells of the new type", ylabel="recall", ylim=(0, 1.03))
    right.legend(fontsize=8, frameon=False)
    return figure


def scale(results: Results) -> Figure:
    """Cells a second in files of each size."""
    from benchmarks.scale import NAMES, rates

    found = rates(results["scale"]["runs"])["rate"]
    figure, axes = plt.subplots(
        1, 2, figsize=(10, 2.8), layout="constrained", sharey=True
    )
    for ax, task, title in zip(
        axes, ("annotate", "train"), ("annotation", "training"), strict=True
    ):
        of = found[task].unstack()
        for i, way in enumerate(name for name in NAMES if name in of):
            rates_of_way = of[way].dropna()
            ax.plot(
                rates_of_way.index,
                rates_of_way,
                f"-{'os^Dv'[i]}",
                color=COLORS[i],
                ms=5,
                label=NAMES[way].replace("`", ""),
            )
        ax.set(xscale="log", xlabel="cells in the file", title=title)
    axes[0].set(ylabel="cells per second", ylim=(0, None))
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        fontsize=7,
        frameon=False,
        loc="outside right center",
    )
    return figure


def parts(results: Results) -> Figure:
    """Accuracy of the sum, the linear branch and the network in each task."""
    from benchmarks.parts import ALL, PARTS

    runs = pd.DataFrame(results["parts"]["runs"])
    means = runs.pivot_table(index="task", columns="part", values="accuracy")
    means = means.loc[[name for name in ALL if name in means.index][::-1]]
    figure, ax = plt.subplots(figsize=(7, 4.6), layout="constrained")
    ax.hlines(means.index, means.min(axis=1), means.max(axis=1), color="0.8", zorder=0)
    for part, color, marker in zip(PARTS, (OURS, BEST, PEER), "o|D", strict=True):
        ax.plot(
            means[part],
            means.index,
            marker,
            color=color,
            ms=13 if marker == "|" else 6,
            label=PARTS[part],
        )
    ax.set_yticks(range(len(means)), [ALL[name].what for name in means.index])
    ax.set(xlabel="accuracy, mean of the seeds")
    ax.legend(loc="upper left", frameon=False)
    return figure


# Each figure, and what it shows in words.
FIGURES: dict[str, tuple[Callable[[Results], Figure], str]] = {
    "accuracy": (
        accuracy,
        "Accuracy of tosica, CellTypist and the best other method in each task",
    ),
    "doubt": (
        doubt,
        "Coverage of label sets by the number of labelled cells, for seven queries of another batch",
    ),
    "robustness": (
        robustness,
        "Accuracy by the share of genes that are missing at random",
    ),
    "new_types": (
        new_types,
        "AUROC of scores for new cells, and recall of a new type by the number of cells that taught it",
    ),
    "scale": (
        scale,
        "Cells per second by the number of cells in the file, for annotation and training",
    ),
    "adapt": (
        adapt,
        "Accuracy of queries of another batch, before and after learning from them",
    ),
    "parts": (
        parts,
        "Accuracy of the network, the linear branch and their sum in each task",
    ),
}


def draw(page: str, folder: Path, results: Results) -> None:
    """Draw the figure of a page beside the folder of the pages, in ``_static``."""
    figure = FIGURES[page][0](results)
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
    (folder.parent / "_static").mkdir(exist_ok=True)
    figure.savefig(folder.parent / "_static" / f"{page}.png", dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    from benchmarks._report import PAGES

    there = Path("docs/benchmarks")
    for name in FIGURES:
        draw(
            name,
            there,
            {
                part: json.loads((there / f"{part}.json").read_text())
                for part in PAGES[name][1]
            },
        )
