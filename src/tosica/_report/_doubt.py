"""One doubt, and the limits that the page looks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# A label whose median probability is lower is doubtful.
LOW_MEDIAN = 0.7
# A probability below this means that the best label is more likely wrong than right.
LOW_PROBABILITY = 0.5
# Fewer cells of a label than this are easily chance.
FEW_CELLS = 10
# A share of a label's cells is looked at if it has so many.
ENOUGH_CELLS = 20
# p-values up to this one are called small; by chance, this share of the cells has one.
SMALL_PVALUE = 0.05
_MANY = 8


@dataclass(frozen=True)
class Doubt:
    """Something that may be wrong: what, why that matters, and what to do."""

    weight: Literal["check", "note"]
    what: str
    why: str
    remedy: str


def listed(names: list[str]) -> str:
    """Names in a sentence; of many, the first ones."""
    shown = names[:_MANY]
    rest = len(names) - len(shown)
    if rest:
        return f"{', '.join(shown)} and {rest} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
