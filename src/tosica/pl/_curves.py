"""Curves and histograms: how far to trust a model, its training, and the genes of its mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter
from scipy.integrate import trapezoid

from tosica._checks import (
    Constraint,
    InstanceOf,
    Integer,
    Names,
    OneOf,
    String,
    as_names,
    only_known,
)
from tosica._limits import LIMITS
from tosica._obs import BLUE, GRAY, GREEN, ORANGE, read_groups, read_numbers
from tosica._settings import format_thousands
from tosica.get import mask_coverage as coverage_table
from tosica.model import TOSICA
from tosica.pl._figure import (
    LINE,
    NAME_SIZE,
    TITLE_SIZE,
    Canvas,
    FigureOptions,
    NewFigure,
    group_colors,
    line_count,
    plain,
    plot_function,
)
from tosica.pl._names import wrap
from tosica.tl import reliability as reliability_table
from tosica.tl._evaluate import expected_calibration_error

if TYPE_CHECKING:
    from typing import Unpack

    from anndata import AnnData
    from matplotlib.figure import Figure
    from mudata import MuData
    from numpy.typing import NDArray

    from tosica._checks import Wrong


@plot_function(n_bins=Integer())
def reliability(
    adata: AnnData,
    labels_key: str,
    *,
    key: str = "tosica",
    n_bins: int = 10,
    title: str | None = None,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Reliability diagram: share of correct labels against the probability of the label.

    Points on the diagonal are well calibrated. Above it the model is underconfident, below it
    overconfident. Error bars are 95 % intervals, bars in the background are shares of the cells.
    The title has the expected calibration error. The table is that of
    :func:`tosica.tl.reliability`.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated and whose labels are known. It is not changed.
    labels_key
        Column of ``adata.obs`` with the known labels, named as the predictions are.
    key
        ``key_added`` of ``model.annotate``.
    n_bins
        Number of bins of equal width between 0 and 1.
    title
        Title instead of the expected calibration error.
    {figure}

    Returns
    -------
    {returns}

    Raises
    ------
    KeyError, TypeError, ValueError
        As :func:`tosica.tl.reliability`.
    {raises}

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.obs["tosica_prediction"] = adata.obs["bulk_labels"]
    >>> adata.obs["tosica_probability"] = 0.95
    >>> axes = tosica.pl.reliability(adata, "bulk_labels", show=False)
    >>> axes.get_title()
    'expected calibration error 5.0 %'
    """
    canvas = Canvas(**figure)
    table = reliability_table(adata, labels_key, key=key, n_bins=n_bins)
    ax = canvas.axes((5.5, 3.6))
    ax.bar(
        (table["low"] + table["high"]) / 2,
        table["n_cells"] / table["n_cells"].sum(),
        width=0.92 / n_bins,
        color=plt.rcParams["text.color"],
        alpha=0.15,
        linewidth=0,
        label="share of cells",
    )
    ax.plot(
        [0, 1],
        [0, 1],
        color=plt.rcParams["text.color"],
        linewidth=0.8,
        linestyle="--",
        label="perfect calibration",
    )
    interval = table[["accuracy_low", "accuracy_high"]].to_numpy().T
    ax.errorbar(
        table["probability"],
        table["accuracy"],
        yerr=np.abs(interval - table["accuracy"].to_numpy()),
        fmt="o-",
        markersize=4.5,
        linewidth=1.2,
        elinewidth=1.2,
        color=BLUE,
        label="correct labels, with\n95 % interval",
    )
    ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="probability of the label", ylabel="share")
    ax.set_aspect("equal")
    plain(ax)
    _add_legend(canvas, ax)
    if title is None:
        title = f"expected calibration error {100 * expected_calibration_error(table):.1f} %"
    ax.set_title(title, fontsize=10)
    return canvas.finish(ax)


@plot_function(groupby=String(optional=True), of=OneOf("cell", "cluster"))
def novelty(
    adata: AnnData,
    groupby: str | None = None,
    *,
    of: Literal["cell", "cluster"] = "cell",
    key: str = "tosica",
    cutoff: float | None = None,
    max_name_length: int = 40,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Box plots of the novelty of cells, one for each group, the highest median on top.

    A box spans the quartiles and has a line at the median. Whiskers end at the furthest cell
    within 1.5 times the interquartile range, dots are the cells beyond. Groups of fewer than five
    cells are drawn as dots only. The dotted line is where the p-value of the novelty is 0.05, if
    the p-values are there and no ``cutoff`` is given.

    Parameters
    ----------
    adata
        Query that :func:`tosica.tl.novelty` has scored, or ``model.annotate`` cell by cell. It is
        not changed.
    groupby
        Column of ``adata.obs`` with the groups; by default the predictions.
    of
        Draw the novelty of each cell, or of its cluster, which has a scale of its own.
    key
        ``key_added`` of ``model.annotate``.
    cutoff
        Novelty at which to draw a line, instead of that of the p-value.
    {max_name_length}
    {figure}

    Returns
    -------
    {returns}

    Raises
    ------
    KeyError
        If a column is missing.
    TypeError
        If ``groupby`` cannot be read as groups.
    ValueError
        If cells have no group, or ``of`` is something else.
    {raises}

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.obs["tosica_novelty"] = adata.obs["percent_mito"]
    >>> axes = tosica.pl.novelty(adata, "phase", show=False)
    >>> len(axes.get_yticklabels())
    3
    """
    canvas = Canvas(**figure)
    column = f"{key}_novelty" + ("_cluster" if of == "cluster" else "")
    if column not in adata.obs:
        raise KeyError(f"adata.obs has no column {column!r}: run tosica.tl.novelty(adata, model, key={key!r}) first.")
    groupby = f"{key}_prediction" if groupby is None else groupby
    groups = read_groups(adata, groupby)
    values = read_numbers(adata, column)
    medians = pd.Series(values).groupby(pd.Series(groups), observed=True).median()
    order = [str(name) for name in medians.sort_values(ascending=False).index]
    names = wrap(order, max_name_length)
    height = max(0.24, LINE * line_count(names)) * len(order)
    ax = canvas.axes((7, height + 1))
    color = plt.rcParams["text.color"]
    line = {"color": color, "linewidth": 0.8}
    colors = group_colors(adata, groupby)
    # seaborn's box plot uses what newer versions of matplotlib deprecate.
    for position, name in enumerate(order):
        of_group = values[np.asarray(groups) == name]
        # So few cells have no quartiles worth a box.
        if len(of_group) < 5:
            face = {"markerfacecolor": colors[name], "markeredgecolor": color}
            ax.plot(of_group, np.full(len(of_group), position), "o", markersize=5, **face)
            continue
        ax.boxplot(
            [of_group],
            orientation="horizontal",
            positions=[position],
            widths=0.7,
            patch_artist=True,
            boxprops={"edgecolor": color, "facecolor": colors[name], "linewidth": 0.8},
            whiskerprops=line,
            capprops=line,
            medianprops=line | {"linewidth": 1.4},
            flierprops={"marker": ".", "markersize": 3, "markeredgecolor": color},
            manage_ticks=False,
        )
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.set_yticks(range(len(order)), names, fontsize=NAME_SIZE, linespacing=1.0)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("novelty" if of == "cell" else "novelty of clusters", fontsize=TITLE_SIZE)
    ax.set_ylabel(groupby, fontsize=TITLE_SIZE)
    plain(ax)
    if cutoff is not None:
        _mark(ax, cutoff, "cutoff", ORANGE, "--")
    elif (limit := _novelty_limit(adata, values, f"{column}_pvalue")) is not None:
        _mark(ax, limit, f"p = {LIMITS.pvalue:g}", GRAY, ":")
    canvas.fit(ax, (2.8, height))
    return canvas.finish(ax)


def _novelty_limit(adata: AnnData, values: NDArray[np.float64], column: str) -> float | None:
    """Novelty that divides the cells with a p-value of at most 5 % from the others, if any does."""
    if column not in adata.obs:
        return None
    is_new = read_numbers(adata, column) <= LIMITS.pvalue
    if is_new.all() or not is_new.any():
        return None
    low, high = values[~is_new].max(), values[is_new].min()
    return float(low + high) / 2 if low <= high else None


def _mark(ax: Axes, x: float, name: str, color: str, line_style: str) -> None:
    """Draw a vertical line, with its name above the axes, where it hides nothing."""
    ax.axvline(x, linestyle=line_style, linewidth=1.2, color=color)
    ax.text(x, 1.01, name, transform=ax.get_xaxis_transform(), ha="center", va="bottom", fontsize=8)


def _add_legend(canvas: Canvas, ax: Axes, title: str | None = None) -> None:
    """Put the legend beside the axes of a new figure, where it hides nothing."""
    place: Any = {"loc": "best"}
    if canvas.ax is None:
        place = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
    ax.legend(title=title, frameon=False, fontsize=9, **place)


# --------------------------------------------------------------------------- faithfulness

_ORDERS = {"genes": (BLUE, "o"), "gene sets": (ORANGE, "s"), "random": (GRAY, "x")}
_CHANGES = {"deletion": "-", "insertion": "--"}


@plot_function()
def faithfulness(
    adata: AnnData | MuData,
    *,
    key: str = "faithfulness",
    title: str | None = None,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Probability of the label against the share of genes that were removed, or added.

    One colour for each order in which genes were removed or added. The more faithful the order,
    the faster the probability falls when genes are removed (deletion, solid lines), and the faster
    it rises when they are added to the baseline (insertion, dashed). The legend has the areas under
    the curves.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.faithfulness` was run. It is not changed.
    key
        ``key_added`` of :func:`tosica.tl.faithfulness`.
    title
        Title of the plot.
    {figure}

    Returns
    -------
    {returns}

    Raises
    ------
    KeyError
        If there is no such result.
    {raises}

    Examples
    --------
    >>> import pandas as pd
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> curve = {"order": "random", "change": "deletion", "share": [0.0, 1.0], "probability": [0.9, 0.3]}
    >>> adata.uns["faithfulness"] = {"curves": pd.DataFrame(curve)}
    >>> axes = tosica.pl.faithfulness(adata, show=False)
    >>> axes.get_legend_handles_labels()[1]
    ['deletion, random: 0.600']
    """
    canvas = Canvas(**figure)
    result = adata.uns.get(key)
    if not isinstance(result, Mapping) or "curves" not in result:
        raise KeyError(
            f"adata.uns[{key!r}] holds no result of tosica.tl.faithfulness: "
            f"run tosica.tl.faithfulness(adata, model, key_added={key!r}) first."
        )
    ax = canvas.axes((6.2, 3.4))
    for (change, order), curve in result["curves"].groupby(["change", "order"], observed=True, sort=False):
        color, marker = _ORDERS.get(order, (GRAY, "."))
        area = trapezoid(curve["probability"], curve["share"])
        ax.plot(
            curve["share"],
            curve["probability"],
            linestyle=_CHANGES.get(change, ":"),
            marker=marker,
            markersize=4,
            color=color,
            label=f"{change}, {order}: {area:.3f}",
        )
    ax.set(xlabel="share of genes removed or added", ylabel="probability of the label", xlim=(0, 1), ylim=(0, 1))
    plain(ax)
    _add_legend(canvas, ax, title="first genes first, area")
    if title is not None:
        ax.set_title(title)
    return canvas.finish(ax)


# --------------------------------------------------------------------------- training

# Name and colour of a quantity.
_QUANTITIES = {
    "train_loss": ("training loss", BLUE),
    "validation_loss": ("validation loss", ORANGE),
    "validation_accuracy": ("validation accuracy", GREEN),
}
_UNITS = {"loss": "cross-entropy", "accuracy": "accuracy"}


@plot_function(
    model=InstanceOf("a TOSICA model that was trained, or its history", TOSICA, Mapping),
    keys=Names(optional=True),
)
def training(
    model: TOSICA | Mapping[str, pd.DataFrame],
    *,
    keys: Sequence[str] | None = None,
    title: str | None = None,
    **figure: Unpack[FigureOptions],
) -> Figure | list[Axes] | Axes | None:
    """Losses and accuracy of the network over the epochs of its training.

    The training loss is usually higher than the validation loss, because half of the genes and
    three quarters of the gene sets are dropped out during training. A dot marks the epoch with the
    lowest validation loss. ``early_stopping=True`` keeps the weights of that epoch, otherwise those
    of the last one are kept. A validation loss that rises long before the end means that fewer
    epochs were enough.

    Parameters
    ----------
    model
        A model that was trained, or its ``history``: a table for each quantity, with one row for
        each epoch.
    keys
        Quantities to draw, of those in the history. By default the losses and, in a panel of its
        own, the accuracy of held-out cells, as far as there are some.
    title
        Title of the plot.
    ax
        Axes to draw into, instead of a new figure. They have one panel, by default the losses.
    {new_figure}

    Returns
    -------
    The figure if ``return_fig``; with ``show=False`` the axes, as a list if there are several
    panels, or ``ax``; else ``None``.

    Raises
    ------
    KeyError
        If the history lacks a quantity.
    TypeError
        If ``model`` is neither a model nor a history.
    ValueError
        If the model has no history, because it was not trained or is one of the original code; if
        there is nothing to draw, or ``ax`` is given for several panels.
    {raises}

    Examples
    --------
    >>> import pandas as pd
    >>> import tosica
    >>> history = {"train_loss": pd.DataFrame({"train_loss": [2.0, 1.5, 1.2]})}
    >>> axes = tosica.pl.training(history, show=False)
    >>> axes.get_xlabel(), axes.get_ylabel()
    ('epoch', 'cross-entropy')
    """
    canvas = Canvas(**figure)
    history = model if isinstance(model, Mapping) else model.history
    if not isinstance(history, Mapping) or not history:
        raise ValueError(
            "The model has no history: train it with model.train(), since models of the original "
            "code keep none, nor do those that another logger was passed to."
        )
    panels = _panels(history, keys, one=canvas.ax is not None)
    # Panels over one another, which share the epochs.
    axes = canvas.panels(len(panels), 1, (4.4, 2.5), sharex=True)
    loss = _values(history, "validation_loss") if "validation_loss" in history else np.array([])
    best = int(np.nanargmin(loss)) if np.isfinite(loss).sum() > 1 else None
    for panel, (unit, names) in zip(axes, panels.items(), strict=True):
        for name in names:
            values = _values(history, name)
            label, color = _QUANTITIES.get(name, (name, None))
            # A line of one point would not be seen.
            marker = "o" if len(values) == 1 else ""
            epochs = np.arange(1, len(values) + 1)
            [line] = panel.plot(epochs, values, color=color, marker=marker, label=label)
            if best is not None and name.startswith("validation"):
                text = f"lowest validation loss: epoch {best + 1}" if "loss" in name else None
                shade = line.get_color()
                panel.plot(best + 1, values[best], "o", color=shade, markersize=5, label=text)
        panel.set_ylabel(unit)
        if unit == "accuracy":
            panel.yaxis.set_major_formatter(PercentFormatter(1))
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        plain(panel)
        panel.legend(frameon=False, fontsize=9)
    axes[-1].set_xlabel("epoch")
    if title is not None:
        axes[0].set_title(title)
    return canvas.finish(axes[0] if len(axes) == 1 else axes)


def _panels(history: Mapping[str, pd.DataFrame], keys: Sequence[str] | None, *, one: bool) -> dict[str, list[str]]:
    """Name the quantities of each panel, by the unit of the panel."""
    if keys is None:
        names = [name for name in _QUANTITIES if name in history]
        if one:
            names = [name for name in names if name.endswith("loss")] or names
    else:
        names = as_names(keys)
    missing = [name for name in names if name not in history]
    if missing:
        raise KeyError(f"The history has no {missing[0]!r}{only_known(missing[0], history)}")
    if not names:
        raise ValueError("There is nothing to draw: name quantities of the history in keys.")
    panels: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        panels.setdefault(_UNITS.get(name.rpartition("_")[2], ""), []).append(name)
    if one and len(panels) > 1:
        raise ValueError(
            "ax has room for one panel, and losses and other quantities take one each: pass keys=[...] of one kind."
        )
    return panels


def _values(history: Mapping[str, pd.DataFrame], name: str) -> NDArray[np.float64]:
    return np.asarray(history[name], dtype=float).ravel()


# --------------------------------------------------------------------------- mask

_COLOR, _PALE = "#35608d", "#d9d9d9"


@dataclass(frozen=True, kw_only=True)
class _ThreeAxes(Constraint):
    wanted = "3 axes, one for each panel"

    def has_type(self, value: Any) -> bool:
        return all(isinstance(ax, Axes) for ax in np.ravel(np.asarray(value, dtype=object)))

    def is_valid(self, value: Any) -> bool:
        return np.size(np.asarray(value, dtype=object)) == 3

    def wrong(self) -> list[Wrong]:
        return [(5, TypeError), ([], ValueError)]


@plot_function(ax=_ThreeAxes(optional=True))
def mask_coverage(
    adata: AnnData,
    *,
    key: str = "tosica_mask",
    title: str | None = None,
    ax: Sequence[Axes] | None = None,
    **figure: Unpack[NewFigure],
) -> Figure | Sequence[Axes] | None:
    """Coverage of the genes by a mask, and sizes and overlaps of its gene sets.

    Three panels of the table of :func:`tosica.get.mask_coverage`: number of genes that the largest
    gene sets cover together; histogram of the sizes of the gene sets; histogram of the Jaccard
    index of each gene set with its most similar one. A mask that is easy to interpret rises steeply
    in the first panel and has low values in the third.

    Parameters
    ----------
    adata
        Data that :func:`tosica.pp.build_mask` gave a mask. It is not changed.
    key
        ``key_added`` of :func:`tosica.pp.build_mask`.
    title
        Title of a new figure.
    ax
        Three axes to draw into, instead of a new figure.
    {new_figure}

    Returns
    -------
    The figure if ``return_fig``, the three axes if ``show=False`` or ``ax`` is given, else
    ``None``.

    Raises
    ------
    KeyError
        If there is no mask.
    ValueError
        If ``ax`` is not three axes, ``ax`` is given together with ``title``, or the mask cannot be
        read.
    {raises}

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> tosica.pp.build_mask(adata)
    >>> axes = tosica.pl.mask_coverage(adata, show=False)
    >>> axes[0].get_xlabel()
    'gene sets, largest first'
    """
    if ax is not None and (figure.get("figsize") is not None or title is not None):
        raise ValueError("figsize and title belong to a new figure: give either them or ax.")
    axes: list[Axes] = [] if ax is None else list(np.ravel(np.asarray(ax, dtype=object)))
    given = axes[0] if axes else None
    canvas = Canvas(ax=given, **figure)
    table = coverage_table(adata, key=key)
    if not axes:
        axes = canvas.panels(3, 3, (3.5, 3.2))
        if title is not None:
            canvas.figure.suptitle(title)
    _draw_coverage(axes[0], table, adata.n_vars)
    _draw_sizes(axes[1], table)
    _draw_overlaps(axes[2], table)
    for panel in axes:
        plain(panel)
    return canvas.finish(axes)


def _draw_coverage(ax: Axes, table: pd.DataFrame, n_genes: int) -> None:
    n_sets = np.arange(len(table) + 1)
    covered = np.concatenate([[0], table["n_covered"].to_numpy()])
    ax.axhline(n_genes, color="0.5", linewidth=1, linestyle="--")
    ax.text(0.98 * len(table), 1.02 * n_genes, "all genes", ha="right", va="bottom", fontsize=8)
    ax.fill_between(n_sets, covered, color=_PALE)
    ax.plot(n_sets, covered, color=_COLOR)
    ax.set(xlim=(0, len(table)), ylim=(0, 1.12 * n_genes))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.set_xlabel("gene sets, largest first")
    ax.set_ylabel("genes covered")
    ax.set_title(f"{covered[-1] / n_genes:.0%} of {format_thousands(n_genes)} genes")


def _draw_sizes(ax: Axes, table: pd.DataFrame) -> None:
    sizes = table["n_genes"].to_numpy()
    # Bins of whole numbers, because bins of other widths would hold unequal numbers of sizes.
    width = max(1, int(np.ceil((sizes.max() - sizes.min() + 1) / 30)))
    edges = np.arange(sizes.min(), sizes.max() + width + 1, width) - 0.5
    ax.hist(sizes, bins=edges.tolist(), color=_COLOR)
    ax.axvline(float(np.median(sizes)), color="0.3", linewidth=1, linestyle="--")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.set_xlabel("genes in a set")
    ax.set_ylabel("gene sets")
    ax.set_title(f"median {np.median(sizes):g} genes (dashed)")


def _draw_overlaps(ax: Axes, table: pd.DataFrame) -> None:
    overlap = table["max_jaccard"].to_numpy()
    ax.hist(overlap, bins=np.linspace(0, 1, 21).tolist(), color=_COLOR)
    ax.axvline(float(np.median(overlap)), color="0.3", linewidth=1, linestyle="--")
    ax.set_xlim(0, 1)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.set_xlabel("genes shared with the nearest set\n(Jaccard index)")
    ax.set_ylabel("gene sets")
    ax.set_title(f"median {np.median(overlap):.2f} (dashed)")
