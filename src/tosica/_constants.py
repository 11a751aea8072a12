"""Words that several parts of the package agree on."""

from __future__ import annotations

from typing import Final

# What annotate calls a cell whose best label is too improbable.
UNKNOWN: Final = "Unknown"

# What majority_vote calls a cluster in which no label has enough of the cells.
HETEROGENEOUS: Final = "Heterogeneous"
