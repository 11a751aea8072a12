"""Mean contributions of gene sets, or attention to them, as a clustered heatmap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.colors import to_rgb
from scipy.cluster.hierarchy import dendrogram, linkage

from tosica._checks import OneOf, String
from tosica._obs import resolve_key, result_type
from tosica.get import mean_attention
from tosica.pl._figure import (
    LINE,
    NAME_SIZE,
    Canvas,
    fit_names,
    group_colors,
    line_count,
    plot_function,
)
from tosica.pl._gene_sets import MAX_Z_SCORE, choose_gene_sets, scale_groups
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

    from tosica.get._tables import Scale

# First line of the title of the colour bar.
_SCALES = {"z_score": "mean z-score of", "min_max": "mean (0 to 1) of", None: "mean of"}


@plot_function(key=String(optional=True), scale=OneOf("z_score", "min_max", optional=True))
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
    {adata}
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
    key = resolve_key(adata, key)
    table = mean_attention(adata, groupby, scale=scale, key=key)
    shown = choose_gene_sets(adata, groupby, gene_sets, n_gene_sets, key, (36, 5))
    sets_scale = scale_groups(adata, groupby)
    if scale == "min_max":
        low, high = table[sets_scale].min(), table[sets_scale].max()
        table = (table - low) / (high - low).where(high > low, 1.0)
    # Of gene sets with the same name, only the first is drawn.
    table = table.loc[:, ~table.columns.duplicated()].loc[:, shown]
    has_sign = scale == "z_score" or (scale is None and result_type(adata, key) in ("presence", "attribution"))
    most = (MAX_Z_SCORE if scale == "z_score" else np.inf) if has_sign else None
    vmin, vmax = _limits(table.to_numpy()[sets_scale], most, vmin, vmax)
    group_tree = _tree(table) if cluster_groups else None
    if group_tree is not None:
        table = table.iloc[group_tree["leaves"]]
    if gene_sets is None:
        # By the group in which they are highest, so that these form a diagonal.
        values = table.to_numpy()
        table = table.iloc[:, np.lexsort((-values.max(axis=0), values.argmax(axis=0)))]
    set_tree = _tree(table.T) if cluster_gene_sets else None
    if set_tree is not None:
        table = table.iloc[:, set_tree["leaves"]]
    drawn = table.T if swap_axes else table
    rows, columns = (wrap(list(names), max_name_length) for names in (drawn.index, drawn.columns))
    trees = (set_tree, group_tree) if swap_axes else (group_tree, set_tree)
    heatmap, row_strip, column_strip, row_tree, column_tree, fit = _new_axes(canvas, rows, columns, trees)
    mesh = heatmap.pcolormesh(drawn, cmap=cmap or ("vlag" if has_sign else "viridis"), vmin=vmin, vmax=vmax)
    colors = group_colors(adata, groupby)
    strip = np.array([to_rgb(colors[name]) for name in table.index])
    if swap_axes:
        column_strip.pcolormesh(strip[None])
    else:
        row_strip.pcolormesh(strip[:, None])
    bar = _add_bar(heatmap, mesh, value_name(adata, key, _SCALES[scale]))
    canvas.fit(heatmap, *fit)
    fit_names(heatmap)
    axes = {
        "heatmap": heatmap,
        "colorbar": bar,
        "group_colors": column_strip if swap_axes else row_strip,
        "group_tree": column_tree if swap_axes else row_tree,
        "gene_set_tree": row_tree if swap_axes else column_tree,
    }
    return canvas.finish(axes)


def _add_bar(heatmap: Axes, mesh: QuadMesh, title: str) -> Axes:
    """Add a short colour bar beside the first rows, with arrows where there are values beyond."""
    values: Any = mesh.get_array()
    ends = bool(values.min() < mesh.norm.vmin), bool(values.max() > mesh.norm.vmax)
    arrows = {(True, True): "both", (True, False): "min", (False, True): "max"}
    bar = heatmap.figure.colorbar(
        mesh,
        ax=heatmap,
        extend=arrows.get(ends, "neither"),
        shrink=min(1.0, 7 / len(heatmap.get_yticks())),
        anchor=(0, 1),
        aspect=8,
    )
    bar.set_label(title, fontsize=NAME_SIZE)
    bar.ax.tick_params(labelsize=NAME_SIZE - 1)
    bar.outline.set_visible(False)  # type: ignore[operator]
    return bar.ax


def _new_axes(
    canvas: Canvas,
    rows: list[str],
    columns: list[str],
    trees: tuple[dict[str, Any] | None, dict[str, Any] | None],
) -> tuple[Any, ...]:
    """Make axes of a heatmap, of strips and of trees, each on the left and on top.

    The last item says how large the heatmap has to be, and the figure with it.
    """
    # A cell is as high as a line of text, or two.
    height, width = (max(max(0.175, LINE * line_count(names)) * len(names), 0.9) for names in (rows, columns))
    row_tree, column_tree = (0.01 if tree is None else 0.5 for tree in trees)
    widths, heights = [row_tree, 0.13, width], [column_tree, 0.13, height]
    figure = canvas.new_figure((sum(widths) + 4, sum(heights) + 3))
    layout: Any = figure.get_layout_engine()
    layout.set(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
    grid = figure.add_gridspec(3, 3, width_ratios=widths, height_ratios=heights)
    places = ((2, 2), (2, 1), (1, 2), (2, 0), (0, 2))
    axes = [figure.add_subplot(grid[place]) for place in places]
    for ax in axes[1:]:
        ax.axis("off")
    for ax, tree, is_left in zip(axes[3:], trees, (True, False), strict=True):
        _draw_tree(ax, tree, is_left=is_left)
    heatmap = axes[0]
    heatmap.invert_yaxis()
    axes[1].invert_yaxis()
    heatmap.yaxis.tick_right()
    heatmap.set_yticks(np.arange(len(rows)) + 0.5, rows)
    heatmap.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=90)
    heatmap.tick_params(labelsize=NAME_SIZE, length=2)
    heatmap.spines[:].set_visible(False)
    return *axes, ((width, height), (sum(widths) / width, sum(heights) / height))


def _draw_tree(ax: Axes, tree: dict[str, Any] | None, *, is_left: bool) -> None:
    """Draw a tree whose leaves are the rows, or the columns, of the heatmap."""
    if tree is None:
        return
    # scipy puts the leaves at 5, 15, 25 and so on.
    position, height = np.array(tree["icoord"]) / 10, np.array(tree["dcoord"])
    lines = np.stack([height, position] if is_left else [position, height], axis=-1)
    ax.add_collection(LineCollection(list(lines), colors=plt.rcParams["text.color"], linewidths=0.7))
    n, top = len(tree["leaves"]), 1.02 * height.max()
    if is_left:
        ax.set(xlim=(top, 0), ylim=(n, 0))
    else:
        ax.set(xlim=(0, n), ylim=(0, top))


def _tree(table: pd.DataFrame) -> dict[str, Any] | None:
    """Average linkage of the rows; none for a single row."""
    if len(table) < 2:
        return None
    return dict(dendrogram(linkage(table.to_numpy(), method="average"), no_plot=True))


def _limits(
    values: NDArray[np.float64], most: float | None, vmin: float | None, vmax: float | None
) -> tuple[float, float]:
    """Limits of the colours: the given ones, or what these values span.

    They are symmetric around 0 and at most ``most``, unless it is ``None``.
    """
    low, high = float(values.min()), float(values.max())
    if most is not None:
        high = min(max(-low, high), most) or 1.0
        low = -high
    return low if vmin is None else vmin, high if vmax is None else vmax
