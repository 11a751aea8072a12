"""Columns of nodes and the ribbons between them, for plots that show where things go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from tosica.pl._figure import text_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

FONT_SIZE = 8.5

# All in inches.
LINE = 0.155
_GAP = 0.045
_NODE = 0.16
_RIBBON = 1.7
_TEXT = 0.07
_MARGIN = 0.12
_HEADER = 0.28
_ALPHA = 0.45


@dataclass(frozen=True)
class Ribbon:
    """What goes from a node of one column to a node of the next."""

    source: str
    target: str
    value: float
    color: str


@dataclass(frozen=True)
class Column:
    """Nodes from top to bottom, what is written beside them, and their colours."""

    title: str
    nodes: list[str]
    names: list[str]
    colors: list[str]


def ordered_by_sources(
    ribbons: Sequence[Ribbon], nodes: Sequence[str], sources: Sequence[str]
) -> list[str]:
    """Nodes in the order of the middles of what flows into them, so that few ribbons cross."""
    place = {name: i for i, name in enumerate(sources)}
    weight = dict.fromkeys(nodes, 0.0)
    moment = dict.fromkeys(nodes, 0.0)
    for ribbon in ribbons:
        weight[ribbon.target] += ribbon.value
        moment[ribbon.target] += ribbon.value * place[ribbon.source]
    return sorted(nodes, key=lambda name: moment[name] / weight[name] if weight[name] else np.inf)


def size_of(columns: Sequence[Column], flows: Sequence[Sequence[Ribbon]]) -> tuple[float, float]:
    """Width and height in inches that let every name be read."""
    widths = _name_widths(columns)
    # Names of the first column stand left of it, all others right of theirs.
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
    height = max(_column_height(column) for column in columns)
    return width, max(height, 1.5) + 2 * _MARGIN + _HEADER


def draw_alluvial(ax: Axes, columns: Sequence[Column], flows: Sequence[Sequence[Ribbon]]) -> None:
    """Draw into axes whose unit is the inch, whatever size the axes have.

    Nodes are as high as what flows through them, but not lower than a line of text.

    Parameters
    ----------
    ax
        Axes; their limits are set.
    columns
        Two or more.
    flows
        Ribbons between each column and the next.
    """
    width, height = size_of(columns, flows)
    widths = _name_widths(columns)
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.axis("off")
    figure = ax.get_figure(root=True)
    assert figure is not None  # own_axes has looked
    # In axes that are smaller than they should be, text shrinks with the rest.
    box = ax.get_position()
    inches = figure.get_size_inches()
    shrink = min(1.0, box.width * inches[0] / width, box.height * inches[1] / height)
    font = FONT_SIZE * shrink
    x = _MARGIN + widths[0] + _TEXT
    lefts = []
    for i in range(len(columns)):
        lefts.append(x)
        x += _NODE + _RIBBON + (0 if i == 0 else widths[i] + 2 * _TEXT)
    spans = [_spans(column, _through(column, flows, i), height) for i, column in enumerate(columns)]
    starts = [
        lefts[i] + _NODE + (0 if i == 0 else widths[i] + 2 * _TEXT) for i in range(len(columns))
    ]
    for i, ribbons in enumerate(flows):
        _draw_ribbons(
            ax, ribbons, columns[i], columns[i + 1], spans[i], spans[i + 1], starts[i], lefts[i + 1]
        )
    for i, column in enumerate(columns):
        for node, name, color in zip(column.nodes, column.names, column.colors, strict=True):
            top, bottom = spans[i][node]
            ax.add_patch(Rectangle((lefts[i], top), _NODE, bottom - top, color=color, linewidth=0))
            if 0 < i < len(columns) - 1:
                # A plate, so that names in the middle do not stand on ribbons.
                ax.add_patch(
                    Rectangle((lefts[i] + _NODE, top), starts[i] - lefts[i] - _NODE, bottom - top,
                              color=color, alpha=0.12, linewidth=0)
                )  # fmt: skip
            at, align = (
                (lefts[i] - _TEXT, "right") if i == 0 else (lefts[i] + _NODE + _TEXT, "left")
            )
            ax.text(at, (top + bottom) / 2, name, ha=align, va="center", fontsize=font)
        at, align = (lefts[i] + _NODE, "right") if i == 0 else (lefts[i], "left")
        ax.text(at, _MARGIN + _HEADER / 3, column.title, ha=align, va="center", fontsize=font + 1,
                fontweight="bold")  # fmt: skip


def _name_widths(columns: Sequence[Column]) -> list[float]:
    """Room for the names beside each column; titles of the outer ones stand over it as well."""
    widths = [text_width(column.names, FONT_SIZE) for column in columns]
    for i in (0, -1):
        # Bold letters are wider by about an eighth.
        title = 1.13 * text_width([columns[i].title], FONT_SIZE + 1)
        widths[i] = max(widths[i], title - _NODE)
    return widths


def _column_height(column: Column) -> float:
    return len(column.nodes) * (LINE + _GAP) * 1.15


def _through(column: Column, flows: Sequence[Sequence[Ribbon]], i: int) -> dict[str, float]:
    """What flows through each node: into it, or out of those of the first column."""
    total = dict.fromkeys(column.nodes, 0.0)
    for ribbon in flows[max(i - 1, 0)]:
        total[ribbon.source if i == 0 else ribbon.target] += ribbon.value
    return total


def _spans(
    column: Column, through: dict[str, float], height: float
) -> dict[str, tuple[float, float]]:
    """Top and bottom of each node. Small ones get a line; the others share what is left."""
    room = height - 2 * _MARGIN - _HEADER - _GAP * (len(column.nodes) - 1)
    values = np.array([through[name] for name in column.nodes])
    heights = np.full(len(values), LINE)
    free = np.ones(len(values), dtype=bool)
    while free.any():
        left = room - LINE * (~free).sum()
        share = left * values / max(values[free].sum(), 1e-12)
        low = free & (share < LINE)
        if not low.any():
            heights[free] = share[free]
            break
        free &= ~low
    tops = _MARGIN + _HEADER + np.concatenate([[0], np.cumsum(heights + _GAP)[:-1]])
    return {
        name: (float(top), float(top + tall))
        for name, top, tall in zip(column.nodes, tops, heights, strict=True)
    }


def _draw_ribbons(
    ax: Axes,
    ribbons: Sequence[Ribbon],
    left: Column,
    right: Column,
    left_spans: dict[str, tuple[float, float]],
    right_spans: dict[str, tuple[float, float]],
    start: float,
    end: float,
) -> None:
    rank = (
        {name: i for i, name in enumerate(left.nodes)},
        {name: i for i, name in enumerate(right.nodes)},
    )
    out = dict.fromkeys(left.nodes, 0.0)
    into = dict.fromkeys(right.nodes, 0.0)
    for ribbon in ribbons:
        out[ribbon.source] += ribbon.value
        into[ribbon.target] += ribbon.value
    edges: dict[tuple[int, int], tuple[float, float]] = {}
    # On either side, ribbons lie in the order of where they go to, or come from.
    for side, (spans, total) in enumerate(((left_spans, out), (right_spans, into))):
        used = {name: span[0] for name, span in spans.items()}
        order = sorted(
            range(len(ribbons)),
            key=lambda j: (rank[1][ribbons[j].target], rank[0][ribbons[j].source]),
        )
        for j in order:
            name = ribbons[j].source if side == 0 else ribbons[j].target
            top, bottom = spans[name]
            tall = (bottom - top) * ribbons[j].value / total[name]
            edges[side, j] = used[name], used[name] + tall
            used[name] += tall
    middle = (start + end) / 2
    for j, ribbon in enumerate(ribbons):
        (a, b), (c, d) = edges[0, j], edges[1, j]
        path = Path(
            [
                (start, a), (middle, a), (middle, c), (end, c),
                (end, d), (middle, d), (middle, b), (start, b), (start, a),
            ],
            [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY],
        )  # fmt: skip
        ax.add_patch(PathPatch(path, facecolor=ribbon.color, alpha=_ALPHA, linewidth=0))


def inch_axes(figsize: tuple[float, float]) -> Axes:
    """Axes that fill a new figure."""
    figure = plt.figure(figsize=figsize)
    return figure.add_axes((0, 0, 1, 1))
