"""Mean contributions of gene sets, or attention to them, as a clustered heatmap."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from scipy.cluster.hierarchy import leaves_list, linkage

from tosica._annotated import resolve_key, result_type
from tosica._validation import check_count, check_flags, check_number
from tosica.get import mean_attention
from tosica.pl._choose_gene_sets import choose_gene_sets, scale_groups
from tosica.pl._docs import fill_docs
from tosica.pl._figure import (
    Canvas,
    check_cmap,
    fitting_font,
    group_colors,
    line_count,
    text_width,
)
from tosica.pl._names import value_name, wrap

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import pandas as pd
    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from seaborn.matrix import ClusterGrid

    from tosica.get._tables import Scale

# Default number of gene sets, of all groups together and at most for each.
_N_GENE_SETS, _MAX_PER_GROUP = 36, 5
# Colours end at this mean z-score, so that those of a rare type do not make all others pale.
_MAX_Z_SCORE = 2.5
# First line of the title of the colour bar.
_SCALES = {"z_score": "mean z-score of", "min_max": "mean (0 to 1) of", None: "mean of"}

_FONT_SIZE = 8.5
_TICK_LENGTH = 2.0
# In inches.
_CELL = 0.175
_CELL_OF_TWO_LINES = 0.3
_MIN_HEATMAP = 0.9
_TREE = 0.5
_STRIP = 0.13
_GAP = 0.04
_MARGIN = 0.12
_TICK = 0.08
_BAR_GAP = 0.25
_BAR_WIDTH = 0.15
_BAR_HEIGHT = 1.1
_BAR_TICKS = 0.55
_BAR_TITLE_LINE = 0.14


@fill_docs()
def gene_set_heatmap(
    adata: AnnData,
    groupby: str,
    *,
    gene_sets: Sequence[str] | None = None,
    n_gene_sets: int | None = None,
    scale: Scale | None = "z_score",
    cluster_groups: bool = True,
    cluster_gene_sets: bool = False,
    swap_axes: bool = True,
    cmap: str | Colormap | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    max_name_length: int = 50,
    key: str | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    dpi: int = 300,
    return_fig: bool = False,
) -> Figure | dict[str, Axes] | None:
    """Clustered heatmap of gene sets in groups of cells: mean contributions, or mean attention.

    Values are those of :func:`tosica.get.mean_attention`. By default the most important gene sets
    of each group are shown: those with the highest mean contribution or, for attention, those whose
    mean is furthest above the mean of the other groups, in standard deviations within groups. The
    strip beside the heatmap has the colours of the groups, ``adata.uns[f"{groupby}_colors"]``.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated. It is not changed.
    groupby
        Column of ``adata.obs`` with the groups, such as ``"tosica_prediction"``.
    gene_sets
        Gene sets to show instead, in this order unless they are clustered.
    n_gene_sets
        Number of gene sets for each group. ``None``: as many as make about 36 in all, from 1 to 5.
    scale
        How the values of each gene set are scaled: ``"z_score"`` (over cells), ``"min_max"`` (over
        groups), or ``None`` for no scaling; see :func:`tosica.get.mean_attention`.
    cluster_groups, cluster_gene_sets
        Order by average linkage of Euclidean distances, and draw the tree. Groups that are not
        clustered are in the order of their categories. Gene sets that are not clustered are in the
        order of the groups in which they are highest, or of ``gene_sets``.
    swap_axes
        Draw gene sets as rows, where long names are easiest to read; ``False`` draws groups as
        rows.
    cmap
        Colour map. The default is ``"vlag"`` for values with a sign, which are z-scores and, with
        ``scale=None``, contributions, and ``"viridis"`` otherwise.
    vmin, vmax
        Values where the colours end. By default they span the groups of at least three cells. For
        values with a sign they are symmetric around 0, so that 0 is white, and at most 2.5 for
        z-scores. An arrow at the colour bar shows that there are values beyond.
    {max_name_length}
    {values_key}
    {figure}

    Returns
    -------
    The figure if ``return_fig``; with ``show=False`` a dict of axes (``"heatmap"``,
    ``"colorbar"``, ``"group_colors"``, ``"group_tree"``, ``"gene_set_tree"``); else ``None``.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or ``groupby`` or a gene set is missing.
    TypeError
        If ``groupby`` cannot be read as groups.
    ValueError
        If cells have no group, ``scale`` is unknown, ``gene_sets`` is empty or given together with
        ``n_gene_sets``, ``n_gene_sets`` is below 1, or the presence was written by another model
        than the annotation, or matplotlib cannot write the format of ``save``.
    {save_raises}

    Notes
    -----
    There are many parameters because those that :func:`scanpy.pl.heatmap`,
    :func:`seaborn.clustermap` and all plots of this package have are kept under the same names.

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array([f"term {i}" for i in range(40)])}
    >>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 40), np.float32)
    >>> axes = tosica.pl.gene_set_heatmap(adata, "bulk_labels", n_gene_sets=2, show=False)
    >>> len(axes["heatmap"].get_xticklabels())
    10
    """
    canvas = Canvas(None, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    check_cmap(cmap)
    check_count("max_name_length", max_name_length, least=10)
    check_number("vmin", vmin, optional=True)
    check_number("vmax", vmax, optional=True)
    check_flags(
        cluster_groups=cluster_groups, cluster_gene_sets=cluster_gene_sets, swap_axes=swap_axes
    )
    key = resolve_key(adata, key)
    table = mean_attention(adata, groupby, scale=scale, key=key)
    shown = choose_gene_sets(
        adata,
        groupby,
        gene_sets,
        n_gene_sets,
        key=key,
        n_total=_N_GENE_SETS,
        max_per_group=_MAX_PER_GROUP,
    )
    sets_scale = scale_groups(adata, groupby)
    if scale == "min_max":
        table = _from_zero_to_one(table, sets_scale)
    # Of gene sets with the same name, only the first is drawn.
    table = table.loc[:, ~table.columns.duplicated()].loc[:, shown]
    group_tree = _tree(table.to_numpy()) if cluster_groups else None
    if gene_sets is None:
        table = table.loc[:, _along_groups(table, group_tree)]
    set_tree = _tree(table.to_numpy().T) if cluster_gene_sets else None
    colors = group_colors(adata, groupby)
    has_sign = scale == "z_score" or (
        scale is None and result_type(adata, key) in ("presence", "attribution")
    )
    max_limit = _MAX_Z_SCORE if scale == "z_score" else np.inf
    scaling = table.to_numpy()[sets_scale]
    vmin, vmax = _limits(scaling, max_limit if has_sign else None, vmin, vmax)
    grid = _clustermap(
        table,
        group_tree,
        set_tree,
        [colors[name] for name in table.index],
        swap_axes=swap_axes,
        cmap=cmap or ("vlag" if has_sign else "viridis"),
        title=value_name(adata, key, _SCALES[scale]),
        vmin=vmin,
        vmax=vmax,
    )
    group_names = wrap(list(table.index), max_name_length)
    set_names = wrap(list(table.columns), max_name_length)
    rows, columns = _ticks(group_names, group_tree), _ticks(set_names, set_tree)
    if swap_axes:
        rows, columns = columns, rows
    grid.ax_heatmap.set(xlabel="", ylabel="")
    grid.ax_heatmap.set_yticks(*rows, rotation=0, linespacing=1.0)
    grid.ax_heatmap.set_xticks(*columns, rotation=90, linespacing=1.0)
    _lay_out(grid, figsize)
    axes = {
        "heatmap": grid.ax_heatmap,
        "colorbar": grid.ax_cbar,
        "group_colors": grid.ax_col_colors if swap_axes else grid.ax_row_colors,
        "group_tree": grid.ax_col_dendrogram if swap_axes else grid.ax_row_dendrogram,
        "gene_set_tree": grid.ax_row_dendrogram if swap_axes else grid.ax_col_dendrogram,
    }
    canvas.figure = grid.figure
    return canvas.finish(axes)


def _clustermap(
    table: pd.DataFrame,
    group_tree: NDArray[np.float64] | None,
    set_tree: NDArray[np.float64] | None,
    strip: list[str],
    *,
    swap_axes: bool,
    cmap: str | Colormap,
    title: str,
    vmin: float | None,
    vmax: float | None,
) -> ClusterGrid:
    """Seaborn's clustered heatmap of a table of groups × gene sets, without names."""
    row_tree, column_tree = (set_tree, group_tree) if swap_axes else (group_tree, set_tree)
    with warnings.catch_warnings():
        # seaborn tries a tight layout, which fails in narrow figures; _lay_out replaces it.
        warnings.filterwarnings("ignore", message=".*[Tt]ight.layout", category=UserWarning)
        return sns.clustermap(
            table.T if swap_axes else table,
            row_cluster=row_tree is not None,
            row_linkage=row_tree,
            col_cluster=column_tree is not None,
            col_linkage=column_tree,
            row_colors=None if swap_axes else strip,
            col_colors=strip if swap_axes else None,
            # Set later, because seaborn would draw all names to check whether they overlap.
            xticklabels=False,
            yticklabels=False,
            cmap=cmap,
            vmin=vmin,
            vmax=vmax,
            cbar_kws={"label": title, "extend": _extend(table.to_numpy(), vmin, vmax)},
            tree_kws={"linewidths": 0.7, "colors": plt.rcParams["text.color"]},
        )


def _from_zero_to_one(table: pd.DataFrame, rows: NDArray[np.bool_]) -> pd.DataFrame:
    """Scale each column so that these rows span 0 to 1."""
    low, high = table[rows].min(), table[rows].max()
    return (table - low) / (high - low).where(high > low, 1.0)


def _limits(
    values: NDArray[np.float64], max_limit: float | None, vmin: float | None, vmax: float | None
) -> tuple[float, float]:
    """Limits of the colours: the given ones, or what these values span.

    They are symmetric around 0 and at most ``max_limit``, unless it is ``None``.
    """
    low, high = float(values.min()), float(values.max())
    if max_limit is not None:
        high = min(max(-low, high), max_limit) or 1.0
        low = -high
    return low if vmin is None else vmin, high if vmax is None else vmax


def _tree(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Linkage of the rows; none for a single row."""
    return linkage(values, method="average") if len(values) > 1 else None


def _drawn_order(n_leaves: int, tree: NDArray[np.float64] | None) -> NDArray[np.int_]:
    return np.arange(n_leaves) if tree is None else leaves_list(tree)


def _ticks(
    names: list[str], tree: NDArray[np.float64] | None
) -> tuple[NDArray[np.floating], list[str]]:
    """Positions of the ticks, and names in the order in which they are drawn."""
    order = _drawn_order(len(names), tree)
    return np.arange(len(names)) + 0.5, [names[i] for i in order]


def _along_groups(table: pd.DataFrame, group_tree: NDArray[np.float64] | None) -> list[str]:
    """Order gene sets by the group in which they are highest, so that these form a diagonal."""
    values = table.to_numpy()[_drawn_order(len(table), group_tree)]
    order = np.lexsort((-values.max(axis=0), values.argmax(axis=0)))
    return [str(table.columns[i]) for i in order]


def _extend(values: NDArray[np.float64], vmin: float | None, vmax: float | None) -> str:
    """Ends of the colour bar beyond which there are values, in matplotlib's terms."""
    is_below = vmin is not None and values.min() < vmin
    is_above = vmax is not None and values.max() > vmax
    if is_below and is_above:
        return "both"
    if is_below:
        return "min"
    return "max" if is_above else "neither"


def _cell(n_lines: int) -> float:
    return _CELL if n_lines == 1 else _CELL_OF_TWO_LINES


def _lay_out(grid: ClusterGrid, figsize: tuple[float, float] | None) -> None:
    """Position tree, strip, heatmap, names and colour bar so that nothing is cut off or overlaps.

    seaborn divides a figure by ratios, so that many or long names leave too little room for the
    heatmap. Here each part gets the inches that it needs, and the figure is as large as all of
    them. With ``figsize``, the heatmap gets the room that the other parts leave.
    """
    heatmap = grid.ax_heatmap
    n_rows, n_columns = grid.data2d.shape
    row_labels = [label.get_text() for label in heatmap.get_yticklabels()]
    column_labels = [label.get_text() for label in heatmap.get_xticklabels()]
    has_row_tree = grid.dendrogram_row is not None
    has_column_tree = grid.dendrogram_col is not None
    left = _MARGIN + _TREE * has_row_tree + (_STRIP + _GAP) * (grid.ax_row_colors is not None)
    top = _MARGIN + _TREE * has_column_tree + (_STRIP + _GAP) * (grid.ax_col_colors is not None)
    bar_text = _BAR_TICKS + _BAR_TITLE_LINE * len(grid.ax_cbar.get_ylabel().splitlines())
    row_font = column_font = _FONT_SIZE
    row_lines, column_lines = line_count(row_labels), line_count(column_labels)
    width = max(n_columns * _cell(column_lines), _MIN_HEATMAP)
    height = max(n_rows * _cell(row_lines), _MIN_HEATMAP)
    # In a figure of given size, font sizes and size of the heatmap depend on each other: the second
    # pass uses the font sizes of the first.
    for _ in range(2):
        bottom = _TICK + text_width(column_labels, column_font) + _MARGIN
        row_names_width = _TICK + text_width(row_labels, row_font)
        right = row_names_width + _BAR_GAP + _BAR_WIDTH + bar_text + _MARGIN
        if figsize is not None:
            width = max(figsize[0] - left - right, 0.1 * figsize[0])
            height = max(figsize[1] - top - bottom, 0.1 * figsize[1])
        row_font = fitting_font(height / n_rows, _FONT_SIZE, row_lines)
        column_font = fitting_font(width / n_columns, _FONT_SIZE, column_lines)
    total_width, total_height = figsize or (
        left + width + right,
        max(top + height + bottom, top + _BAR_HEIGHT + 2 * _MARGIN),
    )
    figure = grid.figure
    figure.set_layout_engine("none")
    figure.set_size_inches(total_width, total_height)

    def place(ax: Axes, x: float, y: float, w: float, h: float) -> None:
        """Position axes at inches from the left and the top."""
        ax.set_position(
            (x / total_width, 1 - (y + h) / total_height, w / total_width, h / total_height)
        )

    place(heatmap, left, top, width, height)
    place(grid.ax_row_dendrogram, _MARGIN, top, _TREE, height)
    place(grid.ax_col_dendrogram, left, _MARGIN, width, _TREE)
    if grid.ax_row_colors is not None:
        place(grid.ax_row_colors, left - _STRIP - _GAP, top, _STRIP, height)
    if grid.ax_col_colors is not None:
        place(grid.ax_col_colors, left, top - _STRIP - _GAP, width, _STRIP)
    bar_height = min(_BAR_HEIGHT, total_height - top - _MARGIN)
    place(grid.ax_cbar, left + width + row_names_width + _BAR_GAP, top, _BAR_WIDTH, bar_height)
    grid.ax_cbar.tick_params(labelsize=_FONT_SIZE - 1)
    grid.ax_cbar.yaxis.label.set_fontsize(_FONT_SIZE - 0.5)

    heatmap.tick_params(axis="y", labelsize=row_font, length=_TICK_LENGTH)
    heatmap.tick_params(axis="x", labelsize=column_font, length=_TICK_LENGTH)
