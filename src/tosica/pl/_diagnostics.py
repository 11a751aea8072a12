"""Plots of how far to trust a model: calibration and novelty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from tosica._groups import read_groups, read_numbers
from tosica._palette import BLUE, ORANGE
from tosica._validation import (
    check_choice,
    check_count,
    check_data,
    check_number,
    check_string,
)
from tosica.pl._docs import fill_docs
from tosica.pl._figure import Canvas, group_colors, text_width
from tosica.pl._names import shorten
from tosica.tl import reliability as reliability_table
from tosica.tl._reliability import expected_calibration_error

if TYPE_CHECKING:
    import os

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FONT_SIZE = 9.0


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
    canvas = Canvas(ax, figsize, show=show, save=save, return_fig=return_fig)
    check_string("title", title, optional=True)
    table = reliability_table(adata, labels_key, key=key, n_bins=n_bins)
    ax = canvas.axes((3.6, 3.6))
    ax.bar(
        (table["low"] + table["high"]) / 2,
        table["n_cells"] / table["n_cells"].sum(),
        width=0.92 / n_bins,
        color=plt.rcParams["text.color"],
        alpha=0.15,
        linewidth=0,
        label="share of cells",
    )
    ax.plot([0, 1], [0, 1], color=plt.rcParams["text.color"], linewidth=0.8, linestyle="--")
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
        label="right labels",
    )
    ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="probability of the label", ylabel="share")
    ax.set_aspect("equal")
    _plain(ax)
    ax.legend(frameon=False, loc="upper left", fontsize=9)
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
    return_fig: bool = False,
) -> Figure | Axes | None:
    """Box plots of the novelty of cells, one for each group, the highest median on top.

    A box spans the quartiles and has a line at the median. Whiskers end at the furthest cell
    within 1.5 times the interquartile range, dots are the cells beyond.

    Parameters
    ----------
    adata
        Query that :func:`tosica.tl.novelty` has scored, or ``model.annotate`` cell by cell. It is
        not changed.
    groupby
        Column of ``adata.obs`` with the groups; by default the predictions.
    of
        Draw the novelty of each cell, or of its cluster.
    key
        ``key_added`` of ``model.annotate``.
    cutoff
        Novelty at which to draw a line.
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
    canvas = Canvas(ax, figsize, show=show, save=save, return_fig=return_fig)
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
    names = shorten(order, max_name_length)
    ax = canvas.axes((3.2 + text_width(names, _FONT_SIZE), 0.24 * len(order) + 0.7))
    color = plt.rcParams["text.color"]
    line = {"color": color, "linewidth": 0.8}
    # seaborn's box plot uses what newer versions of matplotlib deprecate.
    boxes = ax.boxplot(
        [values[np.asarray(groups) == name] for name in order],
        orientation="horizontal",
        positions=range(len(order)),
        widths=0.7,
        patch_artist=True,
        boxprops={"edgecolor": color, "linewidth": 0.8},
        whiskerprops=line,
        capprops=line,
        medianprops=line | {"linewidth": 1.4},
        flierprops={"marker": ".", "markersize": 3, "markeredgecolor": color},
        manage_ticks=False,
    )
    colors = group_colors(adata, groupby)
    for box, name in zip(boxes["boxes"], order, strict=True):
        box.set_facecolor(colors[name])
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.set_yticks(range(len(order)), names, fontsize=_FONT_SIZE)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("novelty" if of == "cell" else "novelty of clusters", fontsize=10)
    ax.set_ylabel("")
    _plain(ax)
    if cutoff is not None:
        ax.axvline(cutoff, linestyle="--", linewidth=1, color=ORANGE)
    return canvas.finish(ax)


def _plain(ax: Axes) -> None:
    ax.grid(False)
    ax.spines[["top", "right"]].set_visible(False)
