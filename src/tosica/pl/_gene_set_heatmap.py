"""Mean contributions of gene sets, or attention to them, as a clustered heatmap."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from scipy.cluster.hierarchy import leaves_list, linkage

from tosica._annotated import find_gene_sets, kind_of, resolve_key
from tosica.get import mean_attention
from tosica.pl._figure import check_save, finish, group_colors, shorten, value_name
from tosica.pl._heatmap_layout import lay_out
from tosica.pl._specific_gene_sets import specific_gene_sets

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import pandas as pd
    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from tosica.get._attention import Scale

# Gene sets to aim at when the caller does not say how many, and the most for one group.
_ALL_GENE_SETS = 36
_MOST_PER_GROUP = 5
# Standard deviations at which the colours end: a rare type's z-scores would make all others pale.
_MOST_EXTREME = 2.5

# What a colour bar's title begins with.
_SCALES = {"z_score": "mean z-score of", "min_max": "mean (0 to 1) of", None: "mean of"}


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
    return_fig: bool = False,
) -> Figure | dict[str, Axes] | None:
    """Clustered heatmap of what gene sets contribute in groups of cells, or of attention to them.

    Values are those of :func:`tosica.get.mean_attention`. By default each group brings gene sets:
    those with the largest mean contribution, or, of attention, those whose mean lies furthest above
    the mean of the other groups, in standard deviations within groups. The strip beside the heatmap
    has the groups' colours from ``adata.uns[f"{groupby}_colors"]``.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated. It is not changed.
    groupby
        Column of ``adata.obs`` with the groups, such as ``"tosica_prediction"``.
    gene_sets
        Gene sets to show instead, in this order if they are not clustered.
    n_gene_sets
        How many gene sets each group brings. ``None``: as many as make about 36 in all, from 1
        to 5.
    scale
        ``"z_score"`` (over cells), ``"min_max"`` (over groups), both for each gene set, or
        ``None`` for the values themselves; see :func:`tosica.get.mean_attention`.
    cluster_groups, cluster_gene_sets
        Order by average linkage of Euclidean distances and draw the tree. Groups that are not
        clustered keep the order of their categories; gene sets that are not clustered follow the
        groups in which they are highest, or keep the order of ``gene_sets``.
    swap_axes
        Gene sets are the rows, as long names are best read; ``False`` makes groups the rows.
    cmap
        Colour map, by default ``"vlag"`` with white at 0 for z-scores and for contributions with
        ``scale=None``, which have a sign, and ``"viridis"`` otherwise.
    vmin, vmax
        Values where the colours end. Where white is 0 the default is symmetric around it, for
        z-scores 2.5 at most; an arrow at the colour bar says that values lie beyond.
    max_name_length
        Longer names are cut in the middle, at words, and stay different from each other.
    key
        What to show. ``None``: the presence that :func:`tosica.tl.attribute` wrote
        (``"tosica_presence"``) or, without it, the attention that ``model.annotate`` wrote
        (``"tosica"``); a log line says which.
    figsize
        Width and height in inches; by default as many as groups, gene sets and names need.
    show
        Show the figure. ``None`` shows it unless ``save`` or ``return_fig`` is given or
        ``scanpy.settings.autoshow`` is off.
    save
        Path to save the figure to; its ending decides the format.
    return_fig
        Return the figure.

    Returns
    -------
    The figure if ``return_fig``; with ``show=False`` a dict of axes (``"heatmap"``,
    ``"colorbar"``, ``"group_colors"``, ``"group_tree"``, ``"gene_set_tree"``); else ``None``.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or ``groupby`` or a gene set is missing.
    TypeError
        If ``groupby`` cannot be read as groups, or ``save`` is no path.
    ValueError
        If cells have no group, ``scale``, ``gene_sets`` or ``n_gene_sets`` make no sense, or the
        presence was written by another model than the annotation.
    FileNotFoundError
        If the folder of ``save`` does not exist.

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
    path = check_save(save)
    key = resolve_key(adata, key)
    table = mean_attention(adata, groupby, scale=scale, key=key)
    shown = _gene_sets_to_show(adata, groupby, table, gene_sets, n_gene_sets, key)
    # A name that occurs twice is shown once: the first of its columns.
    table = table.loc[:, ~table.columns.duplicated()].loc[:, shown]
    group_tree = _tree(table.to_numpy()) if cluster_groups else None
    if gene_sets is None:
        shown = _along_groups(table, group_tree)
        table = table.loc[:, shown]
    values = table.to_numpy()

    of_contributions = kind_of(adata, key) in ("presence", "attribution")
    signed = scale == "z_score" or (scale is None and of_contributions)
    if signed:
        most = _MOST_EXTREME if scale == "z_score" else np.inf
        limit = min(float(np.abs(values).max()), most) or 1.0
        vmin, vmax = -limit if vmin is None else vmin, limit if vmax is None else vmax
    colors = group_colors(adata, groupby)
    strip = [colors[name] for name in table.index]
    group_names = shorten(list(table.index), max_name_length)
    set_names = shorten(shown, max_name_length)
    set_tree = _tree(values.T) if cluster_gene_sets else None
    row_tree, column_tree = (set_tree, group_tree) if swap_axes else (group_tree, set_tree)

    with warnings.catch_warnings():
        # seaborn asks for a tight layout, which a narrow figure refuses; lay_out places everything.
        warnings.filterwarnings("ignore", message=".*[Tt]ight.layout", category=UserWarning)
        grid = sns.clustermap(
            table.T if swap_axes else table,
            row_cluster=row_tree is not None,
            row_linkage=row_tree,
            col_cluster=column_tree is not None,
            col_linkage=column_tree,
            row_colors=None if swap_axes else strip,
            col_colors=strip if swap_axes else None,
            # Set below: seaborn draws all labels several times to see whether they overlap.
            xticklabels=False,
            yticklabels=False,
            cmap=cmap or ("vlag" if signed else "viridis"),
            vmin=vmin,
            vmax=vmax,
            cbar_kws={
                "label": value_name(adata, key, _SCALES[scale]),
                "extend": _beyond(values, vmin, vmax),
            },
            tree_kws={"linewidths": 0.7, "colors": plt.rcParams["text.color"]},
        )
    grid.ax_heatmap.set(xlabel="", ylabel="")
    row_names, column_names = (set_names, group_names) if swap_axes else (group_names, set_names)
    grid.ax_heatmap.set_yticks(*_ticks(row_names, row_tree), rotation=0)
    grid.ax_heatmap.set_xticks(*_ticks(column_names, column_tree), rotation=90)
    lay_out(grid, figsize)
    axes = {
        "heatmap": grid.ax_heatmap,
        "colorbar": grid.ax_cbar,
        "group_colors": grid.ax_col_colors if swap_axes else grid.ax_row_colors,
        "group_tree": grid.ax_col_dendrogram if swap_axes else grid.ax_row_dendrogram,
        "gene_set_tree": grid.ax_row_dendrogram if swap_axes else grid.ax_col_dendrogram,
    }
    return finish(grid.figure, axes, show=show, save=path, return_fig=return_fig)


def _gene_sets_to_show(
    adata: AnnData,
    groupby: str,
    table: pd.DataFrame,
    gene_sets: Sequence[str] | None,
    n_gene_sets: int | None,
    key: str,
) -> list[str]:
    if gene_sets is None:
        if n_gene_sets is None:
            n_gene_sets = min(_MOST_PER_GROUP, max(1, _ALL_GENE_SETS // len(table)))
        elif n_gene_sets < 1:
            raise ValueError(f"n_gene_sets must be at least 1, not {n_gene_sets}.")
        return specific_gene_sets(adata, groupby, n_gene_sets, key=key)
    if n_gene_sets is not None:
        raise ValueError("gene_sets says which gene sets to show: leave n_gene_sets out.")
    return find_gene_sets(gene_sets, list(table.columns), f"adata.uns[{key!r}]['gene_sets']")


def _tree(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Linkage of the rows; none for a single row."""
    return linkage(values, method="average") if len(values) > 1 else None


def _drawn_order(n_leaves: int, tree: NDArray[np.float64] | None) -> NDArray[np.int_]:
    return np.arange(n_leaves) if tree is None else leaves_list(tree)


def _ticks(
    names: list[str], tree: NDArray[np.float64] | None
) -> tuple[NDArray[np.floating], list[str]]:
    """Middles of the cells, and their names in the order that is drawn."""
    order = _drawn_order(len(names), tree)
    return np.arange(len(names)) + 0.5, [names[i] for i in order]


def _along_groups(table: pd.DataFrame, group_tree: NDArray[np.float64] | None) -> list[str]:
    """Gene sets in the order of the drawn groups in which they are highest: a diagonal."""
    values = table.to_numpy()[_drawn_order(len(table), group_tree)]
    order = np.lexsort((-values.max(axis=0), values.argmax(axis=0)))
    return [str(table.columns[i]) for i in order]


def _beyond(values: NDArray[np.float64], vmin: float | None, vmax: float | None) -> str:
    """On which sides values lie beyond the colours, as matplotlib's colour bar calls it."""
    below = vmin is not None and values.min() < vmin
    above = vmax is not None and values.max() > vmax
    return {(True, True): "both", (True, False): "min", (False, True): "max"}.get(
        (below, above), "neither"
    )
