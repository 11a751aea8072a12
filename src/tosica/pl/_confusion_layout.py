"""Sizes and places, in inches, of the parts of a confusion matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt

from tosica.pl._utils import fitting_font, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
