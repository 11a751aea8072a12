"""The figures of the pages, drawn from the JSON files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import pandas as pd

from benchmarks import adapt, explanation, label_sets, missing_genes, novelty, parts
from benchmarks import scale as scale_script
from benchmarks._accuracy_tasks import TASKS, UNSEEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito, which color-blind readers can tell apart.
OURS = "#0072b2"
PEER = "#e69f00"
BEST = "#000000"
COLORS = [OURS, PEER, "#009e73", "#cc79a7", "#56b4e9", "#d55e00", BEST]
MARKERS = "os^Dvp*"
Results = dict[str, dict[str, Any]]


def draw_accuracy(results: Results) -> Figure:
    """Accuracy of tosica, CellTypist and the best other method in each task."""
    tasks = TASKS | UNSEEN
    runs = pd.DataFrame(
        [*results["accuracy"]["runs"], *results["accuracy_unseen"]["runs"]]
    )
    means = runs.pivot_table(index="task", columns="method", values="accuracy")
    means = means.loc[[*tasks][::-1]]
    best = means.drop(columns="tosica").max(axis=1)
    figure, ax = plt.subplots(figsize=(7, 4.6), layout="constrained")
    ax.hlines(means.index, means["tosica"], best, color="0.8", zorder=0)
    ax.plot(best, means.index, "|", color=BEST, ms=13, mew=2, label="best other method")
    ax.plot(means["celltypist"], means.index, "D", color=PEER, ms=5, label="CellTypist")
    ax.plot(means["tosica"], means.index, "o", color=OURS, label="tosica")
    ax.set_yticks(range(len(means)), [tasks[name].title for name in means.index])
    ax.set(xlabel="accuracy, mean of the seeds")
    ax.legend(loc="upper left", frameon=False)
    return figure


def draw_adapt(results: Results) -> Figure:
    """Accuracy before and after learning from the query, of the pairs across batches."""
    runs = pd.DataFrame(
        [
            {
                "pair": run["pair"],
                "before": run["sum before"]["accuracy"],
                "after": run["sum after"]["accuracy"],
            }
            for run in results["adapt"]["runs"]
            if "without" not in run and not adapt.PAIRS[run["pair"]].within
        ]
    )
    means = runs.groupby("pair")[["before", "after"]].mean()
    means = means.loc[[pair for pair in [*adapt.PAIRS][::-1] if pair in means.index]]
    figure, ax = plt.subplots(figsize=(7, 1 + 0.25 * len(means)), layout="constrained")
    ax.hlines(means.index, means["before"], means["after"], color="0.8", zorder=0)
    ax.plot(means["before"], means.index, "|", color=BEST, ms=11, mew=2, label="model")
    ax.plot(means["after"], means.index, "o", color=OURS, label="model.adapt(query)")
    ax.set_yticks(range(len(means)), [adapt.PAIRS[pair].title for pair in means.index])
    ax.set(xlabel="accuracy on the query, mean of the seeds")
    ax.legend(loc="upper left", frameon=False)
    return figure


def draw_doubt(results: Results) -> Figure:
    """Coverage of label sets by the number of labeled cells of the query."""
    summary = pd.DataFrame(results["label_sets"]["summary"])
    level = max(label_sets.COVERAGES)
    figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
    ax.axhline(level, color="0.6", ls="--", lw=1)
    for i, (task, rows) in enumerate(summary.groupby("task", sort=False)):
        ax.plot(
            rows["labeled"],
            [coverage["mean"] for coverage in rows[f"coverage {level}"]],
            f"-{MARKERS[i]}",
            color=COLORS[i],
            ms=5,
            label=label_sets.ACROSS[str(task)].title,
        )
    ax.set(xlabel="labeled cells of the query", ylabel=f"coverage, {level} asked")
    _place_legend_outside(ax)
    return figure


def draw_robustness(results: Results) -> Figure:
    """Accuracy by the share of missing genes."""
    runs = pd.DataFrame(results["missing_genes"]["runs"])
    runs = runs[runs["pair"] != "counts"]
    figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
    for i, (pair, rows) in enumerate(runs.groupby("pair", sort=False)):
        means = rows.groupby(["way", "share"])["accuracy"].mean()
        percent = 100 * means["imputed"].index
        title = missing_genes.PAIRS[str(pair)][0]
        ax.plot(percent, means["imputed"], "-o", color=COLORS[i], ms=4, label=title)
        ax.plot(percent, means["zero"], ":", color=COLORS[i])
    ax.plot([], [], "k:", label="zeros, not imputed")
    ax.set(xlabel="missing genes, %", ylabel="accuracy")
    _place_legend_outside(ax)
    return figure


def _place_legend_outside(ax: Axes) -> None:
    ax.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def draw_new_types(results: Results) -> Figure:
    """AUROC of new cells by score, and recall of a type that few cells taught."""
    figure, (auroc_ax, recall_ax) = plt.subplots(
        1,
        2,
        figsize=(9, 3.4),
        layout="constrained",
        gridspec_kw={"width_ratios": [3, 2]},
    )
    means = novelty.means(pd.DataFrame(results["novelty"]["runs"]))
    areas = means.groupby("query").mean()[list(novelty.SCORES)].T.iloc[::-1]
    styles = zip(novelty.QUERIES.items(), (OURS, PEER), "oD", strict=True)
    for (query, title), color, marker in styles:
        auroc_ax.plot(areas[query], range(len(areas)), marker, color=color, label=title)
    auroc_ax.axvline(0.5, color="0.6", ls="--", lw=1)
    titles = [novelty.SCORES[name].strip("`") for name in areas.index]
    auroc_ax.set_yticks(range(len(areas)), titles, fontsize=8)
    auroc_ax.set(xlabel="AUROC of new cells")
    auroc_ax.legend(fontsize=8, frameon=False)

    runs = pd.DataFrame(results["new_labels"]["runs"])
    runs = runs[runs["method"] == "tosica"]
    groups = runs.groupby(["dataset", "query"], sort=False)
    for i, ((dataset, query), rows) in enumerate(groups):
        recall = rows.groupby("labeled")["recall"].mean()
        recall_ax.plot(
            recall.index,
            recall,
            f"-{MARKERS[i]}",
            color=COLORS[i],
            ms=5,
            label=f"{dataset}, {query}",
        )
    recall_ax.set(
        xlabel="labeled cells of the new type", ylabel="recall", ylim=(0, 1.03)
    )
    recall_ax.legend(fontsize=8, frameon=False)
    return figure


def draw_scale(results: Results) -> Figure:
    """Cells a second in files of each size."""
    rates = scale_script.rates(results["scale"]["runs"])["rate"]
    figure, axes = plt.subplots(
        1, 2, figsize=(10, 2.8), layout="constrained", sharey=True
    )
    titles = {"annotate": "annotation", "train": "training"}
    for ax, (task, title) in zip(axes, titles.items(), strict=True):
        by_way = rates[task].unstack()
        ways = [way for way in scale_script.NAMES if way in by_way]
        for i, way in enumerate(ways):
            measured = by_way[way].dropna()
            ax.plot(
                measured.index,
                measured,
                f"-{MARKERS[i]}",
                color=COLORS[i],
                ms=5,
                label=scale_script.NAMES[way].replace("`", ""),
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


def draw_parts(results: Results) -> Figure:
    """Accuracy of the sum, the linear branch and the network in each task."""
    runs = pd.DataFrame(results["parts"]["runs"])
    means = runs.pivot_table(index="task", columns="part", values="accuracy")
    means = means.loc[[task for task in parts.ALL if task in means.index][::-1]]
    figure, ax = plt.subplots(figsize=(7, 4.6), layout="constrained")
    ax.hlines(means.index, means.min(axis=1), means.max(axis=1), color="0.8", zorder=0)
    styles = {
        "sum": (OURS, "o", 6),
        "branch": (BEST, "|", 13),
        "network": (PEER, "D", 6),
    }
    for name, (color, marker, size) in styles.items():
        ax.plot(
            means[name],
            means.index,
            marker,
            color=color,
            ms=size,
            label=parts.PARTS[name],
        )
    ax.set_yticks(range(len(means)), [parts.ALL[task].title for task in means.index])
    ax.set(xlabel="accuracy, mean of the seeds")
    ax.legend(loc="upper left", frameon=False)
    return figure


def draw_explanation(results: Results) -> Figure:
    """Areas under the curves of deletion and insertion."""
    deletion = results["explanation"]["parts"]["deletion"]
    figure, axes = plt.subplots(
        1,
        len(deletion),
        figsize=(4 * len(deletion), 2.4),
        layout="constrained",
        squeeze=False,
    )
    for ax, (name, measured) in zip(axes[0], deletion.items(), strict=True):
        areas = pd.DataFrame(measured["areas"])
        areas = areas.pivot(index="order", columns="change", values="area")
        areas.loc[["genes", "gene sets", "random"]].plot.barh(
            ax=ax, color=[OURS, "#d55e00"], legend=False
        )
        ax.invert_yaxis()
        ax.set(
            title=explanation.DATASETS[name][0],
            xlabel="area under the probability",
            ylabel="",
            xlim=(0, 1),
        )
    handles = axes[0, -1].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right upper", fontsize=8)
    return figure


# Function of each figure, by page.
FIGURES: dict[str, Callable[[Results], Figure]] = {
    "accuracy": draw_accuracy,
    "doubt": draw_doubt,
    "robustness": draw_robustness,
    "new_types": draw_new_types,
    "scale": draw_scale,
    "adapt": draw_adapt,
    "parts": draw_parts,
    "explanation": draw_explanation,
}
