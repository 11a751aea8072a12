"""Groups of labels, whose regressions are added to those of their labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tosica._types import BoolArray, FloatArray, IntArray


class LabelGroups(NamedTuple):
    """Groups of several labels on the levels above them."""

    members: BoolArray
    """Whether a label is in a group, ``(n_groups, n_labels)``."""
    above: FloatArray
    """How many levels have a label or group above a label, ``(n_labels, n_labels + n_groups)``."""

    @classmethod
    def from_levels(cls, levels: Sequence[IntArray], n_labels: int) -> LabelGroups:
        """Collect the groups of levels.

        A label that is alone in its group is that group. Groups of all labels are left out.

        Parameters
        ----------
        levels
            Group of each label as a number on each level, ``(n_labels,)``.
        n_labels
            Number of labels.
        """
        labels = np.eye(n_labels, dtype=bool)
        rows = {label.tobytes(): row for row, label in enumerate(labels)}
        pairs = []
        for codes in levels:
            for label, members in enumerate(np.equal.outer(codes, codes)):
                if not members.all():
                    row = rows.setdefault(members.tobytes(), len(rows))
                    pairs.append((label, row))
        above = np.zeros((n_labels, len(rows)))
        for pair in pairs:
            above[pair] += 1
        members = np.frombuffer(b"".join(rows), dtype=bool)
        return cls(members.reshape(-1, n_labels)[n_labels:], above)

    def add(self, values: FloatArray, weight: float) -> FloatArray:
        """Add values of the groups above each label to the label's own.

        Parameters
        ----------
        values
            Values of the labels, then of the groups, ``(n_labels + n_groups, n_columns)``; without a weight, those of
            the groups may be missing.
        weight
            Weight of each level.

        Returns
        -------
        Shape ``(n_labels, n_columns)``.
        """
        n_labels = len(self.above)
        if not weight:
            return values[:n_labels]
        sums: FloatArray = values[:n_labels] + weight * (self.above @ values)
        return sums
