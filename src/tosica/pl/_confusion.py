"""Confusion of labels and predictions as a heatmap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import seaborn as sns
from matplotlib.ticker import MaxNLocator

from tosica._validation import check_count, check_flags, check_string
from tosica.pl._docs import fill_docs
from tosica.pl._figure import Canvas, check_cmap, fitting_font, line_count, text_width
from tosica.pl._names import wrap
from tosica.tl import confusion as confusion_table

if TYPE_CHECKING:
    import os

    import pandas as pd
    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_FONT_SIZE = 9.0
_TITLE_SIZE = 10.0
_NUMBER_SIZE = 8.0
_MIN_NUMBER_SIZE = 5.0
# By default, numbers are written for at most this many rows and columns.
_MAX_NUMBERS = 25

# Sizes of cells in inches: for a number of four characters, without numbers, and for few labels.
_CELL_WITH_NUMBER = 0.42
_CELL_WITHOUT = 0.19
_CELL_OF_TWO_LINES = 0.3
_CELL_OF_FEW = 0.65
_FEW = 4
# Other sizes in inches. That of the axis label includes its distance from the names.
_MARGIN = 0.1
_TICK = 0.09
_AXIS_LABEL = 0.3
_BAR_GAP = 0.2
_BAR_WIDTH = 0.16
_BAR_TEXT = 0.75
_BAR_HEIGHT = 2.2


@fill_docs()
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
    dpi: int = 300,
    return_fig: bool = False,
) -> Figure | Axes | None:
    """Heatmap of known labels (rows) against predictions (columns).

    The table is that of :func:`tosica.tl.confusion`: labels are in the order of their categories on
    both axes, so that correct predictions are on the diagonal, and ``"Unknown"`` is last.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated and whose labels are known. It is not changed.
    labels_key
        Column of ``adata.obs`` with the known labels.
    prediction_key
        Column of ``adata.obs`` with the predictions.
    normalize
        Show shares of the cells of each row, from 0 to 1, instead of numbers of cells.
    annotate
        Write the numbers into the heatmap, except zeros. ``None`` does so if there are at most 25
        rows and 25 columns and the numbers fit.
    cmap
        Colour map. The default has steadily falling lightness, so it is readable in greyscale.
    {max_name_length}
    title
        Title of the plot.
    {ax}
    {figure}

    Returns
    -------
    {returns}

    Raises
    ------
    KeyError
        If a column is missing.
    TypeError
        If a column cannot be read as labels.
    ValueError
        If cells have no label or no prediction.
    {ax_raises}

    Notes
    -----
    ``ax``, ``figsize``, ``show``, ``save`` and ``return_fig`` are the same in all plots.

    Examples
    --------
    Predictions that are wrong for all stem cells (CD34+) stand for what ``model.annotate`` writes.

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
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    check_cmap(cmap)
    check_count("max_name_length", max_name_length, least=10)
    check_string("title", title, optional=True)
    if annotate is not None:
        check_flags(annotate=annotate)
    table = confusion_table(adata, labels_key, prediction_key=prediction_key, normalize=normalize)
    with_numbers = max(table.shape) <= _MAX_NUMBERS if annotate is None else annotate
    row_names = wrap(list(table.index), max_name_length)
    column_names = wrap(list(table.columns), max_name_length)
    color_bar, font_size = None, _FONT_SIZE
    if ax is None:
        ax, color_bar, font_size = _new_axes(
            canvas, row_names, column_names, labels_key, with_numbers, has_title=title is not None
        )
    sns.heatmap(
        table,
        ax=ax,
        cbar_ax=color_bar,
        cmap=cmap,
        vmin=0,
        vmax=1 if normalize else None,
        square=canvas.ax is not None,
        linewidths=0.5 if with_numbers else 0,
        linecolor="white",
        annot=_numbers(table, normalize=normalize) if with_numbers else False,
        fmt="",
        # Set below, because seaborn would draw all names to check whether they overlap.
        xticklabels=False,
        yticklabels=False,
        cbar_kws={
            "label": "share of row" if normalize else "cells",
            "ticks": MaxNLocator(nbins=5, integer=not normalize),
        },
    )
    ax.set_xticks(np.arange(len(column_names)) + 0.5, column_names, rotation=90, linespacing=1.0)
    ax.set_yticks(np.arange(len(row_names)) + 0.5, row_names, rotation=0, linespacing=1.0)
    ax.tick_params(labelsize=font_size, length=2)
    ax.set_xlabel(prediction_key, fontsize=_TITLE_SIZE)
    ax.set_ylabel(labels_key, fontsize=_TITLE_SIZE)
    if title is not None:
        ax.set_title(title)
    if with_numbers:
        _fit_numbers(canvas.figure, ax, table.shape[1], drop_if_small=annotate is None)
    return canvas.finish(ax)


def _new_axes(
    canvas: Canvas,
    row_names: list[str],
    column_names: list[str],
    y_label: str,
    with_numbers: bool,
    *,
    has_title: bool,
) -> tuple[Axes, Axes, float]:
    """Axes of a heatmap and of its colour bar in a new figure, where all names have room.

    matplotlib's own layouts shrink a heatmap with square cells, or cut off the label of the axis,
    if names are long. In a figure of given size, the heatmap gets the room that names and colour
    bar leave.

    Parameters
    ----------
    canvas
        Makes the figure.
    row_names, column_names
        Names left of the heatmap and, rotated by 90 degrees, below it.
    y_label
        Label of the y axis.
    with_numbers
        Make cells large enough for a number.
    has_title
        Leave room for a title.

    Returns
    -------
    Axes of the heatmap, axes of the colour bar, font size of the names.
    """
    n_rows, n_columns = len(row_names), len(column_names)
    cell = _CELL_WITH_NUMBER if with_numbers else _CELL_WITHOUT
    cell = _CELL_OF_FEW if max(n_rows, n_columns) <= _FEW else cell
    n_lines = line_count([*row_names, *column_names])
    if n_lines > 1:
        cell = max(cell, _CELL_OF_TWO_LINES)
    top = _MARGIN + (_AXIS_LABEL if has_title else 0)
    right = _BAR_GAP + _BAR_WIDTH + _BAR_TEXT + _MARGIN
    figsize, font_size = canvas.figsize, _FONT_SIZE
    # In a figure of given size, font size and size of the cells depend on each other: the second
    # pass uses the font size of the first.
    for _ in range(2):
        left = _MARGIN + _AXIS_LABEL + _TICK + text_width(row_names, font_size)
        bottom = _MARGIN + _AXIS_LABEL + _TICK + text_width(column_names, font_size)
        if figsize is not None:
            width, height = figsize
            cell = min((width - left - right) / n_columns, (height - top - bottom) / n_rows)
            cell = max(cell, 0.1 * min(width / n_columns, height / n_rows))
        font_size = fitting_font(cell, _FONT_SIZE, n_lines)
    heatmap_width, heatmap_height = n_columns * cell, n_rows * cell
    if figsize is None:
        # A long axis label may be longer than a heatmap with few rows is high.
        overhang = (text_width([y_label], _TITLE_SIZE) - heatmap_height) / 2
        top = max(top, overhang + _MARGIN)
        bottom = max(bottom, overhang + _MARGIN)
    width, height = figsize or (left + heatmap_width + right, top + heatmap_height + bottom)
    figure = canvas.new_figure((width, height))

    def add_axes(x: float, w: float, h: float) -> Axes:
        """Add axes of this width and height, so many inches from the left, aligned at the top."""
        return figure.add_axes((x / width, 1 - (top + h) / height, w / width, h / height))

    ax = add_axes(left, heatmap_width, heatmap_height)
    bar_height = min(_BAR_HEIGHT, heatmap_height)
    color_bar = add_axes(left + heatmap_width + _BAR_GAP, _BAR_WIDTH, bar_height)
    return ax, color_bar, font_size


def _numbers(table: pd.DataFrame, *, normalize: bool) -> NDArray[np.str_]:
    """Texts of the cells: none for zero, so that errors are easy to find."""

    def text(value: float) -> str:
        if value == 0:
            return ""
        if not normalize:
            return f"{value:d}"
        return f"{value:.2f}" if value >= 0.005 else "<.01"

    return np.array([[text(value) for value in row] for row in table.to_numpy()])


def _fit_numbers(figure: Figure, ax: Axes, n_columns: int, *, drop_if_small: bool) -> None:
    """Shrink the numbers until they fit into the cells; drop them if they would be too small."""
    figure.draw_without_rendering()
    cell = ax.get_window_extent().width / figure.dpi / n_columns
    widest = text_width([text.get_text() for text in ax.texts], _NUMBER_SIZE)
    size = min(_NUMBER_SIZE, _NUMBER_SIZE * 0.85 * cell / widest) if widest else _NUMBER_SIZE
    for text in list(ax.texts):
        if drop_if_small and size < _MIN_NUMBER_SIZE:
            text.remove()
        else:
            text.set_fontsize(max(size, 1.0))
