"""Names of rows, columns and panels: wrapped, and in letters that fit."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Sizes of text in points: names, titles, and the smallest that can still be read.
NAME_SIZE = 8.5
TITLE_SIZE = 10.0
SMALLEST_SIZE = 4.0
# Height of a line of text in inches.
LINE = 0.16

# --------------------------------------------------------------------------- wrapping

# Where a line may end, best first: before a space, after an underscore, after a hyphen and so on.
_BREAKS = (r"(?= )", r"(?<=_)", r"(?<=[-/,:;+])")


def wrap(names: Sequence[str], max_length: int = 50) -> list[str]:
    """Wrap long names at a word into two lines of similar length, so that all stay different.

    Nothing is left out of a name that fits into two lines. Longer ones are shortened in the middle,
    and numbered if that makes them equal.

    Parameters
    ----------
    names
        Names; short ones stay as they are.
    max_length
        Longest line, in characters, at least 10.

    Returns
    -------
    One name for each of ``names``, of one or two lines. Different names stay different.
    """
    wrapped: dict[str, str] = {}
    taken: set[str] = set()
    # Short names first, because they stay as they are.
    for name in sorted(dict.fromkeys(names), key=len):
        text = _shorten(name, max_length)
        number = 1
        while text in taken:
            number += 1
            suffix = f" ({number})"
            text = _cut(name, max_length - len(suffix)) + suffix
        taken.add(text)
        wrapped[name] = text
    return [wrapped[name] for name in names]


def _shorten(name: str, max_length: int) -> str:
    """Write a name in at most two lines, whole if it fits."""
    for candidate in (name, _cut(name, round(1.7 * max_length))):
        lines = _two_lines(candidate, max_length)
        if lines is not None:
            return lines
    return _cut(name, max_length)


def _two_lines(name: str, max_length: int) -> str | None:
    """Break a name where its longer line is shortest; ``None`` if a line would be too long."""
    if len(name) <= max_length:
        return name

    def badness(pair: tuple[str, str]) -> tuple[bool, int]:
        # A single letter, as of "G protein", does not end a line.
        ends_with_letter = re.search(r"\b\w$", pair[0]) is not None
        return ends_with_letter, max(map(len, pair))

    for pattern in _BREAKS:
        positions = [match.start() for match in re.finditer(pattern, name)]
        pairs = [(name[:i].rstrip(), name[i:].lstrip()) for i in positions]
        fitting = [
            pair for pair in pairs if all(pair) and max(map(len, pair)) <= max_length
        ]
        if fitting:
            return "\n".join(sorted(fitting, key=badness)[0])
    return None


def _cut(name: str, length: int) -> str:
    """Leave out the middle of a long name, at words if these are short."""
    if len(name) <= length:
        return name
    n_head = round(0.6 * (length - 3))
    n_tail = length - 3 - n_head
    head = name[:n_head]
    tail = name[len(name) - n_tail :]
    # A word that was cut is removed, unless too little would be left.
    head_of_words = re.sub(r"[\W_][^\W_]*$", "", head)
    if len(head_of_words) > n_head / 3:
        head = head_of_words
    tail_of_words = re.sub(r"^[^\W_]*[\W_]", "", tail)
    if len(tail_of_words) > n_tail / 3:
        tail = tail_of_words
    return f"{head.rstrip(' _-,(/')} … {tail.lstrip(' _-,)/')}"


# --------------------------------------------------------------------------- room


def row_height(names: Sequence[str], least: float) -> float:
    """Inches of a row, so that the lines of each name fit in."""
    n_lines = max((name.count("\n") + 1 for name in names), default=1)
    return max(least, LINE * n_lines)


def cell_size(rows: Sequence[str], columns: Sequence[str], least: float) -> float:
    """Inches of a cell of a table: lines of names fit in, unless the table would leave a page."""
    return min(row_height([*rows, *columns], least), 8 / max(len(rows), len(columns)))


def inches_of(figure: Figure, ax: Axes) -> np.ndarray:
    """Measure the width and height of axes in inches, once all names have their room."""
    with warnings.catch_warnings():
        # In a figure that is too small for its names, they are cut off.
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        figure.draw_without_rendering()
    return np.array(ax.get_window_extent().size) / figure.dpi


# --------------------------------------------------------------------------- ticks


def name_cells(ax: Axes, rows: list[str], columns: list[str]) -> None:
    """Name the rows and columns of a table of unit cells, the first row on top."""
    ax.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=90)
    ax.tick_params(labelsize=NAME_SIZE, length=2)
    ax.grid(False)


def name_rows(ax: Axes, names: list[str]) -> None:
    """Name the rows of bars, boxes or violins, the first one on top."""
    ax.set_yticks(range(len(names)), names, fontsize=NAME_SIZE, linespacing=1.0)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    plain(ax)


def plain(ax: Axes) -> None:
    """Draw neither grid nor frame, but the axes left and below."""
    ax.grid(False)
    ax.spines[["top", "right"]].set_visible(False)
