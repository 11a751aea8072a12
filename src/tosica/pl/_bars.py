"""Horizontal bars: genes that tell groups or a cell, ranked gene sets, and the labels of samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from tosica._checks import Integer, OneOf, String
from tosica._limits import LIMITS
from tosica._obs import (
    ATTRIBUTION,
    BLUE,
    GRAY,
    ORANGE,
    group_colors,
    read_attribution,
    read_groups,
)
from tosica.get import genes_df, rank_gene_sets_df
from tosica.pl._figure import (
    LINE,
    NAME_SIZE,
    TITLE_SIZE,
    Canvas,
    FigureOptions,
    name_rows,
    plot_function,
    row_height,
    wrap,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal, Unpack

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from mudata import MuData

_LABELS = {
    "effect_size": "effect size (SD)",
    "logfoldchange": "log2 fold change of the odds",
    "score": "score",
}


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
    table = table.assign(
        name=table["gene"], value=table["contribution"], pale=table["expression"] < 0
    )
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
        Column of :func:`tosica.get.rank_gene_sets_df` to draw, the longest bar first.
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
    table = table.assign(
        name=table["gene_set"],
        value=table[values],
        pale=table["pval_adj"] > LIMITS.pvalue,
    )
    table = table.sort_values("value", ascending=False, kind="stable")
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
        n_columns = max(
            1, min(math.ceil(math.sqrt(2 * len(panels))), int(12 / (2 + longest / 12)))
        )
    n_rows = max(len(part) for part in panels.values())
    height = row_height(names, 0.19) * n_rows
    axes = canvas.panels(len(panels), n_columns, (5, height + 1))
    for ax, (group, part) in zip(axes, panels.items(), strict=True):
        _draw_bars(
            ax, part.assign(name=[shown[name] for name in part["name"]]), colors[group]
        )
        # Bars are equally thick in all panels.
        ax.set_ylim(n_rows - 0.5, -0.5)
        ax.set_title(
            wrap([group], max_name_length)[0], fontsize=TITLE_SIZE, loc="right"
        )
    x_label = f"{labels[0]}\npale: {labels[1]}" if table["pale"].any() else labels[0]
    for ax in axes[-n_columns:]:
        # Right-aligned, so that texts longer than the bars extend over the names, or below them.
        ax.set_xlabel(
            x_label, fontsize=NAME_SIZE, loc="right" if "\n" in x_label else "center"
        )
    canvas.fit(axes[0], (1.7, height))
    return canvas.finish(axes if canvas.ax is None else canvas.ax)


def _draw_bars(ax: Axes, part: pd.DataFrame, color: str) -> None:
    # A thin edge, because some colours of large palettes are nearly white.
    edge: Any = {"edgecolor": plt.rcParams["text.color"], "linewidth": 0.3}
    bars = ax.barh(
        range(len(part)),
        part["value"].to_numpy(float),
        color=color,
        height=0.72,
        **edge,
    )
    for bar, pale in zip(bars, part["pale"], strict=True):
        if pale:
            bar.set_alpha(0.35)
    name_rows(ax, list(part["name"]))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=3, min_n_ticks=2))
    ax.tick_params(axis="x", labelsize=NAME_SIZE - 1)
    if (part["value"] < 0).any():
        ax.axvline(0, color=plt.rcParams["axes.edgecolor"], linewidth=0.8)
        ax.spines["left"].set_visible(False)


# --------------------------------------------------------------------------- one cell


@plot_function(cell=String(), n_genes=Integer())
def waterfall(
    adata: AnnData,
    cell: str,
    *,
    n_genes: int = 10,
    key: str = ATTRIBUTION,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Waterfall of one cell: how its genes add up to the score of its label.

    Each bar begins where the one above ends. The genes that add or take most come first, all others
    are one bar. The line is at the sum: the score of the label less that of the baseline.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.attribute` was run with ``genes=True``. It is not changed.
    cell
        Name of the cell, as in ``adata.obs_names``.
    n_genes
        Number of genes with a bar of their own.
    {key}
    {figure}

    Returns
    -------
    {returns}

    Raises
    ------
    KeyError
        If there is no such result for each cell, or no such cell.
    ValueError
        If ``n_genes`` is below 1.
    {raises}

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> cells = query[query.obs["tosica_prediction"] == "CD19+ B"][:1].copy()
    >>> tosica.tl.attribute(cells, model, genes=True)
    >>> axes = tosica.pl.waterfall(cells, cells.obs_names[0], n_genes=2, show=False)
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['MS4A1', 'CD79A', 'all other genes']
    """
    canvas = Canvas(**figure)
    record = read_attribution(adata, key, of="genes")
    values = pd.Series(adata[cell].layers[key][0], adata.var_names, dtype=float)
    first = values.loc[values.abs().nlargest(n_genes).index]
    shown = pd.concat(
        [first, pd.Series({"all other genes": values.sum() - first.sum()})]
    )
    ends, height = shown.cumsum().to_numpy(), 0.22 * len(shown)
    ax = canvas.axes((6, height + 1))
    colors = [*np.where(first > 0, BLUE, ORANGE), GRAY]
    ax.barh(
        range(len(shown)),
        shown,
        left=np.append(0, ends[:-1]),
        color=colors,
        height=0.72,
    )
    ax.vlines(
        ends[:-1],
        np.arange(len(first)),
        np.arange(len(first)) + 1,
        color=GRAY,
        linewidth=0.8,
    )
    ax.axvline(
        ends[-1], color=plt.rcParams["text.color"], linewidth=0.8, linestyle="--"
    )
    name_rows(ax, list(shown.index))
    ax.set_xlabel(
        f"score of {record['target']},\nless that of the baseline (logits)",
        fontsize=NAME_SIZE,
    )
    ax.set_title(
        f"{cell}: {adata.obs.at[cell, record['groupby']]}", fontsize=TITLE_SIZE
    )
    canvas.fit(ax, (3.2, height))
    return canvas.finish(ax)


# --------------------------------------------------------------------------- samples


@plot_function(sample_key=String())
def composition(
    adata: AnnData,
    sample_key: str,
    *,
    groupby: str = "tosica_prediction",
    max_name_length: int = 40,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Stacked bars of the labels of each sample: shares of its cells.

    Parameters
    ----------
    {adata}
    sample_key
        Column of ``adata.obs`` with the samples, such as donors.
    groupby
        Column of ``adata.obs`` with the labels.
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
        If a column cannot be read as groups.
    ValueError
        If cells have no sample or no label.
    {raises}

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> axes = tosica.pl.composition(adata, "phase", groupby="bulk_labels", show=False)
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['G1', 'G2M', 'S']
    """
    canvas = Canvas(**figure)
    groups, samples = (
        read_groups(adata, groupby),
        read_groups(adata, sample_key, name="sample_key"),
    )
    shares = pd.crosstab(samples, groups, normalize="index")
    names = wrap(list(shares.index), max_name_length)
    n_columns = math.ceil(shares.shape[1] / 12)
    # As high as the legend, too.
    height = max(
        row_height(names, 0.26) * len(names),
        1.3 * LINE * math.ceil(shares.shape[1] / n_columns),
    )
    ax = canvas.axes((8, height + 1))
    colors, starts = group_colors(adata, groupby), shares.cumsum(axis=1) - shares
    for name, label in zip(
        shares, wrap([str(name) for name in shares], max_name_length), strict=True
    ):
        ax.barh(
            range(len(names)),
            shares[name],
            left=starts[name],
            color=colors[str(name)],
            label=label,
        )
    name_rows(ax, names)
    ax.set(xlim=(0, 1), xlabel="share of the cells", ylabel=sample_key)
    ax.legend(
        fontsize=NAME_SIZE,
        ncols=n_columns,
        loc="upper left",
        bbox_to_anchor=(1, 1),
        frameon=False,
    )
    canvas.fit(ax, (3.5, height))
    return canvas.finish(ax)
