"""Panels of horizontal bars: ranked gene sets of groups, and genes of gene sets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from tosica._checks import OneOf, String
from tosica._limits import LIMITS
from tosica._obs import find_gene_sets
from tosica.get import rank_gene_sets_df, top_genes_df
from tosica.pl._figure import (
    LINE,
    NAME_SIZE,
    TITLE_SIZE,
    Canvas,
    group_colors,
    line_count,
    plain,
    plot_function,
)
from tosica.pl._names import wrap

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence
    from typing import Literal

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NO_COLOR = "#4878a8"
_LABELS = {
    "effect_size": "effect size (SD)",
    "logfoldchange": "log2 fold change",
    "score": "score",
}


@plot_function(values=OneOf(*_LABELS))
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
    table = rank_gene_sets_df(adata, groups, key=key)
    names = list(table["group"].cat.categories)
    _only_one(ax, names, "group", "groups")
    if n_gene_sets is None:
        n_gene_sets = min(8, max(1, 90 // len(names)))
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
                list(part["pval_adj"] > LIMITS.pvalue),
            )
        )
    axes = _draw_panels(canvas, panels, _LABELS[values], n_columns)
    return canvas.finish(axes if ax is None else ax)


@plot_function(group=String())
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
    table = top_genes_df(adata, group, key=key)
    known = list(dict.fromkeys(table["gene_set"]))
    where = f"adata.uns[{key!r}] of group {group!r}"
    shown = known if gene_sets is None else find_gene_sets(gene_sets, known, where)
    _only_one(ax, shown, "gene set", "gene_sets")
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


def _only_one(ax: Axes | None, names: Sequence[str], noun: str, parameter: str) -> None:
    if ax is not None and len(names) > 1:
        raise ValueError(f"ax has room for one {noun}, and there are {len(names)}: pass {parameter}=[...].")


def _stored_colors(adata: AnnData, groupby: str | None) -> dict[str, str]:
    """Colours of the groups that a result was computed for, if their column still exists."""
    if groupby is None or groupby not in adata.obs:
        return {}
    return group_colors(adata, groupby)


class _Panel(NamedTuple):
    """Bars of one panel, the first one on top; ``pale`` says which are drawn pale."""

    title: str
    names: list[str]
    values: list[float]
    color: str
    pale: Sequence[bool] = ()


def _draw_panels(canvas: Canvas, panels: Sequence[_Panel], x_label: str, n_columns: int | None) -> list[Axes]:
    """Draw each panel into axes of its own, or the only panel into the given axes."""
    if any(any(panel.pale) for panel in panels):
        x_label += f"\npale: adjusted p-value above {LIMITS.pvalue:g}"
    names = [name for panel in panels for name in panel.names]
    if n_columns is None:
        # About as many as fit on a page, for names of 12 characters an inch.
        longest = max(len(line) for name in names for line in name.splitlines())
        n_columns = max(1, min(math.ceil(math.sqrt(2 * len(panels))), int(12 / (2 + longest / 12))))
    height = max(0.19, LINE * line_count(names)) * max(len(panel.names) for panel in panels)
    axes = canvas.panels(len(panels), n_columns, (5, height + 1))
    for i, (ax, panel) in enumerate(zip(axes, panels, strict=True)):
        is_lowest = i + n_columns >= len(panels)
        _draw_panel(ax, panel, x_label if is_lowest else "", max(len(p.names) for p in panels))
    canvas.fit(axes[0], (1.7, height))
    return axes


def _draw_panel(ax: Axes, panel: _Panel, x_label: str, n_rows: int) -> None:
    bars = ax.barh(range(len(panel.values)), panel.values, color=panel.color, height=0.72)
    for bar, pale in zip(bars, panel.pale, strict=False):
        if pale:
            bar.set_alpha(0.35)
    ax.set_yticks(range(len(panel.names)), panel.names, fontsize=NAME_SIZE, linespacing=1.0)
    # Bars are equally thick in all panels.
    ax.set_ylim(n_rows - 0.5, -0.5)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=3, min_n_ticks=2))
    ax.tick_params(axis="x", labelsize=NAME_SIZE - 1)
    ax.tick_params(axis="y", length=0)
    plain(ax)
    if min(panel.values, default=0) < 0:
        ax.axvline(0, color=plt.rcParams["axes.edgecolor"], linewidth=0.8)
        ax.spines["left"].set_visible(False)
    # Right-aligned, so that texts longer than the bars extend over the names, or below them.
    ax.set_xlabel(x_label, fontsize=NAME_SIZE, loc="right" if "\n" in x_label else "center")
    ax.set_title(panel.title, fontsize=TITLE_SIZE, loc="right")
