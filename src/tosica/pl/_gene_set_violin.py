"""Violin plots of gene sets in groups of cells: a panel for each gene set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from tosica._annotated import resolve_key, result_type
from tosica._groups import read_groups
from tosica._validation import check_count
from tosica.get import attention
from tosica.pl._choose_gene_sets import choose_gene_sets
from tosica.pl._docs import fill_docs
from tosica.pl._figure import Canvas, group_colors, line_count, text_width
from tosica.pl._names import value_name, wrap

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

# Default number of gene sets, of all groups together and at most for each.
_N_GENE_SETS, _MAX_PER_GROUP = 9, 2
# Panels side by side by default.
_MAX_COLUMNS = 3
# Groups with fewer cells have no distribution: each of their cells is a dot.
_MIN_VIOLIN = 5
_FONT_SIZE, _TITLE_SIZE = 9.0, 9.5
# In inches.
_ROW, _ROW_OF_TWO_LINES = 0.24, 0.32
_WIDTH, _GAP, _TITLE_LINE, _AXIS, _LABEL = 1.9, 0.25, 0.19, 0.35, 0.5


@fill_docs()
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
    adata
        Query that ``model.annotate`` has annotated. It is not changed.
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
    check_count("n_columns", n_columns, optional=True)
    check_count("max_name_length", max_name_length, least=10)
    key = resolve_key(adata, key)
    values = attention(adata, key=key)
    groups = read_groups(adata, groupby)
    shown = choose_gene_sets(
        adata,
        groupby,
        gene_sets,
        n_gene_sets,
        key=key,
        n_total=_N_GENE_SETS,
        max_per_group=_MAX_PER_GROUP,
    )
    if ax is not None and len(shown) > 1:
        raise ValueError(
            f"ax has room for one gene set, and there are {len(shown)}: pass gene_sets=[...]."
        )
    # Of gene sets with the same name, only the first is drawn.
    values = values[:, ~values.var_names.duplicated()][:, shown]
    names = wrap(list(groups.categories), max_name_length)
    titles = wrap(shown, max_name_length)
    has_sign = result_type(adata, key) in ("presence", "attribution")
    reference = "no contribution" if has_sign else "mean of all cells"
    x_label = value_name(adata, key).replace("\n", " ") + f"\n(dashed: {reference})"
    axes = _new_axes(canvas, names, titles, n_columns, x_label) if ax is None else [ax]
    if ax is not None:
        ax.set_xlabel(x_label, fontsize=_FONT_SIZE)
    colors = group_colors(adata, groupby)
    for i, (panel, title) in enumerate(zip(axes, titles, strict=True)):
        of_set = np.asarray(values.X[:, i], dtype=np.float64).ravel()
        parts = [of_set[groups.codes == code] for code in range(len(names))]
        _draw_violins(panel, parts, [colors[name] for name in groups.categories])
        panel.axvline(
            0 if has_sign else of_set.mean(),
            color=plt.rcParams["text.color"],
            linewidth=0.8,
            linestyle="--",
            zorder=0,
        )
        panel.set_title(title, fontsize=_TITLE_SIZE, linespacing=1.05)
        panel.set_yticks(range(len(names)), names, fontsize=_FONT_SIZE, linespacing=1.0)
        panel.set_ylim(len(names) - 0.4, -0.6)
        panel.tick_params(axis="y", length=0)
        panel.tick_params(axis="x", labelsize=_FONT_SIZE - 1)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.grid(False)
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
        violin = ax.violinplot(
            [cells], [position], orientation="horizontal", widths=0.85, showextrema=False
        )
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


def _new_axes(
    canvas: Canvas, names: list[str], titles: list[str], n_columns: int | None, x_label: str
) -> list[Axes]:
    """Panels of a new figure; only those on the left have the names of the groups."""
    n_columns = min(len(titles), n_columns or _MAX_COLUMNS)
    n_rows = -(-len(titles) // n_columns)
    width = max(_WIDTH, text_width(titles, _TITLE_SIZE)) + _GAP
    row = _ROW if line_count(names) == 1 else _ROW_OF_TWO_LINES
    height = row * (len(names) + 0.4) + _TITLE_LINE * line_count(titles) + _AXIS
    names_width = text_width(names, _FONT_SIZE)
    needed = names_width + n_columns * width + _GAP, n_rows * height + _LABEL
    # The label of the axes may be wider than one narrow panel.
    label_width = text_width([x_label], _FONT_SIZE) + _GAP
    figure = canvas.new_figure((max(needed[0], label_width), needed[1]), "constrained")
    figure.set_layout_engine("constrained", h_pad=0.08)
    axes = figure.subplots(n_rows, n_columns, sharey=True, squeeze=False).ravel()
    for unused in axes[len(titles) :]:
        unused.remove()
    figure.supxlabel(x_label, fontsize=_FONT_SIZE)
    return list(axes[: len(titles)])
