"""Colours of the map, and the units that its numbers are written in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tosica._palette import default_palette

if TYPE_CHECKING:
    from tosica._report._cells import Cells

# Probabilities and p-values are whole parts of one.
PARTS = 10_000
# Novelty scores in hundredths; colours are for scores from the first to the second.
HUNDREDTHS = 100
NOVELTY_RANGE = (-2.0, 5.0)
# From certain or familiar to doubtful or new: seen on white and on black, and darker or stronger
# where one has to look, for any kind of colour vision.
RAMP = ("#b9c4ce", "#e39a5b", "#a8002a")
_COLORS = 256
# Cells without a known label.
MISSING = "#d3d3d3"


def color_mappers(cells: Cells) -> dict[str, dict[str, Any]]:
    """Arguments of the colour mapper of each column that the map can be coloured by."""
    palette = _ramp()
    mappers: dict[str, dict[str, Any]] = {
        "label": _categorical(cells.colors),
        "probability": {"palette": palette[::-1], "low": 0, "high": PARTS},
    }
    if cells.novelty is not None:
        low, high = (bound * HUNDREDTHS for bound in NOVELTY_RANGE)
        mappers["novelty"] = {"palette": palette, "low": low, "high": high}
    for name, groups in (("sample", cells.samples), ("known", cells.known)):
        if groups is not None:
            mappers[name] = _categorical([*group_palette(cells, name), MISSING])
    return mappers


def _ramp() -> list[str]:
    ends = np.array([[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in RAMP])
    at = np.linspace(0, len(RAMP) - 1, _COLORS)
    mixed = [np.interp(at, np.arange(len(RAMP)), ends[:, i]).round() for i in range(3)]
    return [f"#{int(r):02x}{int(g):02x}{int(b):02x}" for r, g, b in zip(*mixed, strict=True)]


def group_palette(cells: Cells, name: str) -> list[str]:
    """Colours of samples or of known labels; a known label has the colour of the same label."""
    groups = cells.samples if name == "sample" else cells.known
    assert groups is not None
    palette = default_palette(len(groups.categories))
    if name == "sample":
        return palette
    of_label = dict(zip(cells.labels, cells.colors, strict=True))
    return [of_label.get(g, color) for g, color in zip(groups.categories, palette, strict=True)]


def _categorical(colors: list[str]) -> dict[str, Any]:
    return {"palette": colors, "low": -0.5, "high": len(colors) - 0.5}
