"""Numbers and names in sentences for readers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def count(n: int) -> str:
    """Write a number of cells with thin spaces between thousands."""
    return f"{int(n):,}".replace(",", "\u202f")


def count_cells(n: int) -> str:
    """Write a number of cells with its noun."""
    return f"{count(n)} cell" + ("" if n == 1 else "s")


def percent(share: float) -> str:
    """Write a share; a small one is not rounded to nothing."""
    if not math.isfinite(share):
        return "–"
    if share == 0:
        return "0\u00a0%"
    if 0 < share < 0.001:
        return "< 0.1\u00a0%"
    written = f"{100 * share:.{0 if share >= 0.0995 else 1}f}".removesuffix(".0")
    return f"{written}\u00a0%"


def decimal(value: float, digits: int = 2) -> str:
    """Write a number with a minus sign instead of a hyphen."""
    return f"{value:.{digits}f}".replace("-", "−") if math.isfinite(value) else "–"


def listed(names: Sequence[str], most: int = 8) -> str:
    """Put names into a sentence; of many, count the rest."""
    *shown, last = names[:most]
    rest = len(names) - most
    if rest > 0:
        return f"{', '.join([*shown, last])} and {rest} more"
    return f"{', '.join(shown)} and {last}" if shown else last
