"""Alluvial plots: columns of nodes, and ribbons between each column and the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from tosica.pl._figure import text_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from tosica.pl._figure import Canvas

_FONT_SIZE = 8.5
_ALPHA = 0.45

# In inches.
_MIN_HEIGHT = 0.155
_LINE = 0.13
_GAP = 0.045
_NODE = 0.16
_RIBBON = 1.7
_TEXT = 0.07
_MARGIN = 0.12
_HEADER = 0.28

_CURVE = [Path.CURVE4] * 3
_RIBBON_CODES = [Path.MOVETO, *_CURVE, Path.LINETO, *_CURVE, Path.CLOSEPOLY]


@dataclass(frozen=True)
class Ribbon:
    """Flow from a node of one column to a node of the next."""

    source: str
    target: str
    value: float
    color: str


@dataclass(frozen=True)
class Column:
    """Nodes from top to bottom, with the names to write beside them and their colours."""

    title: str
    nodes: list[str]
    names: list[str]
    colors: list[str]

    def least_heights(self) -> NDArray[np.float64]:
        """Least height of each node in inches: that of its name."""
        lines = np.array([len(name.splitlines()) for name in self.names])
        return _MIN_HEIGHT + _LINE * (lines - 1)


def ordered_by_sources(
    ribbons: Sequence[Ribbon], nodes: Sequence[str], sources: Sequence[str]
) -> list[str]:
    """Order nodes by the mean position of their sources, so that few ribbons cross."""
    position = {name: i for i, name in enumerate(sources)}
    weight = dict.fromkeys(nodes, 0.0)
    moment = dict.fromkeys(nodes, 0.0)
    for ribbon in ribbons:
        weight[ribbon.target] += ribbon.value
        moment[ribbon.target] += ribbon.value * position[ribbon.source]
    return sorted(nodes, key=lambda name: moment[name] / weight[name] if weight[name] else np.inf)


def draw_alluvial(
    canvas: Canvas, columns: Sequence[Column], flows: Sequence[Sequence[Ribbon]]
) -> Axes:
    """Draw into axes whose unit is the inch: given ones of any size, or those of a new figure.

    The height of a node is proportional to the flow through it, but at least that of a line of
    text.

    Parameters
    ----------
    canvas
        What to draw into.
    columns
        Two or more columns.
    flows
        Ribbons between each column and the next.

    Returns
    -------
    The axes.
    """
    width, height = _size(columns, flows)
    ax = canvas.ax
    if ax is None:
        ax = canvas.new_figure((width, height)).add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.axis("off")
    # In axes that are smaller than needed, text shrinks with the rest.
    box = ax.get_position()
    inches = canvas.figure.get_size_inches()
    shrink = min(1.0, box.width * inches[0] / width, box.height * inches[1] / height)
    font_size = _FONT_SIZE * shrink

    name_widths = _name_widths(columns)
    spans = [_spans(column, _through(column, flows, i), height) for i, column in enumerate(columns)]
    # Where nodes begin, and where the ribbons that leave them begin: right of inner names.
    left = _MARGIN + name_widths[0] + _TEXT
    lefts, starts = [], []
    for i in range(len(columns)):
        names_beside = 0.0 if i == 0 else name_widths[i] + 2 * _TEXT
        lefts.append(left)
        starts.append(left + _NODE + names_beside)
        left += _NODE + _RIBBON + names_beside
    for i, ribbons in enumerate(flows):
        _draw_ribbons(ax, ribbons, spans[i], spans[i + 1], starts[i], lefts[i + 1])
    for i, column in enumerate(columns):
        is_inner = 0 < i < len(columns) - 1
        background = starts[i] - lefts[i] - _NODE if is_inner else 0.0
        _draw_nodes(ax, column, spans[i], lefts[i], font_size, background, names_left=i == 0)
    return ax


def _draw_nodes(
    ax: Axes,
    column: Column,
    spans: dict[str, tuple[float, float]],
    left: float,
    font_size: float,
    background: float,
    *,
    names_left: bool,
) -> None:
    """Draw the nodes of a column, its names and its title.

    Names of an inner column get a background of this width, so that they are not on ribbons.
    """
    align = "right" if names_left else "left"
    x = left - _TEXT if names_left else left + _NODE + _TEXT
    for node, name, color in zip(column.nodes, column.names, column.colors, strict=True):
        top, bottom = spans[node]
        size = bottom - top
        ax.add_patch(Rectangle((left, top), _NODE, size, color=color, linewidth=0))
        if background:
            corner = (left + _NODE, top)
            ax.add_patch(Rectangle(corner, background, size, color=color, alpha=0.12, linewidth=0))
        ax.text(
            x, (top + bottom) / 2, name, ha=align, va="center", fontsize=font_size, linespacing=1.0
        )
    ax.text(
        left + _NODE if names_left else left,
        _MARGIN + _HEADER / 3,
        column.title,
        ha=align,
        va="center",
        fontsize=font_size + 1,
        fontweight="bold",
    )


def _size(columns: Sequence[Column], flows: Sequence[Sequence[Ribbon]]) -> tuple[float, float]:
    """Width and height in inches at which every name has room."""
    widths = _name_widths(columns)
    # Names are left of the first column, and right of the other columns.
    between = sum(_TEXT + width + _TEXT for width in widths[1:-1])
    width = (
        2 * _MARGIN
        + widths[0]
        + widths[-1]
        + 2 * _TEXT
        + len(columns) * _NODE
        + len(flows) * _RIBBON
        + between
    )
    height = 1.15 * max((column.least_heights() + _GAP).sum() for column in columns)
    return width, max(height, 1.5) + 2 * _MARGIN + _HEADER


def _name_widths(columns: Sequence[Column]) -> list[float]:
    """Width of the names of each column; titles of the outer columns need it as well."""
    widths = [text_width(column.names, _FONT_SIZE) for column in columns]
    for i in (0, -1):
        # Bold letters are wider by about an eighth.
        title = 1.13 * text_width([columns[i].title], _FONT_SIZE + 1)
        widths[i] = max(widths[i], title - _NODE)
    return widths


def _through(column: Column, flows: Sequence[Sequence[Ribbon]], i: int) -> dict[str, float]:
    """Flow through each node: into it or, in the first column, out of it."""
    total = dict.fromkeys(column.nodes, 0.0)
    for ribbon in flows[max(i - 1, 0)]:
        total[ribbon.source if i == 0 else ribbon.target] += ribbon.value
    return total


def _spans(
    column: Column, through: dict[str, float], height: float
) -> dict[str, tuple[float, float]]:
    """Top and bottom of each node: small nodes are as high as a line, others share the rest."""
    room = height - 2 * _MARGIN - _HEADER - _GAP * (len(column.nodes) - 1)
    values = np.array([through[name] for name in column.nodes])
    least = column.least_heights()
    heights = least.copy()
    free = np.ones(len(values), dtype=bool)
    while free.any():
        left = room - least[~free].sum()
        share = left * values / max(values[free].sum(), 1e-12)
        low = free & (share < least)
        if not low.any():
            heights[free] = share[free]
            break
        free &= ~low
    tops = _MARGIN + _HEADER + np.concatenate([[0], np.cumsum(heights + _GAP)[:-1]])
    return {
        name: (float(top), float(top + node_height))
        for name, top, node_height in zip(column.nodes, tops, heights, strict=True)
    }


def _draw_ribbons(
    ax: Axes,
    ribbons: Sequence[Ribbon],
    source_spans: dict[str, tuple[float, float]],
    target_spans: dict[str, tuple[float, float]],
    start: float,
    end: float,
) -> None:
    """Draw the ribbons between two columns, from one horizontal position to another."""
    source_rank = {name: i for i, name in enumerate(source_spans)}
    target_rank = {name: i for i, name in enumerate(target_spans)}
    # On both sides, ribbons are in the order of their targets, then of their sources.
    order = sorted(
        range(len(ribbons)),
        key=lambda i: (target_rank[ribbons[i].target], source_rank[ribbons[i].source]),
    )
    values = [ribbon.value for ribbon in ribbons]
    at_source = _edges([ribbon.source for ribbon in ribbons], values, order, source_spans)
    at_target = _edges([ribbon.target for ribbon in ribbons], values, order, target_spans)
    middle = (start + end) / 2
    for ribbon, (a, b), (c, d) in zip(ribbons, at_source, at_target, strict=True):
        upper = [(start, a), (middle, a), (middle, c), (end, c)]
        lower = [(end, d), (middle, d), (middle, b), (start, b)]
        path = Path([*upper, *lower, (start, a)], _RIBBON_CODES)
        ax.add_patch(PathPatch(path, facecolor=ribbon.color, alpha=_ALPHA, linewidth=0))


def _edges(
    nodes: Sequence[str],
    values: Sequence[float],
    order: Sequence[int],
    spans: dict[str, tuple[float, float]],
) -> list[tuple[float, float]]:
    """Top and bottom of each ribbon at its node, where ribbons are stacked in this order."""
    total = dict.fromkeys(spans, 0.0)
    for node, value in zip(nodes, values, strict=True):
        total[node] += value
    used = {node: top for node, (top, _) in spans.items()}
    edges = [(0.0, 0.0)] * len(nodes)
    for i in order:
        top, bottom = spans[nodes[i]]
        height = (bottom - top) * values[i] / total[nodes[i]]
        edges[i] = used[nodes[i]], used[nodes[i]] + height
        used[nodes[i]] += height
    return edges
