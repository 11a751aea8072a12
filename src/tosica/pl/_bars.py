"""Horizontal bars: genes that tell groups or a cell, ranked gene sets, and the labels of samples."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

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
from tosica._validate import CellData, OneOf
from tosica.data import find_genes, load_table
from tosica.get import genes_df, rank_gene_sets_df
from tosica.pl._figure import Canvas, FigureOptions
from tosica.pl._names import LINE, NAME_SIZE, TITLE_SIZE, name_rows, row_height, wrap
from tosica.pl._plot_function import plot_function

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, Literal, Unpack

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tosica._types import AnnOrMuData, BoolArray

# Characters in a line of an axis label, which fit a column of a page.
_LABEL_LENGTH = 36
# Opacity of bars that are to be read with care.
_PALE = 0.35
_LABELS = {
    "effect_size": "effect size (SD)",
    "logfoldchange": "log2 fold change of the odds",
    "score": "score",
}


@plot_function()
def top_genes(
    adata: AnnOrMuData,
    groups: str | Iterable[str] | None = None,
    *,
    n_genes: int = 10,
    n_columns: int | None = None,
    key: str = ATTRIBUTION,
    **figure: Unpack[FigureOptions],
) -> Figure | list[Axes] | Axes | None:
    """Bars of the genes that add most to the score of each group's label, group by group.

    Bars are pale for genes that the group expresses less than the baseline, whose absence tells its
    label. The label of the axis says so if there are any.

    Parameters
    ----------
    {attributed}
    groups
        Groups to show, in this order; by default all.
    n_genes
        Genes for each group, as in :func:`tosica.get.genes_df`.
    n_columns
        Panels side by side; by default as many as fit.
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
    return _draw_panels(
        canvas,
        table,
        group_colors(adata, adata.uns[key]["groupby"]),
        value_label="contribution (logits)",
        pale_label="expressed below baseline",
        n_columns=n_columns,
    )


@plot_function(values=OneOf(*_LABELS))
def rank_gene_sets(
    adata: AnnData,
    groups: str | Iterable[str] | None = None,
    *,
    n_gene_sets: int | None = None,
    values: Literal["effect_size", "logfoldchange", "score"] = "effect_size",
    n_columns: int | None = None,
    key: str = "rank_gene_sets",
    **figure: Unpack[FigureOptions],
) -> Figure | list[Axes] | Axes | None:
    """Bars of the gene sets that :func:`tosica.tl.rank_gene_sets` ranks first, group by group.

    Bars are pale where the adjusted p-value is above 5 %, or where there is none. The label of the axis
    says which, why there is none, and if cells were the replicates, so that p-values are too small.

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
    if n_gene_sets is None:
        n_gene_sets = min(8, max(1, 90 // len(table["group"].cat.categories)))
    table = table.groupby("group", observed=True).head(n_gene_sets)
    table = table.assign(
        name=table["gene_set"],
        value=table[values],
        pale=~(table["pval_adj"] <= LIMITS.pvalue),
    )
    table = table.sort_values("value", ascending=False, kind="stable")
    params = adata.uns[key].get("params", {})
    return _draw_panels(
        canvas,
        table,
        group_colors(adata, params.get("within") or params.get("groupby")),
        value_label=_LABELS[values] + _name_comparison(params) + _name_caveats(table),
        pale_label=_name_insignificance(table),
        n_columns=n_columns,
    )


def _name_insignificance(table: pd.DataFrame) -> str:
    """Say why bars are pale: their p-values, or why they have none."""
    reasons = []
    if (table["pval_adj"] > LIMITS.pvalue).any():
        reasons.append(f"adjusted p-value above {LIMITS.pvalue:g}")
    for reason in _short_caveats(table[table["pval_adj"].isna()]):
        text = f"no adjusted p-value ({reason})" if reason else "no adjusted p-value"
        reasons.append(textwrap.fill(text, _LABEL_LENGTH))
    return ",\nor ".join(reasons)


def _name_comparison(params: Mapping[str, Any]) -> str:
    """Say what is compared with what, where the names of the panels do not."""
    reference = params.get("reference", "rest")
    groups = list(params.get("groups", ()))
    is_named = params.get("within") is not None and len(groups) == 1
    if reference == "rest" and not is_named:
        return ""
    against = f"against {'all others' if reference == 'rest' else reference}"
    text = f"{groups[0]} {against}" if is_named else against
    return f"\n{textwrap.fill(text, _LABEL_LENGTH)}"


def _name_caveats(table: pd.DataFrame) -> str:
    """Say what is to be known of bars in full color, one line each."""
    reasons = [reason for reason in _short_caveats(table[~table["pale"]]) if reason]
    return "".join(f"\n({reason})" for reason in reasons)


def _short_caveats(table: pd.DataFrame) -> list[str]:
    """Caveats up to the colon. The table has them in full."""
    return [caveat.partition(":")[0] for caveat in table["caveat"].unique()]


def _draw_panels(
    canvas: Canvas,
    table: pd.DataFrame,
    colors: dict[str, str],
    *,
    value_label: str,
    pale_label: str,
    n_columns: int | None,
) -> Figure | list[Axes] | Axes | None:
    """Draw ``value`` of each ``name``, for each group into axes of its own, or into the given ones.

    ``pale_label`` says what ``pale`` means.
    """
    max_name_length = canvas.line_length(50)
    rows_of_group = {
        str(group): rows for group, rows in table.groupby("group", observed=True)
    }
    canvas.only_one(len(rows_of_group), "group", "pass groups=[...]")
    names = list(dict.fromkeys(table["name"]))
    wrapped = wrap(names, max_name_length)
    text_of_name = dict(zip(names, wrapped, strict=True))
    if n_columns is None:
        # As many as fit beside one another with their names.
        longest = max(len(line) for name in wrapped for line in name.splitlines())
        n_columns = math.ceil(math.sqrt(2 * len(rows_of_group)))
        n_columns = max(1, min(n_columns, int(12 / (2 + longest / 12))))
    n_rows = max(len(rows) for rows in rows_of_group.values())
    height = row_height(wrapped, 0.19) * n_rows
    axes = canvas.panels(len(rows_of_group), n_columns, (5, height + 1))
    for ax, (group, rows) in zip(axes, rows_of_group.items(), strict=True):
        texts = [text_of_name[name] for name in rows["name"]]
        _draw_bars(ax, rows, texts, colors[group])
        # Bars are equally thick in all panels.
        ax.set_ylim(n_rows - 0.5, -0.5)
        title = wrap([group], max_name_length)[0]
        ax.set_title(title, fontsize=TITLE_SIZE, loc="right")
    for ax in axes[-n_columns:]:
        if table["pale"].any():
            # Right-aligned, so that a text longer than the bars extends below the names.
            label = f"{value_label}\npale: {pale_label}"
            ax.set_xlabel(label, fontsize=NAME_SIZE, loc="right")
        else:
            ax.set_xlabel(value_label, fontsize=NAME_SIZE)
    canvas.fit(axes[0], (1.7, height))
    return canvas.finish(axes)


def _draw_bars(ax: Axes, rows: pd.DataFrame, names: list[str], color: str) -> None:
    bars = ax.barh(
        range(len(rows)),
        rows["value"].to_numpy(float),
        color=color,
        height=0.72,
        # A thin edge, because some colors of large palettes are nearly white.
        edgecolor=plt.rcParams["text.color"],
        linewidth=0.3,
    )
    for bar, is_pale in zip(bars, rows["pale"], strict=True):
        if is_pale:
            bar.set_alpha(_PALE)
    name_rows(ax, names)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=3, min_n_ticks=2))
    ax.tick_params(axis="x", labelsize=NAME_SIZE - 1)
    if (rows["value"] < 0).any():
        ax.axvline(0, color=plt.rcParams["axes.edgecolor"], linewidth=0.8)
        ax.spines["left"].set_visible(False)


# --------------------------------------------------------------------------- one cell

_NOT_OF_MUDATA = (
    "only an AnnData has what each gene adds in a cell, and tosica.pl.top_genes draws what it adds "
    "in a group"
)


@plot_function(adata=CellData(cure=_NOT_OF_MUDATA))
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
    are one bar. The line is at the sum: the score of the label less that of the baseline. Bars are
    pale and hatched for genes that the cell's group expresses less than the baseline.

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
        If ``n_genes`` is below 1, or several cells have this name.
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
    row = _row_of_cell(adata, cell)
    values = np.asarray(adata.layers[key][row], dtype=float)
    # By position, since names of genes may occur twice.
    columns = np.argsort(-np.abs(values), kind="stable")[:n_genes]
    strongest = pd.Series(values[columns], adata.var_names[columns])
    remainder = pd.Series({"all other genes": values.sum() - strongest.sum()})
    bars = pd.concat([strongest, remainder])
    ends = bars.cumsum().to_numpy()
    group = str(adata.obs[record["groupby"]].iloc[row])
    height = 0.22 * len(bars)
    ax = canvas.axes((6, height + 1))
    patches = ax.barh(
        range(len(bars)),
        bars,
        left=np.append(0, ends[:-1]),
        color=[*np.where(strongest > 0, BLUE, ORANGE), GRAY],
        height=0.72,
    )
    is_absent = _is_below_baseline(record, group, adata)[columns]
    for patch, absent in zip(patches, is_absent, strict=False):
        if absent:
            patch.set(alpha=_PALE, hatch="////", edgecolor=plt.rcParams["text.color"])
    rows = np.arange(len(strongest))
    ax.vlines(ends[:-1], rows, rows + 1, color=GRAY, linewidth=0.8)
    ax.axvline(
        ends[-1], color=plt.rcParams["text.color"], linewidth=0.8, linestyle="--"
    )
    name_rows(ax, list(bars.index))
    ax.set_xlabel(
        f"score of {record['target']},\nless that of the baseline (logits)",
        fontsize=NAME_SIZE,
    )
    ax.set_title(f"{cell}: {group}", fontsize=TITLE_SIZE)
    if is_absent.any():
        handle = Patch(
            facecolor=(0.5, 0.5, 0.5, _PALE),
            edgecolor=plt.rcParams["text.color"],
            hatch="////",
            linewidth=0,
            label="expressed below\nbaseline by its group",
        )
        # Right of the axes, where it hides no bar and no name.
        ax.legend(
            handles=[handle],
            loc="upper left",
            bbox_to_anchor=(1, 1),
            frameon=False,
            fontsize=NAME_SIZE,
        )
    canvas.fit(ax, (3.2, height))
    return canvas.finish(ax)


def _row_of_cell(adata: AnnData, cell: str) -> int:
    """Position of a cell by its name."""
    rows = np.flatnonzero(adata.obs_names == cell)
    if len(rows) == 0:
        raise KeyError(f"adata.obs_names has no cell {cell!r}.")
    if len(rows) > 1:
        raise ValueError(
            f"{len(rows)} cells are named {cell!r}: call adata.obs_names_make_unique() first."
        )
    return int(rows[0])


def _is_below_baseline(
    record: Mapping[str, Any], group: str, adata: AnnData
) -> BoolArray:
    """Whether a group expresses each gene of ``adata`` less than the baseline, ``(n_vars,)``."""
    groups = [str(name) for name in record["groups"]]
    if group not in groups:
        return np.zeros(adata.n_vars, dtype=bool)
    expression = record["expression"].iloc[:, groups.index(group)]
    # The table has the model's names, which those of the query are matched with.
    names = pd.Index(expression.index.astype(str))
    genes = find_genes(adata.var_names, names, lambda: load_table(adata.var)).indexer
    return (genes >= 0) & (expression.to_numpy()[genes] < 0)


# --------------------------------------------------------------------------- samples


@plot_function()
def composition(
    adata: AnnData,
    sample_key: str,
    *,
    groupby: str = "tosica_prediction",
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
    groups = read_groups(adata, groupby)
    samples = read_groups(adata, sample_key, name="sample_key")
    shares = pd.crosstab(samples, groups, normalize="index")
    max_name_length = canvas.line_length(40)
    names = wrap(list(shares.index), max_name_length)
    labels = [str(label) for label in shares]
    n_legend_columns = math.ceil(len(labels) / 12)
    n_legend_rows = math.ceil(len(labels) / n_legend_columns)
    # As high as the legend, too.
    height = max(row_height(names, 0.26) * len(names), 1.3 * LINE * n_legend_rows)
    ax = canvas.axes((8, height + 1))
    colors = group_colors(adata, groupby)
    left = shares.cumsum(axis=1) - shares
    texts = wrap(labels, max_name_length)
    bars = [
        ax.barh(
            range(len(names)),
            shares[label],
            left=left[label],
            color=colors[label],
        )
        for label in labels
    ]
    name_rows(ax, names)
    ax.set(xlim=(0, 1), xlabel="share of the cells", ylabel=sample_key)
    # Names that begin with an underscore are left out unless they are passed.
    ax.legend(
        bars,
        texts,
        fontsize=NAME_SIZE,
        ncols=n_legend_columns,
        loc="upper left",
        bbox_to_anchor=(1, 1),
        frameon=False,
    )
    canvas.fit(ax, (3.5, height))
    return canvas.finish(ax)
