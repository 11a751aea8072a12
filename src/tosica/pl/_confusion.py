"""Confusion of labels and predictions as a heatmap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.ticker import MaxNLocator

from tosica.pl._figure import check_save, finish, fitting_font, shorten, text_width
from tosica.tl import confusion as confusion_table

if TYPE_CHECKING:
    import os

    import pandas as pd
    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

FONT_SIZE = 9.0
TITLE_SIZE = 10.0

# Numbers of four letters are readable in a cell of this size.
_CELL_WITH_NUMBER = 0.42
_CELL_WITHOUT = 0.19
_CELL_OF_FEW = 0.65
_FEW = 4
_MARGIN = 0.1
_TICK = 0.09
# Height of a line with the axis' title, and its distance from the names.
_AXIS_TITLE = 0.3
_BAR_GAP = 0.2
_BAR_WIDTH = 0.16
_BAR_TEXT = 0.75
_BAR_HEIGHT = 2.2


def new_axes(
    row_names: list[str],
    column_names: list[str],
    y_title: str,
    *,
    with_numbers: bool,
    has_title: bool,
    figsize: tuple[float, float] | None,
) -> tuple[Axes, Axes, float]:
    """Axes of a heatmap and of its colour bar in a new figure, where all names have room.

    matplotlib's own layouts shrink a heatmap with square cells or let the axis' title slip off the
    figure when names are long.

    Parameters
    ----------
    row_names, column_names
        Names beside and, turned by 90 degrees, below the heatmap.
    y_title
        What is written left of the row names.
    with_numbers
        Make cells large enough for a number.
    has_title
        Leave room for a title.
    figsize
        Width and height of the figure in inches; by default as large as needed. The heatmap takes
        what names and colour bar leave, with square cells.

    Returns
    -------
    Axes of the heatmap, axes of the colour bar, font size of the names.
    """
    n_rows, n_columns = len(row_names), len(column_names)
    cell = _CELL_WITH_NUMBER if with_numbers else _CELL_WITHOUT
    cell = _CELL_OF_FEW if max(n_rows, n_columns) <= _FEW else cell
    top = _MARGIN + (_AXIS_TITLE if has_title else 0)
    right = _BAR_GAP + _BAR_WIDTH + _BAR_TEXT + _MARGIN
    font = FONT_SIZE
    # In a figure of fixed size the names' size depends on the cells' and the other way round: the
    # second pass uses the font size that the first has found.
    for _ in range(2):
        left = _MARGIN + _AXIS_TITLE + _TICK + text_width(row_names, font)
        bottom = _MARGIN + _AXIS_TITLE + _TICK + text_width(column_names, font)
        if figsize is not None:
            width, height = figsize
            cell = min((width - left - right) / n_columns, (height - top - bottom) / n_rows)
            cell = max(cell, 0.1 * min(width / n_columns, height / n_rows))
        font = fitting_font(cell, FONT_SIZE)
    heatmap_width, heatmap_height = n_columns * cell, n_rows * cell
    if figsize is None:
        # A long title of the axis may be higher than a heatmap with few rows.
        overhang = (text_width([y_title], TITLE_SIZE) - heatmap_height) / 2
        top = max(top, overhang + _MARGIN)
        bottom = max(bottom, overhang + _MARGIN)
        figsize = (left + heatmap_width + right, top + heatmap_height + bottom)
    width, height = figsize
    figure = plt.figure(figsize=figsize)
    bar_height = min(_BAR_HEIGHT, heatmap_height)
    ax = figure.add_axes(
        (
            left / width,
            1 - (top + heatmap_height) / height,
            heatmap_width / width,
            heatmap_height / height,
        )
    )
    color_bar = figure.add_axes(
        (
            (left + heatmap_width + _BAR_GAP) / width,
            1 - (top + bar_height) / height,
            _BAR_WIDTH / width,
            bar_height / height,
        )
    )
    return ax, color_bar, font


# More rows or columns than this are better read by colour.
_MOST_NUMBERS = 25
_NUMBER_SIZE = 8.0
_SMALLEST_NUMBER = 5.0


def confusion(
    adata: AnnData,
    labels_key: str,
    *,
    prediction_key: str = "tosica_prediction",
    normalize: bool = True,
    annotate: bool | None = None,
    cmap: str | Colormap = "mako_r",
    max_name_length: int = 40,
    title: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
) -> Figure | Axes | None:
    """Heatmap of known labels (rows) against predictions (columns).

    The table is that of :func:`tosica.tl.confusion`: both axes run through the labels in the order
    of their categories, so that right answers lie on the diagonal, and ``"Unknown"`` is last.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated and whose labels are known. It is not changed.
    labels_key
        Column of ``adata.obs`` with the known labels.
    prediction_key
        Column of ``adata.obs`` with the predictions.
    normalize
        Show shares of each row's cells, from 0 to 1, instead of numbers of cells.
    annotate
        Write the numbers into the cells, zeros left blank. ``None`` does so if there are at most
        25 rows and 25 columns and the cells are large enough.
    cmap
        Colour map; the default's lightness falls steadily, so it can be read without colours.
    max_name_length
        Longer labels are cut in the middle.
    title
        Title of the plot.
    ax
        Axes to draw into, instead of a new figure.
    figsize
        Width and height of the new figure in inches; by default as the labels need it.
    show
        Show the figure. ``None`` shows it unless ``ax``, ``save`` or ``return_fig`` is given or
        ``scanpy.settings.autoshow`` is off.
    save
        Path to save the figure to; its ending decides the format.
    return_fig
        Return the figure.

    Returns
    -------
    The figure if ``return_fig``, the axes if ``show=False`` or ``ax`` is given, else ``None``.

    Raises
    ------
    KeyError
        If a column is missing.
    TypeError
        If a column cannot be read as labels, or ``save`` is no path.
    ValueError
        If cells have no label or no prediction, or ``ax`` and ``figsize`` are both given.
    FileNotFoundError
        If the folder of ``save`` does not exist.

    Examples
    --------
    A prediction that mistakes every stem cell (CD34+) stands for what ``model.annotate`` writes.

    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata = adata[adata.obs["bulk_labels"].isin(["CD19+ B", "CD34+", "CD56+ NK"])].copy()
    >>> mistaken = adata.obs["bulk_labels"].astype(str).replace({"CD34+": "CD19+ B"})
    >>> adata.obs["tosica_prediction"] = mistaken
    >>> axes = tosica.pl.confusion(adata, "bulk_labels", show=False)
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['CD19+ B', 'CD34+', 'CD56+ NK']
    """
    path = check_save(save)
    if ax is not None and figsize is not None:
        raise ValueError("figsize belongs to a new figure: give either ax or figsize, not both.")
    table = confusion_table(adata, labels_key, prediction_key=prediction_key, normalize=normalize)
    with_numbers = max(table.shape) <= _MOST_NUMBERS if annotate is None else annotate
    row_names = shorten(list(table.index), max_name_length)
    column_names = shorten(list(table.columns), max_name_length)
    own_figure = ax is None
    color_bar, font = None, FONT_SIZE
    if ax is None:
        ax, color_bar, font = new_axes(
            row_names,
            column_names,
            labels_key,
            with_numbers=with_numbers,
            has_title=title is not None,
            figsize=figsize,
        )
    sns.heatmap(
        table,
        ax=ax,
        cbar_ax=color_bar,
        cmap=cmap,
        vmin=0,
        vmax=1 if normalize else None,
        square=not own_figure,
        linewidths=0.5 if with_numbers else 0,
        linecolor="white",
        annot=_numbers(table, normalize=normalize) if with_numbers else False,
        fmt="",
        # Set below: seaborn draws all labels to see whether they overlap.
        xticklabels=False,
        yticklabels=False,
        cbar_kws={
            "label": "share of row" if normalize else "cells",
            "ticks": MaxNLocator(nbins=5, integer=not normalize),
        },
    )
    ax.set_xticks(np.arange(len(column_names)) + 0.5, column_names, rotation=90)
    ax.set_yticks(np.arange(len(row_names)) + 0.5, row_names, rotation=0)
    ax.tick_params(labelsize=font, length=2)
    ax.set_xlabel(prediction_key, fontsize=TITLE_SIZE)
    ax.set_ylabel(labels_key, fontsize=TITLE_SIZE)
    if title is not None:
        ax.set_title(title)
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError(
            "ax belongs to no figure any more: draw into the axes of an existing figure."
        )
    if with_numbers:
        _fit_numbers(figure, ax, table.shape[1], drop_if_small=annotate is None)
    return finish(figure, ax, show=show, save=path, return_fig=return_fig, own_figure=own_figure)


def _numbers(table: pd.DataFrame, *, normalize: bool) -> NDArray[np.str_]:
    """What is written into the cells: nothing for zero, so that the eye finds the mistakes."""

    def written(value: float) -> str:
        if value == 0:
            return ""
        if not normalize:
            return f"{value:d}"
        return f"{value:.2f}" if value >= 0.005 else "<.01"

    return np.array([[written(value) for value in row] for row in table.to_numpy()])


def _fit_numbers(figure: Figure, ax: Axes, n_columns: int, *, drop_if_small: bool) -> None:
    """Give the numbers a size at which they fit into the cells; drop them if it is too small."""
    figure.draw_without_rendering()
    cell = ax.get_window_extent().width / figure.dpi / n_columns
    widest = text_width([text.get_text() for text in ax.texts], _NUMBER_SIZE)
    size = min(_NUMBER_SIZE, _NUMBER_SIZE * 0.85 * cell / widest) if widest else _NUMBER_SIZE
    for text in list(ax.texts):
        if drop_if_small and size < _SMALLEST_NUMBER:
            text.remove()
        else:
            text.set_fontsize(max(size, 1.0))
