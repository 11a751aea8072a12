"""Cells of groups: violins of gene sets, an embedding, and boxes of the novelty."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scanpy as sc

from tosica._obs import (
    ATTRIBUTION,
    ORANGE,
    find_gene_sets,
    group_colors,
    read_attribution,
    read_groups,
    read_numbers,
)
from tosica._validate import as_names
from tosica.get import contributions
from tosica.pl._figure import Canvas, FigureOptions
from tosica.pl._gene_sets import SET_CONTRIBUTION, choose_gene_sets
from tosica.pl._names import NAME_SIZE, TITLE_SIZE, name_rows, row_height, wrap
from tosica.pl._plot_function import COLOR_MAP, plot_function

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tosica._types import AnnOrMuData, FloatArray

# Groups with fewer cells have no distribution: each of their cells is a dot.
_MIN_CELLS = 5
# Groups with a legend of normal font size; more get a small one.
_MAX_LEGEND = 20


@plot_function()
def gene_set_violin(
    adata: AnnOrMuData,
    groupby: str,
    *,
    gene_sets: Sequence[str] | None = None,
    n_gene_sets: int | None = None,
    n_columns: int | None = None,
    key: str = ATTRIBUTION,
    **figure: Unpack[FigureOptions],
) -> Figure | list[Axes] | Axes | None:
    """Violin plots of what gene sets add in the cells of each group, with a panel for each gene set.

    A violin is the distribution over the cells of a group and has its color; the dot is the
    median, and the thick line spans the quartiles. Groups of fewer than five cells are drawn as
    dots only. The dashed line is at 0: no contribution. The genes of the set count that a cell
    expresses more than the baseline, so that none adds by its absence.
    :func:`tosica.pl.gene_set_dotplot` has the means of the groups that were explained.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.attribute` was run with ``cells=True``. It is not changed.
    groupby
        Column of ``adata.obs`` with the groups, such as ``"tosica_prediction"``.
    gene_sets
        Gene sets to show, in this order; by default the first of each group that was explained, as
        in :func:`tosica.get.gene_sets_df`.
    n_gene_sets
        Number of gene sets for each group. ``None``: as many as make about 9 in all, at most 2.
    n_columns
        Panels side by side; by default at most 3.
    {key}
    ax
        Axes to draw a single gene set into, instead of a new figure.
    {new_figure}

    Returns
    -------
    {returns_panels}

    Raises
    ------
    KeyError
        If there is no such result for each cell, or ``groupby`` or a gene set is missing.
    TypeError
        If ``groupby`` cannot be read as groups.
    ValueError
        If cells have no group, ``gene_sets`` is empty or given together with ``n_gene_sets``, or
        ``ax`` is given for several gene sets.
    {raises}

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model, cells=True)
    >>> gene_set = query.uns["tosica_attribution"]["gene_sets"][0]
    >>> axes = tosica.pl.gene_set_violin(query, "phase", gene_sets=gene_set, show=False)
    >>> [label.get_text() for label in axes[0].get_yticklabels()]
    ['G1', 'G2M', 'S']
    """
    canvas = Canvas(**figure)
    groups = read_groups(adata, groupby)
    by_set = _contributions(adata, key)
    chosen_sets = choose_gene_sets(
        adata,
        key,
        gene_sets,
        n_gene_sets,
        available=list(by_set.var_names),
        where=f"adata.uns[{key!r}]['gene_sets']",
        default_total=9,
        default_most=2,
    )
    canvas.only_one(len(chosen_sets), "gene set", "pass gene_sets=[...]")
    max_name_length = canvas.line_length(36)
    names = wrap(list(groups.categories), max_name_length)
    height = row_height(names, 0.24) * len(names)
    axes = canvas.panels(
        len(chosen_sets), n_columns or 3, (3.5, height + 1), sharey=True
    )
    colors = group_colors(adata, groupby)
    titles = wrap(chosen_sets, max_name_length)
    for ax, name, title in zip(axes, chosen_sets, titles, strict=True):
        values = np.asarray(by_set[:, name].X, dtype=np.float64)[:, 0]
        for position, group in enumerate(groups.categories):
            _draw_violin(ax, values[groups == group], position, colors[group])
        ax.axvline(
            0, color=plt.rcParams["text.color"], linewidth=0.8, linestyle="--", zorder=0
        )
        ax.set_title(title, fontsize=TITLE_SIZE, linespacing=1.05)
        ax.tick_params(axis="x", labelsize=NAME_SIZE)
        name_rows(ax, names)
    label = SET_CONTRIBUTION
    if len(axes) == 1:
        axes[0].set_xlabel(label, fontsize=NAME_SIZE)
    else:
        canvas.figure.supxlabel(label, fontsize=NAME_SIZE)
    canvas.fit(axes[0], (2.2, height))
    return canvas.finish(axes)


def _draw_violin(ax: Axes, values: FloatArray, position: int, color: str) -> None:
    """Draw a violin for the cells of a group, or dots if they are few."""
    if len(values) < _MIN_CELLS:
        _draw_dots(ax, values, position, color)
        return
    edge = plt.rcParams["text.color"]
    violin: Any = ax.violinplot(
        [values], [position], orientation="horizontal", widths=0.85, showextrema=False
    )
    for body in violin["bodies"]:
        body.set(facecolor=color, edgecolor=edge, linewidth=0.5, alpha=0.85)
    low, median, high = np.percentile(values, [25, 50, 75])
    ax.plot([low, high], [position, position], color=edge, linewidth=2.2)
    ax.plot(
        [median],
        [position],
        "o",
        markersize=3.5,
        color=plt.rcParams["axes.facecolor"],
        markeredgecolor=edge,
    )


def _draw_dots(ax: Axes, values: FloatArray, position: int, color: str) -> None:
    ax.plot(
        values,
        np.full(len(values), position),
        "o",
        markersize=4.5,
        color=color,
        markeredgecolor=plt.rcParams["text.color"],
        markeredgewidth=0.5,
    )


@plot_function(cmap=replace(COLOR_MAP, optional=True))
def umap(
    adata: AnnOrMuData,
    color: str | Sequence[str],
    *,
    basis: str = "umap",
    n_columns: int = 3,
    cmap: str | None = None,
    title: str | Sequence[str] | None = None,
    key: str = ATTRIBUTION,
    **kwargs: Any,
) -> Figure | list[Axes] | Axes | None:
    """What gene sets add in each cell, and columns of ``adata.obs``, on a UMAP.

    This is :func:`scanpy.pl.embedding` on :func:`tosica.get.contributions`, with wrapped names.

    Parameters
    ----------
    adata
        Data with an embedding in ``adata.obsm`` and, for gene sets, the result of
        :func:`tosica.tl.attribute` with ``cells=True``. It is not changed.
    color
        Gene set, column of ``adata.obs``, or a list of both.
    basis
        Embedding to draw, ``adata.obsm[f"X_{basis}"]``.
    n_columns
        Panels side by side.
    cmap
        Color map; by default ``"coolwarm"`` for gene sets, gray where they add nothing, and
        ``"viridis"`` for numeric columns.
    title
        Titles of the first panels, as they are to be written; by default the names in ``color``.
    {key}
    ax
        Axes to draw a single panel into, instead of a new figure.
    {new_figure}
    **kwargs
        Passed to :func:`scanpy.pl.embedding`, such as ``size`` or ``vmax="p99"``.

    Returns
    -------
    {returns_panels}

    Raises
    ------
    KeyError
        If there is no such result for each cell, no such embedding, or no gene set or column of
        such a name.
    ValueError
        If ``ax`` is given for several panels.
    {raises}

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model, cells=True)
    >>> gene_set = query.uns["tosica_attribution"]["gene_sets"][0]
    >>> axes = tosica.pl.umap(query, ["bulk_labels", gene_set], show=False)
    >>> axes[1].get_title() == gene_set
    True
    """
    options = {
        name: kwargs.pop(name)
        for name in list(kwargs)
        if name in FigureOptions.__annotations__
    }
    canvas = Canvas(**options)
    columns = as_names(color)
    if f"X_{basis}" not in adata.obsm:
        raise KeyError(
            f"adata.obsm has no 'X_{basis}': run scanpy.pp.neighbors and scanpy.tl.{basis} first."
        )
    gene_sets = [name for name in columns if name not in adata.obs]
    cells = sc.AnnData(
        obs=adata.obs.copy(), obsm={f"X_{basis}": adata.obsm[f"X_{basis}"]}
    )
    if gene_sets or not columns:
        by_set = _contributions(adata, key)
        where = f"adata.uns[{key!r}]['gene_sets'], and no such column in adata.obs"
        gene_sets = find_gene_sets(gene_sets, list(by_set.var_names), where)
        cells = by_set[:, gene_sets].copy()
    canvas.only_one(len(columns), "panel", "name one color")
    for name in columns:
        if name in adata.obs and adata.obs[name].dtype.kind not in "fiu":
            cells.obs[name] = cells.obs[name].astype("category")
            cells.uns[f"{name}_colors"] = list(group_colors(adata, name).values())
    axes = canvas.panels(len(columns), n_columns, (5.0, 3.6))
    titles = wrap(columns, canvas.line_length(38))
    if title is not None:
        given = as_names(title)[: len(titles)]
        titles[: len(given)] = given
    for ax, name, text in zip(axes, columns, titles, strict=True):
        settings = _embedding_settings(cells, name, name in gene_sets, cmap) | kwargs
        sc.pl.embedding(
            cells, basis, color=name, title=text, ax=ax, show=False, **settings
        )
        _complete_legend(ax, settings)
        # A vector file of many dots could not be opened: they are an image in it.
        for dots in ax.collections:
            dots.set_rasterized(True)
        ax.set_title(text, fontsize=TITLE_SIZE)
        bar = ax.collections[0].colorbar if name in gene_sets else None
        if bar is not None:
            bar.set_label("contribution (logits)", fontsize=8)
    canvas.fit(axes[0], (3.2, 3.2))
    return canvas.finish(axes)


def _embedding_settings(
    cells: AnnData, name: str, is_gene_set: bool, cmap: str | None
) -> dict[str, Any]:
    """Arguments of scanpy's plot for one panel."""
    n_colors = len(cells.uns.get(f"{name}_colors", ()))
    settings = {
        "frameon": False,
        "size": min(60.0, 120_000 / cells.n_obs),
        "legend_fontsize": 5.5 if n_colors > _MAX_LEGEND else 8,
        "legend_loc": "right margin",
        "cmap": cmap or "viridis",
    }
    if is_gene_set and cmap is None:
        limit = float(np.abs(cells[:, name].X).max())
        settings.update(cmap="coolwarm", vmin=-limit, vmax=limit)
    return settings


def _complete_legend(ax: Axes, settings: dict[str, Any]) -> None:
    """Draw scanpy's legend again if it lacks names that begin with an underscore."""
    # scanpy draws dots without cells for the legend, and matplotlib takes names that begin with an
    # underscore only if they are passed.
    handles = [dots for dots in ax.collections if np.size(dots.get_offsets()) == 0]
    names = [str(handle.get_label()) for handle in handles]
    if ax.get_legend() is None or not any(name.startswith("_") for name in names):
        return
    place: dict[str, Any] = {"loc": settings["legend_loc"]}
    if place["loc"] == "right margin":
        n_columns = 1 + (len(names) > 14) + (len(names) > 30)
        place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
        place |= {"ncols": n_columns, "frameon": False}
    ax.legend(handles, names, fontsize=settings["legend_fontsize"], **place)


def _contributions(adata: AnnOrMuData, key: str) -> AnnData:
    """Cells × gene sets of ``tl.attribute``; of sets with the same name, only the first is drawn."""
    read_attribution(adata, key)
    by_set = contributions(adata, key=key)
    return by_set[:, ~by_set.var_names.duplicated()]


@plot_function()
def novelty(
    adata: AnnData,
    groupby: str | None = None,
    *,
    key: str = "tosica",
    cutoff: float | None = None,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Box plots of the novelty of cells, one for each group, the highest median on top.

    A box spans the quartiles and has a line at the median. Whiskers end at the furthest cell
    within 1.5 times the interquartile range, dots are the cells beyond. Groups of fewer than five
    cells are drawn as dots only. Cells without a novelty (NaN) are left out.

    Parameters
    ----------
    adata
        Query that :func:`tosica.tl.novelty` has scored, or ``model.annotate`` cell by cell. It is
        not changed.
    groupby
        Column of ``adata.obs`` with the groups; by default the predictions.
    key
        ``key_added`` of ``model.annotate``.
    cutoff
        Novelty at which to draw a line.
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
        If cells have no group.
    {raises}

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
    canvas = Canvas(**figure)
    if groupby is None:
        groupby = f"{key}_prediction"
    groups = read_groups(adata, groupby)
    values = read_numbers(adata, f"{key}_novelty")
    medians = pd.Series(values).groupby(pd.Series(groups), observed=True).median()
    order = [str(name) for name in medians.sort_values(ascending=False).index]
    names = wrap(order, canvas.line_length(40))
    height = row_height(names, 0.24) * len(order)
    ax = canvas.axes((7, height + 1))
    colors = group_colors(adata, groupby)
    for position, name in enumerate(order):
        is_drawn = (groups == name) & ~np.isnan(values)
        _draw_box(ax, values[is_drawn], position, colors[name])
    name_rows(ax, names)
    ax.set_xlabel("novelty", fontsize=TITLE_SIZE)
    ax.set_ylabel(groupby, fontsize=TITLE_SIZE)
    if cutoff is not None:
        ax.axvline(cutoff, linestyle="--", linewidth=1.2, color=ORANGE)
        # Above the axes, where it hides nothing.
        ax.text(
            cutoff,
            1.01,
            "cutoff",
            transform=ax.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=8,
        )
    canvas.fit(ax, (2.8, height))
    return canvas.finish(ax)


def _draw_box(ax: Axes, values: FloatArray, position: int, color: str) -> None:
    """Draw the box of a group, or dots if its cells are few."""
    if len(values) < _MIN_CELLS:
        _draw_dots(ax, values, position, color)
        return
    edge = plt.rcParams["text.color"]
    artists = ax.boxplot(
        [values],
        positions=[position],
        widths=0.7,
        orientation="horizontal",
        patch_artist=True,
        manage_ticks=False,
        sym=".",
    )
    for name in ("whiskers", "caps", "medians", "boxes"):
        plt.setp(artists[name], color=edge, linewidth=0.8)
    plt.setp(artists["boxes"], facecolor=color)
    plt.setp(artists["fliers"], markersize=3, markeredgecolor=edge)
