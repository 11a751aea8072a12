"""Levels above the labels: columns of a reference that group its labels, from broad to fine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd

from tosica._text import argument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tosica._types import BoolArray, Float32Array, FloatArray, IntArray


@dataclass(frozen=True)
class LabelLevel:
    """Groups of the labels, as one column of the reference has them.

    Parameters
    ----------
    key
        Name of the column.
    groups
        Names of the groups, in the column's order.
    codes
        Position of each label's group in ``groups``, ``(n_labels,)``.
    """

    key: str
    groups: list[str]
    codes: list[int]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Self:
        """Read a level of :meth:`to_state`."""
        key, groups, codes = state
        return cls(key, list(groups), list(codes))

    def to_state(self) -> list[Any]:
        """Write the level as a list, because scvi-tools takes no dicts in lists."""
        return [self.key, self.groups, self.codes]

    @property
    def members(self) -> BoolArray:
        """Whether a label is in a group, ``(n_groups, n_labels)``."""
        is_member: BoolArray = np.equal.outer(np.arange(len(self.groups)), self.codes)
        return is_member

    def take(self, codes: Sequence[int]) -> Self:
        """Keep the groups of some labels."""
        groups, positions = np.unique(
            [self.codes[code] for code in codes], return_inverse=True
        )
        names = [self.groups[group] for group in groups]
        return replace(self, groups=names, codes=positions.tolist())

    def append(self, group: str) -> Self:
        """Add a label of a group, which may be new."""
        groups = list(dict.fromkeys([*self.groups, group]))
        return replace(self, groups=groups, codes=[*self.codes, groups.index(group)])


def extend_levels(
    levels: Sequence[LabelLevel], labels: Iterable[str]
) -> list[LabelLevel]:
    """Add labels that the columns do not have: each is a group of its own, or in the group of its name.

    Parameters
    ----------
    levels
        Levels from broad to fine.
    labels
        Labels to add after the others.
    """
    extended = list(levels)
    for label in labels:
        # A label of the group of this name, which is below the same groups.
        alike = None
        for i in reversed(range(len(extended))):
            level = extended[i]
            if alike is None and label in level.groups:
                alike = level.codes.index(level.groups.index(label))
            group = label if alike is None else level.groups[level.codes[alike]]
            extended[i] = level.append(group)
    return extended


def best_labels(probabilities: FloatArray, levels: Sequence[LabelLevel]) -> IntArray:
    """Find the best label of each cell: below the most probable group of each level, from broad to fine.

    Parameters
    ----------
    probabilities
        Shape ``(n_cells, n_labels)``.
    levels
        Levels from broad to fine. Without any, the best label is the most probable one.

    Returns
    -------
    Positions of the labels, ``(n_cells,)``.
    """
    below = probabilities
    for level in levels:
        groups = (below @ level.members.T.astype(below.dtype)).argmax(1)
        below = np.where(np.equal.outer(groups, level.codes), below, 0)
    return below.argmax(1).astype(np.int32)


def groups_of_labels(
    codes: IntArray,
    probabilities: FloatArray,
    levels: Sequence[LabelLevel],
) -> tuple[IntArray, Float32Array]:
    """Find the group of each cell's label at each level, and its probability, the sum over its labels.

    Parameters
    ----------
    codes
        Position of each cell's label, ``(n_cells,)``.
    probabilities
        Shape ``(n_cells, n_labels)``.
    levels
        Levels from broad to fine.

    Returns
    -------
    Positions of the groups, and probabilities, ``(n_cells, n_levels)`` each.
    """
    groups = np.empty((len(codes), len(levels)), dtype=np.int32)
    sums = np.empty(groups.shape, dtype=np.float32)
    for i, level in enumerate(levels):
        groups[:, i] = np.array(level.codes)[codes]
        # Sums of single precision may exceed 1 by their rounding.
        sums[:, i] = (probabilities * level.members[groups[:, i]]).sum(1).clip(max=1)
    return groups, sums


def parents_of_levels(
    labels: Sequence[str], levels: Sequence[LabelLevel]
) -> dict[str, str]:
    """Write levels as the parent of each label and group.

    Parameters
    ----------
    labels
        The labels.
    levels
        Levels from broad to fine.

    Raises
    ------
    ValueError
        If a name has different groups above it in two columns.
    """
    parents: dict[str, str] = {}
    tops: set[str] = set()
    for i, label in enumerate(labels):
        above = [level.groups[level.codes[i]] for level in reversed(levels)]
        # A label may be the only one of its group, and have its name.
        line = [name for name, _ in groupby([label, *above])]
        tops.add(line[-1])
        for child, parent in pairwise(line):
            if parents.setdefault(child, parent) != parent:
                raise _of_two_places(child)
    for name in parents:
        if name in tops:
            raise _of_two_places(name)
    return parents


def _of_two_places(name: str) -> ValueError:
    return ValueError(
        f"{argument('labels_key')}: {name!r} is in several columns, and what is above it differs: "
        "rename it in one of them."
    )


def read_levels(
    labels: pd.Categorical[Any],
    columns: Mapping[str, pd.Categorical[Any]],
    labels_key: str,
    name: str,
) -> list[LabelLevel]:
    """Read the groups of labels from broader columns, and check that they are a tree.

    Parameters
    ----------
    labels
        Label of each cell; code -1 for cells without one.
    columns
        Name of each broader column and its values, from broad to fine; code -1 for none.
    labels_key
        Name of the column with the labels.
    name
        What the AnnData is called in messages.

    Raises
    ------
    ValueError
        If a cell with a label lacks a value, if a label has several groups above it, if columns are in
        another order, or if a name means different cells in two columns.
    """
    is_labeled = labels.codes >= 0
    for key, column in columns.items():
        is_missing = is_labeled & (column.codes < 0)
        if is_missing.any():
            example = labels[is_missing.argmax()]
            raise ValueError(
                f"{int(is_missing.sum())} cells have a label in {name}.obs[{labels_key!r}], such as {str(example)!r}, "
                f"and none in {name}.obs[{key!r}]: fill it in, or leave the cells out."
            )
    table = pd.DataFrame({key: column.astype(str) for key, column in columns.items()})
    table[labels_key] = labels.astype(str)
    table = table[is_labeled]
    _check_tree(table, name)
    of_label = table.drop_duplicates(labels_key).set_index(labels_key)
    occurring = [
        str(label) for label in labels.categories if str(label) in of_label.index
    ]
    levels = []
    for key, column in columns.items():
        groups = of_label.loc[occurring, key]
        names = [str(group) for group in column.categories if str(group) in set(groups)]
        levels.append(
            LabelLevel(
                key, names, pd.Index(names).get_indexer(pd.Index(groups)).tolist()
            )
        )
    parents_of_levels(occurring, levels)
    return levels


def _check_tree(table: pd.DataFrame, name: str) -> None:
    """Refuse columns in the wrong order, and values below two values of the column before."""
    keys = [str(key) for key in table]
    for broad, fine in pairwise(keys):
        if _is_below(table, fine, broad):
            continue
        n_values = table.nunique()
        by_size = sorted(keys, key=lambda key: int(n_values[key]))
        if all(_is_below(table, lower, upper) for upper, lower in pairwise(by_size)):
            raise ValueError(
                f"{argument('labels_key')} names columns from broad to fine: pass {by_size}, not {keys}."
            )
        pairs = table.groupby([fine, broad]).size()
        value = pairs.index.get_level_values(0)
        value = value[value.duplicated()][0]
        above = [
            f"{group!r} ({n_cells} cells)" for group, n_cells in pairs[value].items()
        ]
        raise ValueError(
            f"{name}.obs[{fine!r}] has {value!r} below {' and '.join(above)} of {name}.obs[{broad!r}]: correct the "
            "cells, or give the label another name in each."
        )


def _is_below(table: pd.DataFrame, fine: str, broad: str) -> bool:
    """Whether each value of a column has one value of another."""
    return bool((table.groupby(fine)[broad].nunique() == 1).all())
