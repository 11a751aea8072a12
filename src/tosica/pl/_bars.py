"""Panels of horizontal bars: ranked gene sets of groups, and genes of gene sets."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from tosica._annotated import find_gene_sets
from tosica._validation import check_choice, check_count, check_names, check_string
from tosica.get import rank_gene_sets_df, top_genes_df
from tosica.pl._docs import fill_docs
from tosica.pl._figure import Canvas, group_colors, line_count, text_width
from tosica.pl._names import wrap

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence
    from typing import Literal

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_NAME_SIZE = 8.5
_TITLE_SIZE = 10.0
_NO_COLOR = "#4878a8"
# Opacity of bars that are not significant.
_PALE = 0.35
# Room of a bar whose name has two lines, in bars whose name has one.
_TWO_LINES = 1.55
_SIGNIFICANT = 0.05

# In inches.
_BAR = 0.19
_TITLE_LINE = 0.17
_BARS_WIDTH = 1.7
_TITLE = 0.3
_AXIS = 0.5
_MARGIN = 0.15
_MAX_WIDTH = 13.0

# Default number of bars, of all groups together and at most for each.
_N_BARS = 90
_MAX_PER_GROUP = 8
_LABELS = {
    "effect_size": "effect size (SD)",
    "logfoldchange": "log2 fold change",
    "score": "score",
}


@fill_docs()
def rank_gene_sets(
    adata: AnnData,
    groups: str | Iterable[str] | None = None,
    *,
    n_gene_sets: int | None = None,
    values: Literal["effect_size", "logfoldchange", "score"] = "effect_size",
    n_columns: int | None = None,
    max_name_length: int = 50,
    key: str = "rank_gene_sets",
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    dpi: int = 300,
    return_fig: bool = False,
) -> Figure | list[Axes] | Axes | None:
    """Bars of the gene sets that :func:`tosica.tl.rank_gene_sets` ranks first, group by group.

    Bars are pale where the adjusted p-value is above 5 %; the label of the axis says so if there
    are any.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.rank_gene_sets` was run. It is not changed.
    groups
        Groups to show, in this order; by default all.
    n_gene_sets
        Gene sets for each group. ``None``: as many as make about 90 in all, from 1 to 8.
    values
        Column of :func:`tosica.get.rank_gene_sets_df` to draw, in the order of the test.
        Contributions have a sign, so some have no fold change and no bar.
    n_columns
        Panels side by side; by default as many as fit.
    {max_name_length}
    key
        ``key_added`` of :func:`tosica.tl.rank_gene_sets`.
    ax
        Axes to draw a single group into, instead of a new figure.
    {figure}

    Returns
    -------
    The figure if ``return_fig``; with ``show=False`` a list of axes, one for each group, or ``ax``;
    else ``None``.

    Raises
    ------
    KeyError
        If there is no such result, or no such group in it.
    ValueError
        If ``values`` is unknown, ``ax`` is given for several groups, or ``n_gene_sets`` is below 1.
    {ax_raises}

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array([f"term {i}" for i in range(40)])}
    >>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 40), np.float32)
    >>> tosica.tl.rank_gene_sets(adata, "phase")
    >>> len(tosica.pl.rank_gene_sets(adata, n_gene_sets=3, show=False))
    3
    """
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    check_choice("values", values, _LABELS)
    check_count("n_gene_sets", n_gene_sets, optional=True)
    check_count("n_columns", n_columns, optional=True)
    check_count("max_name_length", max_name_length, least=10)
    groups = None if groups is None else check_names("groups", groups)
    table = rank_gene_sets_df(adata, groups, key=key)
    names = list(table["group"].cat.categories)
    if ax is not None and len(names) > 1:
        raise ValueError(
            f"ax has room for one group, and there are {len(names)}: pass groups=[...]."
        )
    if n_gene_sets is None:
        n_gene_sets = min(_MAX_PER_GROUP, max(1, _N_BARS // len(names)))
    params = adata.uns[key].get("params", {})
    colors = _stored_colors(adata, params.get("within") or params.get("groupby"))
    panels = []
    for name in names:
        part = table[table["group"] == name].head(n_gene_sets)
        panels.append(
            _Panel(
                wrap([name], max_name_length)[0],
                wrap(list(part["gene_set"]), max_name_length),
                [float(value) for value in part[values]],
                colors.get(name, _NO_COLOR),
                list(part["pval_adj"] > _SIGNIFICANT),
            )
        )
    axes = _draw_panels(canvas, panels, _LABELS[values], n_columns)
    return canvas.finish(axes if ax is None else ax)


@fill_docs()
def gene_weights(
    adata: AnnData,
    group: str,
    *,
    gene_sets: str | Iterable[str] | None = None,
    n_genes: int | None = None,
    n_columns: int | None = None,
    max_name_length: int = 50,
    key: str = "top_genes",
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    dpi: int = 300,
    return_fig: bool = False,
) -> Figure | list[Axes] | Axes | None:
    """Bars of the genes in the most important gene sets of a group.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.top_genes` was run. It is not changed.
    group
        Group whose gene sets are shown.
    gene_sets
        Gene sets to show, of those of the group; by default all.
    n_genes
        Genes for each gene set; by default all that :func:`tosica.tl.top_genes` kept.
    n_columns
        Panels side by side; by default as many as fit.
    {max_name_length}
    key
        ``key_added`` of :func:`tosica.tl.top_genes`.
    ax
        Axes to draw a single gene set into, instead of a new figure.
    {figure}

    Returns
    -------
    The figure if ``return_fig``; with ``show=False`` a list of axes, one for each gene set, or
    ``ax``; else ``None``.

    Raises
    ------
    KeyError
        If there is no such result, or no such group or gene set in it.
    ValueError
        If ``ax`` is given for several gene sets, or ``n_genes`` is below 1.
    {ax_raises}

    Examples
    --------
    >>> import pandas as pd
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> rows = [["B", "B cell activation", 1.5, gene, 0.4] for gene in ("CD79A", "MS4A1")]
    >>> columns = ["group", "gene_set", "gene_set_weight", "gene", "gene_weight"]
    >>> adata.uns["top_genes"] = {"table": pd.DataFrame(rows, columns=columns)}
    >>> (axes,) = tosica.pl.gene_weights(adata, "B", show=False)
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['CD79A', 'MS4A1']
    """
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    check_string("group", group)
    check_count("n_genes", n_genes, optional=True)
    check_count("n_columns", n_columns, optional=True)
    check_count("max_name_length", max_name_length, least=10)
    table = top_genes_df(adata, group, key=key)
    known = list(dict.fromkeys(table["gene_set"]))
    where = f"adata.uns[{key!r}] of group {group!r}"
    shown = known if gene_sets is None else find_gene_sets(gene_sets, known, where)
    if ax is not None and len(shown) > 1:
        raise ValueError(
            f"ax has room for one gene set, and there are {len(shown)}: pass gene_sets=[...]."
        )
    params = adata.uns[key].get("params", {})
    color = _stored_colors(adata, params.get("groupby")).get(group, _NO_COLOR)
    panels = []
    for name, title in zip(shown, wrap(shown, max_name_length), strict=True):
        part = table[table["gene_set"] == name].head(n_genes)
        genes = list(part["gene"].astype(str))
        panels.append(_Panel(title, genes, [float(value) for value in part["gene_weight"]], color))
    label = "contribution (logits)" if params.get("by") == "attribution" else "weight"
    axes = _draw_panels(canvas, panels, label, n_columns)
    return canvas.finish(axes if ax is None else ax)


def _stored_colors(adata: AnnData, groupby: str | None) -> dict[str, str]:
    """Colours of the groups that a result was computed for, if their column still exists."""
    if groupby is None or groupby not in adata.obs:
        return {}
    return group_colors(adata, groupby)


@dataclass(frozen=True)
class _Panel:
    """Bars of one panel, the first one on top."""

    title: str
    names: list[str]
    values: list[float]
    color: str
    pale: list[bool] = field(default_factory=list)
    """Which bars are drawn pale; none if empty."""

    def rooms(self) -> NDArray[np.float64]:
        """Height of each bar with its name, in bars whose name has one line."""
        return np.array([_TWO_LINES if "\n" in name else 1.0 for name in self.names])


def _draw_panels(
    canvas: Canvas, panels: Sequence[_Panel], x_label: str, n_columns: int | None
) -> list[Axes]:
    """Draw each panel into axes of its own, or the only panel into the given axes.

    matplotlib's layouts give all panels the same width, whatever room the names leave; here each
    column of panels is as wide as its names need.
    """
    has_pale = any(any(panel.pale) for panel in panels)
    if has_pale:
        x_label += f"\npale: adjusted p-value above {_SIGNIFICANT:g}"
    if canvas.ax is not None:
        _draw_panel(canvas.ax, panels[0], x_label)
        return [canvas.ax]
    names_width = max(text_width(panel.names, _NAME_SIZE) for panel in panels) + 0.12
    title_width = max(text_width([panel.title], _TITLE_SIZE) for panel in panels)
    panel_width = max(names_width + _BARS_WIDTH, title_width) + 2 * _MARGIN
    if n_columns is None:
        n_fitting = max(int(_MAX_WIDTH // panel_width), 1)
        n_columns = min(len(panels), n_fitting, max(1, math.ceil(math.sqrt(2 * len(panels)))))
    n_rows = math.ceil(len(panels) / n_columns)
    title = _TITLE + _TITLE_LINE * (line_count(panel.title for panel in panels) - 1)
    axis = _AXIS + _TITLE_LINE * has_pale
    panel_height = title + max(panel.rooms().sum() for panel in panels) * _BAR + axis
    needed = panel_width * n_columns, panel_height * n_rows + _MARGIN
    figure = canvas.new_figure(needed)
    width, height = canvas.figsize or needed
    # With a given figsize, everything is scaled but the text.
    x_scale, y_scale = width / needed[0], height / needed[1]
    axes = []
    for i, panel in enumerate(panels):
        row, column = divmod(i, n_columns)
        x = column * panel_width * x_scale + _MARGIN + names_width
        w = max(panel_width * x_scale - names_width - 2 * _MARGIN, 0.15 * panel_width * x_scale)
        y = (row * panel_height + title + _MARGIN / 2) * y_scale
        h = panel.rooms().sum() * _BAR * y_scale
        ax = figure.add_axes((x / width, 1 - (y + h) / height, w / width, h / height))
        is_lowest = i + n_columns >= len(panels)
        _draw_panel(ax, panel, x_label if is_lowest else "")
        axes.append(ax)
    return axes


def _draw_panel(ax: Axes, panel: _Panel, x_label: str) -> None:
    rooms = panel.rooms()
    positions = np.cumsum(rooms) - rooms / 2
    bars = ax.barh(positions, panel.values, color=panel.color, height=0.72)
    for bar, pale in zip(bars, panel.pale, strict=False):
        if pale:
            bar.set_alpha(_PALE)
    ax.set_yticks(positions, panel.names, fontsize=_NAME_SIZE, linespacing=1.0)
    ax.set_ylim(rooms.sum(), 0)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=3, min_n_ticks=2))
    ax.tick_params(axis="x", labelsize=_NAME_SIZE - 1)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(False)
    if min(panel.values, default=0) < 0:
        ax.axvline(0, color=plt.rcParams["axes.edgecolor"], linewidth=0.8)
        ax.spines["left"].set_visible(False)
    # Right-aligned, so that texts longer than the bars extend over the names, or below them.
    ax.set_xlabel(x_label, fontsize=_NAME_SIZE, loc="right" if "\n" in x_label else "center")
    ax.set_title(panel.title, fontsize=_TITLE_SIZE, loc="right")
