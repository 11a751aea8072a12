"""Labels of a model, with values, colors, ontology terms and parents."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd

from tosica._obs import default_palette
from tosica.model._fields import LabelsField
from tosica.model._levels import LabelLevel, extend_levels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tosica._types import IntArray


@dataclass(frozen=True)
class Labels:
    """Labels in the reference's order.

    Parameters
    ----------
    names
        The labels as text.
    values
        The labels in their own type, ``(n_labels,)``.
    colors
        Color of each label.
    ordered
        Whether they are an ordered categorical.
    unlabeled, unlabeled_color
        Name and color of cells without a label; ``None`` if every cell has one.
    terms
        Label to its identifier in the Cell Ontology.
    parents
        Label or parent to its parent.
    levels
        Groups of the labels in broader columns of the reference, from broad to fine.
    """

    names: list[str]
    values: np.ndarray
    colors: list[str]
    ordered: bool = False
    unlabeled: str | None = None
    unlabeled_color: str | None = None
    terms: Mapping[str, str] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    levels: Sequence[LabelLevel] = ()

    @classmethod
    def from_state(
        cls,
        state: dict[str, Any],
        terms: Mapping[str, str] | None = None,
        parents: Mapping[str, str] | None = None,
    ) -> Self:
        """Read the labels of a state registry of :class:`LabelsField`."""
        mapping = [str(name) for name in state[LabelsField.CATEGORICAL_MAPPING_KEY]]
        unlabeled = state[LabelsField.UNLABELED_KEY]
        names = [name for name in mapping if name != unlabeled]
        colors = list(state[LabelsField.COLORS_KEY])
        return cls(
            names=names,
            values=state[LabelsField.VALUES_KEY],
            colors=colors[: len(names)],
            ordered=state[LabelsField.ORDERED_KEY],
            unlabeled=unlabeled,
            unlabeled_color=colors[-1] if len(colors) > len(names) else None,
            terms=terms or {},
            parents=parents or {},
            levels=[
                LabelLevel.from_state(level)
                for level in state.get(LabelsField.LEVELS_KEY, ())
            ],
        )

    def to_state(self) -> dict[str, Any]:
        """Write the labels as :class:`LabelsField` registers them; terms and parents are no part of it."""
        mapping = list(self.names)
        if self.unlabeled is not None:
            mapping.append(self.unlabeled)
        colors = list(self.colors)
        if self.unlabeled_color is not None:
            colors.append(self.unlabeled_color)
        return {
            LabelsField.CATEGORICAL_MAPPING_KEY: np.array(mapping, dtype=object),
            LabelsField.UNLABELED_KEY: self.unlabeled,
            LabelsField.COLORS_KEY: colors,
            LabelsField.VALUES_KEY: self.values,
            LabelsField.ORDERED_KEY: self.ordered,
            LabelsField.LEVELS_KEY: [level.to_state() for level in self.levels],
        }

    def codes(self, names: Sequence[str]) -> IntArray:
        """Get the code of each name; -1 if it is no label."""
        index = pd.Index(self.names, dtype=object)
        return index.get_indexer(pd.Index(list(names), dtype=object))

    def take(self, codes: Sequence[int]) -> Self:
        """Keep some of the labels, with their terms and with all that is above them."""
        names = [self.names[code] for code in codes]
        parents: dict[str, str] = {}
        children = names
        while children:
            children = [child for child in children if child in self.parents]
            parents |= {child: self.parents[child] for child in children}
            children = [self.parents[child] for child in children]
        return replace(
            self,
            names=names,
            values=self.values[list(codes)],
            colors=[self.colors[code] for code in codes],
            terms={name: self.terms[name] for name in names if name in self.terms},
            parents=parents,
            levels=[level.take(codes) for level in self.levels],
        )

    def extend(self, names: list[str], values: np.ndarray) -> Self:
        """Add labels after the others, in colors that are not in use.

        All labels become text if the added ones have another type. The result has no order,
        in which added labels have no place.

        Parameters
        ----------
        names
            The labels to add as text.
        values
            The same in their own type.
        """
        if not names:
            return self
        used = [*self.colors]
        if self.unlabeled_color is not None:
            used.append(self.unlabeled_color)
        palette = default_palette(len(used) + len(names))
        unused = [color for color in palette if color not in used]
        unused += palette[len(used) :]
        own_values = self.values
        if own_values.dtype != values.dtype:
            own_values = np.array(self.names, dtype=object)
            values = np.array(names, dtype=object)
        return replace(
            self,
            names=[*self.names, *names],
            values=np.concatenate([own_values, values]),
            colors=[*self.colors, *unused[: len(names)]],
            ordered=False,
            levels=extend_levels(self.levels, names),
        )
