"""Panels of horizontal bars: genes that tell groups, and ranked gene sets of groups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from tosica._checks import Integer, OneOf
from tosica._limits import LIMITS
from tosica._obs import ATTRIBUTION
from tosica.get import genes_df, rank_gene_sets_df
from tosica.pl._figure import (
    NAME_SIZE,
    TITLE_SIZE,
    Canvas,
    FigureOptions,
    group_colors,
    plain,
    plot_function,
    row_height,
    wrap,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal, Unpack

    import pandas as pd
    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from mudata import MuData

_LABELS = {"effect_size": "effect size (SD)", "logfoldchange": "log2 fold change of the odds", "score": "score"}


@plot_function(n_genes=Integer())
def top_genes(
    adata: AnnData | MuData,
    groups: str | Iterable[str] | None = None,
    *,
    n_genes: int = 10,
    n_columns: int | None = None,
    max_name_length: int = 50,
    key: str = ATTRIBUTION,
    **figure: Unpack[FigureOptions],
) -> Figure | list[Axes] | Axes | None:
    """Bars of the genes that add most to the score of each group's label, group by group.

    Bars are pale for genes that the group expresses less than the baseline: it is told by what it
    lacks. The label of the axis says so if there are any.

    Parameters
    ----------
    {attributed}
    groups
        Groups to show, in this order; by default all.
    n_genes
        Genes for each group, as in :func:`tosica.get.genes_df`.
    n_columns
        Panels side by side; by default as many as fit.
    {max_name_length}
    {key}
    ax
        Axes to draw a single group into, instead of a new figure.
    {new_figure}

    Returns
    -------
    {returns_panels}

    Raises
    ------
    KeyError
        If there is no such result, or no such group in it.
    ValueError
        If ``ax`` is given for several groups, or ``n_genes`` is below 1.
    {raises}

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model)
    >>> (axes,) = tosica.pl.top_genes(query, "CD19+ B", n_genes=2, show=False)
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['CD79A', 'MS4A1']
    """
    canvas = Canvas(**figure)
    table = genes_df(adata, groups, n_genes=n_genes, key=key)
    table = table.assign(name=table["gene"], value=table["contribution"], pale=table["expression"] < 0)
    colors = group_colors(adata, adata.uns[key]["groupby"])
    labels = "contribution (logits)", "expressed below baseline"
    return _draw_panels(canvas, table, colors, labels, n_columns, max_name_length)


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
    **figure: Unpack[FigureOptions],
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
    n_columns
        Panels side by side; by default as many as fit.
    {max_name_length}
    key
        ``key_added`` of :func:`tosica.tl.rank_gene_sets`.
    ax
        Axes to draw a single group into, instead of a new figure.
    {new_figure}

    Returns
    -------
    {returns_panels}

    Raises
    ------
    KeyError
        If there is no such result, or no such group in it.
    ValueError
        If ``values`` is unknown, ``ax`` is given for several groups, or ``n_gene_sets`` is below 1.
    {raises}

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model, cells=True)
    >>> tosica.tl.rank_gene_sets(query, "phase")
    >>> len(tosica.pl.rank_gene_sets(query, n_gene_sets=3, show=False))
    3
    """
    canvas = Canvas(**figure)
    table = rank_gene_sets_df(adata, groups, key=key)
    n = n_gene_sets or min(8, max(1, 90 // len(table["group"].cat.categories)))
    table = table.groupby("group", observed=True).head(n)
    table = table.assign(name=table["gene_set"], value=table[values], pale=table["pval_adj"] > LIMITS.pvalue)
    params = adata.uns[key].get("params", {})
    colors = group_colors(adata, params.get("within") or params.get("groupby"))
    labels = _LABELS[values], f"adjusted p-value above {LIMITS.pvalue:g}"
    return _draw_panels(canvas, table, colors, labels, n_columns, max_name_length)


def _draw_panels(
    canvas: Canvas,
    table: pd.DataFrame,
    colors: dict[str, str],
    labels: tuple[str, str],
    n_columns: int | None,
    max_name_length: int,
) -> Figure | list[Axes] | Axes | None:
    """Draw ``value`` of each ``name``, for each group into axes of its own, or into the given ones.

    ``labels`` are what the value is, and what it means if it is ``pale``.
    """
    panels = {str(group): part for group, part in table.groupby("group", observed=True)}
    canvas.only_one(len(panels), "group", "pass groups=[...]")
    names = wrap(list(dict.fromkeys(table["name"])), max_name_length)
    shown = dict(zip(dict.fromkeys(table["name"]), names, strict=True))
    if n_columns is None:
        # About as many as fit on a page, for names of 12 characters an inch.
        longest = max(len(line) for name in names for line in name.splitlines())
        n_columns = max(1, min(math.ceil(math.sqrt(2 * len(panels))), int(12 / (2 + longest / 12))))
    n_rows = max(len(part) for part in panels.values())
    height = row_height(names, 0.19) * n_rows
    axes = canvas.panels(len(panels), n_columns, (5, height + 1))
    for ax, (group, part) in zip(axes, panels.items(), strict=True):
        _draw_bars(ax, part.assign(name=[shown[name] for name in part["name"]]), colors[group])
        # Bars are equally thick in all panels.
        ax.set_ylim(n_rows - 0.5, -0.5)
        ax.set_title(wrap([group], max_name_length)[0], fontsize=TITLE_SIZE, loc="right")
    x_label = f"{labels[0]}\npale: {labels[1]}" if table["pale"].any() else labels[0]
    for ax in axes[-n_columns:]:
        # Right-aligned, so that texts longer than the bars extend over the names, or below them.
        ax.set_xlabel(x_label, fontsize=NAME_SIZE, loc="right" if "\n" in x_label else "center")
    canvas.fit(axes[0], (1.7, height))
    return canvas.finish(axes if canvas.ax is None else canvas.ax)


def _draw_bars(ax: Axes, part: pd.DataFrame, color: str) -> None:
    # A thin edge, because some colours of large palettes are nearly white.
    edge: Any = {"edgecolor": plt.rcParams["text.color"], "linewidth": 0.3}
    bars = ax.barh(range(len(part)), part["value"].to_numpy(float), color=color, height=0.72, **edge)
    for bar, pale in zip(bars, part["pale"], strict=True):
        if pale:
            bar.set_alpha(0.35)
    ax.set_yticks(range(len(part)), list(part["name"]), fontsize=NAME_SIZE, linespacing=1.0)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=3, min_n_ticks=2))
    ax.tick_params(axis="x", labelsize=NAME_SIZE - 1)
    ax.tick_params(axis="y", length=0)
    plain(ax)
    if (part["value"] < 0).any():
        ax.axvline(0, color=plt.rcParams["axes.edgecolor"], linewidth=0.8)
        ax.spines["left"].set_visible(False)
