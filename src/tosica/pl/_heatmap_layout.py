"""Sizes and places, in inches, of the parts of a clustered heatmap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosica.pl._figure import fitting_font, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from seaborn.matrix import ClusterGrid

FONT_SIZE = 8.5

_CELL = 0.175
_SMALLEST_HEATMAP = 0.9
_TREE = 0.5
_STRIP = 0.13
_GAP = 0.04
_MARGIN = 0.12
_TICK = 0.08
_TICK_LENGTH = 2.0
_BAR_GAP = 0.25
_BAR_WIDTH = 0.15
_BAR_HEIGHT = 1.1
# Tick labels of the colour bar, and a line of its title.
_BAR_TICKS = 0.55
_BAR_LINE = 0.14


def lay_out(grid: ClusterGrid, figsize: tuple[float, float] | None = None) -> None:
    """Place tree, strip, heatmap, names and colour bar so that nothing is cut off or overlaps.

    seaborn divides a figure by ratios, which squeezes either the heatmap or the names as soon as
    there are many or long ones. Here each part gets the inches it needs, and the figure follows;
    with ``figsize`` given, the heatmap takes what the other parts leave.
    """
    heatmap = grid.ax_heatmap
    n_rows, n_columns = grid.data2d.shape
    row_labels = [label.get_text() for label in heatmap.get_yticklabels()]
    column_labels = [label.get_text() for label in heatmap.get_xticklabels()]
    has_row_tree = grid.dendrogram_row is not None
    has_column_tree = grid.dendrogram_col is not None
    left = _MARGIN + _TREE * has_row_tree + (_STRIP + _GAP) * (grid.ax_row_colors is not None)
    top = _MARGIN + _TREE * has_column_tree + (_STRIP + _GAP) * (grid.ax_col_colors is not None)
    bar_text = _BAR_TICKS + _BAR_LINE * len(grid.ax_cbar.get_ylabel().splitlines())
    row_font = column_font = FONT_SIZE
    width = max(n_columns * _CELL, _SMALLEST_HEATMAP)
    height = max(n_rows * _CELL, _SMALLEST_HEATMAP)
    # In a figure of fixed size the names' size depends on the heatmap's and the other way round:
    # the second pass uses the font sizes that the first has found.
    for _ in range(2):
        bottom = _TICK + text_width(column_labels, column_font) + _MARGIN
        row_names_width = _TICK + text_width(row_labels, row_font)
        right = row_names_width + _BAR_GAP + _BAR_WIDTH + bar_text + _MARGIN
        if figsize is not None:
            width = max(figsize[0] - left - right, 0.1 * figsize[0])
            height = max(figsize[1] - top - bottom, 0.1 * figsize[1])
        row_font = fitting_font(height / n_rows, FONT_SIZE)
        column_font = fitting_font(width / n_columns, FONT_SIZE)
    total_width, total_height = figsize or (
        left + width + right,
        max(top + height + bottom, top + _BAR_HEIGHT + 2 * _MARGIN),
    )
    figure = grid.figure
    figure.set_layout_engine("none")
    figure.set_size_inches(total_width, total_height)

    def place(ax: Axes, x: float, y: float, w: float, h: float) -> None:
        """Put axes at inches from the left and the top."""
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
    grid.ax_cbar.tick_params(labelsize=FONT_SIZE - 1)
    grid.ax_cbar.yaxis.label.set_fontsize(FONT_SIZE - 0.5)

    heatmap.tick_params(axis="y", labelsize=row_font, length=_TICK_LENGTH)
    heatmap.tick_params(axis="x", labelsize=column_font, length=_TICK_LENGTH)
