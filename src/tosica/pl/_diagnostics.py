"""Plots of how far to trust a model: calibration and novelty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from tosica._groups import read_groups, read_numbers
from tosica._palette import BLUE, GRAY, ORANGE
from tosica._validation import (
    check_choice,
    check_count,
    check_data,
    check_number,
    check_string,
)
from tosica.pl._docs import fill_docs
from tosica.pl._figure import Canvas, group_colors, line_count, text_width
from tosica.pl._names import wrap
from tosica.tl import reliability as reliability_table
from tosica.tl._evaluate import expected_calibration_error

if TYPE_CHECKING:
    import os

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_FONT_SIZE = 9.0
# A reference line in the plot of novelty is where cells have this p-value.
_P_VALUE = 0.05
# Groups with fewer cells have no quartiles worth a box: each of their cells is a dot.
_MIN_BOX = 5


@fill_docs()
def reliability(
    adata: AnnData,
    labels_key: str,
    *,
    key: str = "tosica",
    n_bins: int = 10,
    title: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    dpi: int = 300,
    return_fig: bool = False,
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
    {ax}
    {figure}

    Returns
    -------
    {returns}

    Raises
    ------
    KeyError, TypeError, ValueError
        As :func:`tosica.tl.reliability`.
    {ax_raises}

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
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    check_string("title", title, optional=True)
    table = reliability_table(adata, labels_key, key=key, n_bins=n_bins)
    is_new = ax is None
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
    _plain(ax)
    if is_new:
        # A new figure has room beside the axes, where the legend hides no point.
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)
    else:
        ax.legend(frameon=False, loc="best", fontsize=8)
    if title is None:
        title = f"expected calibration error {100 * expected_calibration_error(table):.1f} %"
    ax.set_title(title, fontsize=10)
    return canvas.finish(ax)


@fill_docs()
def novelty(
    adata: AnnData,
    groupby: str | None = None,
    *,
    of: Literal["cell", "cluster"] = "cell",
    key: str = "tosica",
    cutoff: float | None = None,
    max_name_length: int = 40,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    dpi: int = 300,
    return_fig: bool = False,
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
    {ax}
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
    {ax_raises}

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
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    check_data(adata, mudata=True)
    check_string("key", key)
    check_number("cutoff", cutoff, optional=True)
    check_count("max_name_length", max_name_length, least=10)
    check_choice("of", of, ("cell", "cluster"))
    column = f"{key}_novelty" + ("_cluster" if of == "cluster" else "")
    if column not in adata.obs:
        raise KeyError(
            f"adata.obs has no column {column!r}: run tosica.tl.novelty(adata, model, key={key!r}) "
            "first."
        )
    groupby = f"{key}_prediction" if groupby is None else groupby
    groups = read_groups(adata, groupby)
    values = read_numbers(adata, column)
    medians = pd.Series(values).groupby(pd.Series(groups), observed=True).median()
    order = [str(name) for name in medians.sort_values(ascending=False).index]
    names = wrap(order, max_name_length)
    row = 0.24 + 0.1 * (line_count(names) - 1)
    ax = canvas.axes((3.4 + text_width(names, _FONT_SIZE), row * len(order) + 0.9))
    color = plt.rcParams["text.color"]
    line = {"color": color, "linewidth": 0.8}
    colors = group_colors(adata, groupby)
    # seaborn's box plot uses what newer versions of matplotlib deprecate.
    for position, name in enumerate(order):
        of_group = values[np.asarray(groups) == name]
        if len(of_group) < _MIN_BOX:
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
    ax.set_yticks(range(len(order)), names, fontsize=_FONT_SIZE, linespacing=1.0)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("novelty" if of == "cell" else "novelty of clusters", fontsize=10)
    ax.set_ylabel(groupby, fontsize=10)
    _plain(ax)
    if cutoff is not None:
        _mark(ax, cutoff, "cutoff", ORANGE, "--")
    elif (limit := _novelty_limit(adata, values, f"{column}_pvalue")) is not None:
        _mark(ax, limit, f"p = {_P_VALUE:g}", GRAY, ":")
    return canvas.finish(ax)


def _novelty_limit(adata: AnnData, values: NDArray[np.float64], column: str) -> float | None:
    """Novelty that divides the cells with a p-value of at most 5 % from the others, if any does."""
    if column not in adata.obs:
        return None
    is_new = read_numbers(adata, column) <= _P_VALUE
    if is_new.all() or not is_new.any():
        return None
    low, high = values[~is_new].max(), values[is_new].min()
    return float(low + high) / 2 if low <= high else None


def _mark(ax: Axes, x: float, name: str, color: str, line_style: str) -> None:
    """Draw a vertical line, with its name above the axes, where it hides nothing."""
    ax.axvline(x, linestyle=line_style, linewidth=1.2, color=color)
    ax.text(x, 1.01, name, transform=ax.get_xaxis_transform(), ha="center", va="bottom", fontsize=8)


def _plain(ax: Axes) -> None:
    ax.grid(False)
    ax.spines[["top", "right"]].set_visible(False)
