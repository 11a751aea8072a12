"""Panels of horizontal bars with long names, as many as there are groups."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from tosica.pl._figure import text_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME_SIZE = 8.5
TITLE_SIZE = 10.0

# All in inches.
_BAR = 0.19
_BARS = 1.7
_TITLE = 0.3
_AXIS = 0.5
_MARGIN = 0.15
_WIDEST = 13.0
_PALE = 0.35


@dataclass(frozen=True)
class Panel:
    """Bars of one panel, the first one on top."""

    title: str
    names: list[str]
    values: list[float]
    color: str
    pale: list[bool] = field(default_factory=list)
    """Which bars are drawn pale; none if empty."""


def draw_panels(
    panels: Sequence[Panel],
    x_label: str,
    *,
    ax: Axes | None,
    figsize: tuple[float, float] | None,
    n_columns: int | None = None,
) -> tuple[Figure, list[Axes]]:
    """Draw each panel into axes of its own, or the only one into ``ax``.

    matplotlib's layouts give all panels the same width and let the names fight for the rest; here
    each column of panels gets the inches that its names need.
    """
    if ax is not None:
        _draw(ax, panels[0], x_label)
        figure = ax.get_figure(root=True)
        assert figure is not None  # own_axes has looked
        return figure, [ax]
    names_width = max(text_width(panel.names, NAME_SIZE) for panel in panels) + 0.12
    title_width = max(text_width([panel.title], TITLE_SIZE) for panel in panels)
    panel_width = max(names_width + _BARS, title_width) + 2 * _MARGIN
    if n_columns is None:
        widest = max(int(_WIDEST // panel_width), 1)
        n_columns = min(len(panels), widest, max(1, math.ceil(math.sqrt(2 * len(panels)))))
    n_rows = math.ceil(len(panels) / n_columns)
    most = max(len(panel.names) for panel in panels)
    panel_height = _TITLE + most * _BAR + _AXIS
    width, height = figsize or (panel_width * n_columns, panel_height * n_rows + _MARGIN)
    # In a figure of the caller's size, everything shrinks alike but the text.
    across, down = width / (panel_width * n_columns), height / (panel_height * n_rows + _MARGIN)
    figure = plt.figure(figsize=(width, height))
    axes = []
    for i, panel in enumerate(panels):
        row, column = divmod(i, n_columns)
        left = column * panel_width * across + _MARGIN + names_width
        room = max(panel_width * across - names_width - 2 * _MARGIN, 0.15 * panel_width * across)
        top = (row * panel_height + _TITLE + _MARGIN / 2) * down
        tall = len(panel.names) * _BAR * down
        new = figure.add_axes(
            (left / width, 1 - (top + tall) / height, room / width, tall / height)
        )
        last = i + n_columns >= len(panels)
        _draw(new, panel, x_label if last else "")
        axes.append(new)
    return figure, axes


def _draw(ax: Axes, panel: Panel, x_label: str) -> None:
    places = np.arange(len(panel.names))
    bars = ax.barh(places, panel.values, color=panel.color, height=0.72)
    for bar, pale in zip(bars, panel.pale, strict=False):
        if pale:
            bar.set_alpha(_PALE)
    ax.set_yticks(places, panel.names, fontsize=NAME_SIZE)
    ax.set_ylim(len(places) - 0.5, -0.5)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=3, min_n_ticks=2))
    ax.tick_params(axis="x", labelsize=NAME_SIZE - 1)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(False)
    if min(panel.values, default=0) < 0:
        ax.axvline(0, color=plt.rcParams["axes.edgecolor"], linewidth=0.8)
        ax.spines["left"].set_visible(False)
    ax.set_xlabel(x_label, fontsize=NAME_SIZE)
    # Over the names as well, since a group's name may be longer than the bars.
    ax.set_title(panel.title, fontsize=TITLE_SIZE, loc="right")
