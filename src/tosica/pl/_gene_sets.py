"""Gene sets in groups of cells: dots, matrix, violins and an embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scanpy as sc

from tosica._checks import Integer, Names, String, as_names
from tosica._obs import find_gene_sets, read_attention, read_groups, resolve_key, result_type
from tosica._stats import group_moments, standardized_difference
from tosica.get import attention
from tosica.pl._figure import (
    LINE,
    NAME_SIZE,
    TITLE_SIZE,
    Canvas,
    fit_names,
    group_colors,
    line_count,
    plot_function,
)
from tosica.pl._names import value_name, wrap

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

# Colours end at this mean z-score, so that those of a rare type do not make all others pale.
MAX_Z_SCORE = 2.5
# Means of fewer cells are too noisy to set the scale for all others.
_MIN_CELLS = 3
# Groups with fewer cells have no distribution: each of their cells is a dot.
_MIN_VIOLIN = 5
# Groups with a legend of normal font size; more get a small one.
_MAX_LEGEND = 20


@plot_function(key=String(optional=True))
def gene_set_dotplot(
    adata: AnnData,
    groupby: str,
    *,
    gene_sets: Sequence[str] | None = None,
    n_gene_sets: int | None = None,
    swap_axes: bool = True,
    max_name_length: int = 50,
    key: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    dpi: int = 300,
    return_fig: bool = False,
    **kwargs: Any,
) -> Figure | dict[str, Axes] | None:
    """Dot plot of gene sets in groups of cells.

    :class:`scanpy.pl.DotPlot` on :func:`tosica.get.attention`. Values are contributions to the
    label's score, or attention. Colour is the mean z-score in the group. Size is the share of its
    cells whose value is above the mean of all cells, because no value is zero as counts are.

    Parameters
    ----------
    {adata}
    groupby
        Column of ``adata.obs`` with the groups, such as ``"tosica_prediction"``.
    gene_sets
        Gene sets to show, in this order; by default the most important of each group, as in
        :func:`tosica.pl.gene_set_heatmap`.
    n_gene_sets
        Number of gene sets for each group. ``None``: as many as make about 24 in all.
    swap_axes
        Draw gene sets as rows, where long names are easiest to read, instead of groups.
    {max_name_length}
    {values_key}
    {ax}
    {figure}
    **kwargs
        Passed to :meth:`scanpy.pl.DotPlot.style`.

    Returns
    -------
    The figure if ``return_fig``; scanpy's dict of axes if ``show=False`` or ``ax`` is given; else
    ``None``.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or ``groupby`` or a gene set is missing.
    TypeError
        If ``groupby`` cannot be read as groups.
    ValueError
        If cells have no group, ``gene_sets`` is empty or given together with ``n_gene_sets``,
        or the presence was written by another model than the annotation.
    {ax_raises}

    Notes
    -----
    ``ax``, ``figsize``, ``show``, ``save`` and ``return_fig`` are the same in all plots.

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
    >>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> axes = tosica.pl.gene_set_dotplot(adata, "phase", show=False)
    >>> "mainplot_ax" in axes
    True
    """
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    return _draw_by_scanpy(
        canvas,
        sc.pl.DotPlot,
        _Shown(adata, groupby, gene_sets, n_gene_sets, max_name_length, key),
        {"cmap": "vlag", "dot_edge_lw": 0.3} | kwargs,
        swap_axes=swap_axes,
    )


@plot_function(key=String(optional=True))
def gene_set_matrixplot(
    adata: AnnData,
    groupby: str,
    *,
    gene_sets: Sequence[str] | None = None,
    n_gene_sets: int | None = None,
    swap_axes: bool = True,
    max_name_length: int = 50,
    key: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    dpi: int = 300,
    return_fig: bool = False,
    **kwargs: Any,
) -> Figure | dict[str, Axes] | None:
    """Matrix plot of gene sets in groups of cells, coloured by mean z-scores.

    :class:`scanpy.pl.MatrixPlot` on :func:`tosica.get.attention`. Values are contributions to the
    label's score, or attention, z-scored over all cells: white is the mean of all cells.

    Parameters
    ----------
    {adata}
    groupby
        Column of ``adata.obs`` with the groups, such as ``"tosica_prediction"``.
    gene_sets
        Gene sets to show, in this order; by default the most important of each group, as in
        :func:`tosica.pl.gene_set_heatmap`.
    n_gene_sets
        Number of gene sets for each group. ``None``: as many as make about 24 in all.
    swap_axes
        Draw gene sets as rows, where long names are easiest to read, instead of groups.
    {max_name_length}
    {values_key}
    {ax}
    {figure}
    **kwargs
        Passed to :meth:`scanpy.pl.MatrixPlot.style`.

    Returns
    -------
    The figure if ``return_fig``; scanpy's dict of axes if ``show=False`` or ``ax`` is given; else
    ``None``.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or ``groupby`` or a gene set is missing.
    TypeError
        If ``groupby`` cannot be read as groups.
    ValueError
        If cells have no group, ``gene_sets`` is empty or given together with ``n_gene_sets``,
        or the presence was written by another model than the annotation.
    {ax_raises}

    Notes
    -----
    ``ax``, ``figsize``, ``show``, ``save`` and ``return_fig`` are the same in all plots.

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
    >>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> axes = tosica.pl.gene_set_matrixplot(adata, "phase", show=False)
    >>> "mainplot_ax" in axes
    True
    """
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    return _draw_by_scanpy(
        canvas,
        sc.pl.MatrixPlot,
        _Shown(adata, groupby, gene_sets, n_gene_sets, max_name_length, key),
        {"cmap": "vlag", "edge_lw": 0.2} | kwargs,
        swap_axes=swap_axes,
    )


class _Shown:
    """Z-scores of the gene sets to show, as an AnnData with short names and ``obs["group"]``."""

    def __init__(
        self,
        adata: AnnData,
        groupby: str,
        gene_sets: Sequence[str] | None,
        n_gene_sets: int | None,
        max_name_length: int,
        key: str | None,
    ) -> None:
        key = resolve_key(adata, key)
        shown = choose_gene_sets(adata, groupby, gene_sets, n_gene_sets, key, (24, 4))
        values = _values_of(adata, key, shown)
        groups = read_groups(adata, groupby)
        self.title = value_name(adata, key, "mean z-score of")
        self.names = wrap(shown, max_name_length)
        self.group_names = wrap(list(groups.categories), max_name_length)
        z = np.asarray(values.X, dtype=np.float64)
        deviation = z.std(axis=0)
        z = ((z - z.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)).astype(np.float32)
        self.z_scores = sc.AnnData(z, obs=pd.DataFrame(index=values.obs_names))
        self.z_scores.var_names = self.names
        codes, names = groups.codes, pd.Index(self.group_names)
        self.z_scores.obs["group"] = pd.Categorical.from_codes(codes, names)
        # Symmetric, so that white is the mean of all cells.
        means = group_moments(z, groups).mean[scale_groups(adata, groupby)]
        self.limit = min(float(np.abs(means).max()), MAX_Z_SCORE) or 1.0


def _draw_by_scanpy(
    canvas: Canvas,
    kind: type[sc.pl.DotPlot] | type[sc.pl.MatrixPlot],
    shown: _Shown,
    style: dict[str, Any],
    *,
    swap_axes: bool,
) -> Figure | dict[str, Axes] | None:
    """Draw a plot of scanpy, with room for the names, which scanpy puts outside of the figure."""
    rows, columns = shown.group_names, shown.names
    if swap_axes:
        rows, columns = columns, rows
    width, height = (max(0.26, LINE * line_count(names)) * len(names) for names in (columns, rows))
    legend = 1.6
    options: Any = {}
    titles = {"title": shown.title}
    if kind is sc.pl.DotPlot:
        options = {"expression_cutoff": 0}
        titles = {"colorbar_title": shown.title, "size_title": "cells above\naverage (%)"}
    plot = kind(
        shown.z_scores,
        shown.names,
        "group",
        vmin=-shown.limit,
        vmax=shown.limit,
        ax=canvas.ax,
        figsize=(width + legend + 0.4, max(height, 1.9)),
        **options,
    )
    plot.legend(width=legend, **titles)
    plot.style(**style)
    if swap_axes:
        plot.swap_axes()
    plot.make_figure()
    axes = plot.get_axes()
    main = axes["mainplot_ax"]
    main.tick_params(labelsize=NAME_SIZE)
    if canvas.ax is None:
        canvas.figure = plot.fig
        _make_room(canvas)
    fit_names(main)
    return canvas.finish(axes)


def _make_room(canvas: Canvas) -> None:
    """Grow a figure by what its names need or, if its size is given, shrink what is drawn."""
    figure, margin = canvas.figure, 0.1
    inner = figure.get_size_inches()
    figure.subplots_adjust(0, 0, 1, 1)
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    low = margin - np.minimum(box.min, 0)
    high = margin + np.maximum(box.max - inner, 0)
    size = inner + low + high if canvas.figsize is None else np.array(canvas.figsize)
    # What is left for the cells and legends, at the least.
    least = np.minimum(low, 0.8 * size - high) / size
    figure.set_size_inches(*size)
    figure.subplots_adjust(*least, *(1 - high / size))


@plot_function(key=String(optional=True))
def gene_set_violin(
    adata: AnnData,
    groupby: str,
    *,
    gene_sets: Sequence[str] | None = None,
    n_gene_sets: int | None = None,
    n_columns: int | None = None,
    max_name_length: int = 36,
    key: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    dpi: int = 300,
    return_fig: bool = False,
) -> Figure | list[Axes] | Axes | None:
    """Violin plots of gene sets in groups of cells, with a panel for each gene set.

    Values are contributions to the label's score, or attention, in their own units. A violin is the
    distribution over the cells of a group and has its colour; the dot is the median, and the thick
    line spans the quartiles. Groups of fewer than five cells are drawn as dots only. The dashed
    line is at 0 for contributions: no contribution, as in the mean cell of the reference. For
    attention it is at the mean of all cells.

    Parameters
    ----------
    {adata}
    groupby
        Column of ``adata.obs`` with the groups, such as ``"tosica_prediction"``.
    gene_sets
        Gene sets to show, in this order; by default the most important of each group, as in
        :func:`tosica.pl.gene_set_heatmap`.
    n_gene_sets
        Number of gene sets for each group. ``None``: as many as make about 9 in all, at most 2.
    n_columns
        Panels side by side; by default at most 3.
    {max_name_length}
    {values_key}
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
        If ``adata`` was not annotated under ``key``, or ``groupby`` or a gene set is missing.
    TypeError
        If ``groupby`` cannot be read as groups.
    ValueError
        If cells have no group, ``gene_sets`` is empty or given together with ``n_gene_sets``,
        ``n_gene_sets`` is below 1, ``ax`` is given for several gene sets, or the presence was
        written by another model than the annotation.
    {ax_raises}

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
    >>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> axes = tosica.pl.gene_set_violin(adata, "phase", gene_sets="phagocytosis", show=False)
    >>> [label.get_text() for label in axes[0].get_yticklabels()]
    ['G1', 'G2M', 'S']
    """
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    key = resolve_key(adata, key)
    groups = read_groups(adata, groupby)
    shown = choose_gene_sets(adata, groupby, gene_sets, n_gene_sets, key, (9, 2))
    if ax is not None and len(shown) > 1:
        raise ValueError(f"ax has room for one gene set, and there are {len(shown)}: pass gene_sets=[...].")
    values = np.asarray(_values_of(adata, key, shown).X, dtype=np.float64)
    names = wrap(list(groups.categories), max_name_length)
    height = max(0.24, LINE * line_count(names)) * (len(names) + 0.4)
    axes = canvas.panels(len(shown), n_columns or 3, (3.5, height + 1), sharey=True)
    colors = group_colors(adata, groupby)
    has_sign = result_type(adata, key) in ("presence", "attribution")
    for panel, of_set, title in zip(axes, values.T, wrap(shown, max_name_length), strict=True):
        parts = [of_set[groups.codes == code] for code in range(len(names))]
        _draw_violins(panel, parts, [colors[name] for name in groups.categories])
        panel.axvline(
            0 if has_sign else of_set.mean(),
            color=plt.rcParams["text.color"],
            linewidth=0.8,
            linestyle="--",
            zorder=0,
        )
        panel.set_title(title, fontsize=TITLE_SIZE, linespacing=1.05)
        panel.set_yticks(range(len(names)), names, fontsize=NAME_SIZE, linespacing=1.0)
        panel.set_ylim(len(names) - 0.4, -0.6)
        panel.tick_params(axis="y", length=0)
        panel.tick_params(axis="x", labelsize=NAME_SIZE)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.grid(False)
    reference = "no contribution" if has_sign else "mean of all cells"
    x_label = value_name(adata, key).replace("\n", " ") + f"\n(dashed: {reference})"
    if len(axes) == 1:
        axes[0].set_xlabel(x_label, fontsize=NAME_SIZE)
    else:
        canvas.figure.supxlabel(x_label, fontsize=NAME_SIZE)
    canvas.fit(axes[0], (1.9, height))
    return canvas.finish(axes if ax is None else ax)


def _draw_violins(ax: Axes, parts: Sequence[NDArray[np.float64]], colors: Sequence[str]) -> None:
    """Draw a violin for the cells of each group, or dots if they are few, from top to bottom."""
    edge = plt.rcParams["text.color"]
    for position, (cells, color) in enumerate(zip(parts, colors, strict=True)):
        if len(cells) < _MIN_VIOLIN:
            ax.plot(
                cells,
                np.full(len(cells), position),
                "o",
                markersize=4.5,
                markerfacecolor=color,
                markeredgecolor=edge,
                markeredgewidth=0.5,
            )
            continue
        violin = ax.violinplot([cells], [position], orientation="horizontal", widths=0.85, showextrema=False)
        # A list, which the types of matplotlib do not know.
        for body in violin["bodies"]:  # type: ignore[attr-defined]
            body.set(facecolor=color, edgecolor=edge, linewidth=0.5, alpha=0.85)
        low, median, high = np.percentile(cells, [25, 50, 75])
        ax.plot([low, high], [position, position], color=edge, linewidth=2.2)
        ax.plot(
            [median],
            [position],
            "o",
            markersize=3.5,
            markerfacecolor=plt.rcParams["axes.facecolor"],
            markeredgecolor=edge,
            markeredgewidth=0.7,
        )


@plot_function(color=Names(), basis=String(), n_columns=Integer(), key=String(optional=True))
def umap(
    adata: AnnData,
    color: str | Sequence[str],
    *,
    basis: str = "umap",
    n_columns: int = 3,
    cmap: str = "viridis",
    max_name_length: int = 38,
    key: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    dpi: int = 300,
    return_fig: bool = False,
    **kwargs: Any,
) -> Figure | list[Axes] | Axes | None:
    """Contributions of gene sets, or attention to them, and columns of ``adata.obs``, on a UMAP.

    This is :func:`scanpy.pl.embedding` on :func:`tosica.get.attention`, with wrapped names.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated, with an embedding in ``adata.obsm``. It is not
        changed.
    color
        Gene set, column of ``adata.obs``, or a list of both.
    basis
        Embedding to draw, ``adata.obsm[f"X_{basis}"]``.
    n_columns
        Panels side by side.
    cmap
        Colour map of gene sets and numeric columns.
    {max_name_length}
    {values_key}
    ax
        Axes to draw a single panel into, instead of a new figure.
    {figure}
    **kwargs
        Passed to :func:`scanpy.pl.embedding`, such as ``size`` or ``vmax="p99"``.

    Returns
    -------
    The figure if ``return_fig``; with ``show=False`` a list of axes, or ``ax``; else ``None``.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, has no such embedding, or no gene set or
        column of such a name.
    ValueError
        If ``ax`` is given for several panels, or the presence was written by another model than the
        annotation.
    {ax_raises}

    Notes
    -----
    ``ax``, ``figsize``, ``show``, ``save`` and ``return_fig`` are the same in all plots.

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
    >>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> axes = tosica.pl.umap(adata, ["bulk_labels", "phagocytosis"], show=False)
    >>> [ax.get_title() for ax in axes]
    ['bulk_labels', 'phagocytosis']
    """
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    colors = as_names(color)
    key = resolve_key(adata, key)
    by_set = attention(adata, key=key)
    if f"X_{basis}" not in adata.obsm:
        raise KeyError(f"adata.obsm has no 'X_{basis}': run scanpy.pp.neighbors and scanpy.tl.{basis} first.")
    rest = [name for name in colors if name not in adata.obs]
    if rest or not colors:
        where = f"adata.uns[{key!r}]['gene_sets'], and no such column in adata.obs"
        find_gene_sets(rest, list(by_set.var_names), where)
    if ax is not None and len(colors) > 1:
        raise ValueError(f"ax has room for one panel, and color names {len(colors)}.")
    # Of gene sets with the same name, only the first is drawn.
    by_set = by_set[:, ~by_set.var_names.duplicated()].copy()
    groups = [n for n in colors if n in adata.obs and adata.obs[n].dtype.kind not in "fiu"]
    for name in groups:
        if f"{name}_colors" not in by_set.uns:
            by_set.obs[name] = by_set.obs[name].astype("category")
            by_set.uns[f"{name}_colors"] = list(group_colors(by_set, name).values())
    axes = canvas.panels(len(colors), n_columns, (5.0, 3.6))
    defaults = {"frameon": False, "size": min(60.0, 120_000 / by_set.n_obs)}
    for panel, name, title in zip(axes, colors, wrap(colors, max_name_length), strict=True):
        is_large = name in groups and by_set.obs[name].nunique() > _MAX_LEGEND
        sc.pl.embedding(
            by_set,
            basis,
            color=name,
            title=title,
            ax=panel,
            show=False,
            cmap=cmap,
            **(defaults | {"legend_fontsize": 5.5 if is_large else 8} | kwargs),
        )
        # A vector file of many dots could not be opened: they are an image in it.
        for dots in panel.collections:
            dots.set_rasterized(True)
        panel.set_title(title, fontsize=TITLE_SIZE)
        bar = panel.collections[0].colorbar if name in rest else None
        if bar is not None:
            bar.set_label(value_name(adata, key), fontsize=8)
    canvas.fit(axes[0], (3.2, 3.2))
    return canvas.finish(axes if ax is None else ax)


# --------------------------------------------------------------------------- which gene sets


def _values_of(adata: AnnData, key: str, shown: list[str]) -> AnnData:
    """Values of some gene sets; of those with the same name, only the first is drawn."""
    values = attention(adata, key=key)
    return values[:, ~values.var_names.duplicated()][:, shown]


def scale_groups(adata: AnnData, groupby: str) -> NDArray[np.bool_]:
    """Find the groups that set the scale of the colours: those of at least three cells, if any.

    The mean of one or two cells may lie far out. If it set the scale, the differences between the
    other groups would be invisible.
    """
    n_cells = np.bincount(read_groups(adata, groupby).codes)
    is_large = n_cells >= _MIN_CELLS
    return is_large if is_large.any() else np.ones_like(is_large)


def choose_gene_sets(
    adata: AnnData,
    groupby: str,
    gene_sets: Sequence[str] | None,
    n_gene_sets: int | None,
    key: str,
    default: tuple[int, int],
) -> list[str]:
    """Name the gene sets to show.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated.
    groupby
        Column of ``adata.obs`` with the groups.
    gene_sets
        Gene sets that the user asks for, if any.
    n_gene_sets
        Gene sets for each group.
    key
        Key of the values.
    default
        Without these: number of gene sets of all groups together, and at most for each.

    Raises
    ------
    KeyError
        If a gene set is missing.
    ValueError
        If ``n_gene_sets`` is given together with ``gene_sets``.
    """
    if gene_sets is not None:
        if n_gene_sets is not None:
            raise ValueError("gene_sets says which gene sets to show: leave n_gene_sets out.")
        _, known = read_attention(adata, key)
        return find_gene_sets(gene_sets, known, f"adata.uns[{key!r}]['gene_sets']")
    if n_gene_sets is None:
        total, most = default
        n_gene_sets = min(most, max(1, total // len(read_groups(adata, groupby).categories)))
    return specific_gene_sets(adata, groupby, n_gene_sets, key=key)


def specific_gene_sets(adata: AnnData, groupby: str, n_gene_sets: int, *, key: str = "tosica") -> list[str]:
    """Most important gene sets of each group, in the order of the groups, each name once.

    For contributions to a label's score, these are the gene sets with the highest mean in the
    group: contributions are already differences from the mean cell of the reference.

    For attention, these are the most specific gene sets, by
    :func:`~tosica._stats.standardized_difference` from the mean of the means of the other
    groups. Unlike a test statistic it does not depend on the number of cells, rare types count as
    much as common ones, and a group may have a single cell.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated.
    groupby
        Column of ``adata.obs`` with the groups.
    n_gene_sets
        Gene sets for each group; fewer, but at least one, if fewer are above zero.
    key
        Key of the values.

    Returns
    -------
    Names of gene sets.
    """
    values, gene_sets = read_attention(adata, key)
    moments = group_moments(values, read_groups(adata, groupby))
    if result_type(adata, key) in ("presence", "attribution"):
        importance = moments.mean
    else:
        importance = np.stack(
            [
                standardized_difference(moments, group, "other groups", within="all groups")
                for group in range(len(moments.n_cells))
            ]
        )
    chosen: dict[str, None] = {}
    for row in importance:
        best = np.argsort(-row, kind="stable")[:n_gene_sets]
        positive = best[row[best] > 0]
        chosen.update(dict.fromkeys(gene_sets[i] for i in (positive if positive.size else best[:1])))
    return list(chosen)
