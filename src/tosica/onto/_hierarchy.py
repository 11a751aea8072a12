"""The tree above labels: which term, or parent that was named, stands for which labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tosica._text import only_known
from tosica.onto._ontology import NO_TERM, match_label, read_ontology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Cover(NamedTuple):
    """A term, ``None`` if none covers the set, and whether it covers each label."""

    term: str | None
    members: NDArray[np.bool_]


class LabelHierarchy:
    """Labels, and the groups of labels above them.

    Groups are terms of the Cell Ontology, or the parents that the caller names. A group is the set
    of the labels below it; a label that has others below it is one of its own group.

    Parameters
    ----------
    labels
        The labels.
    term_of_label
        Terms of those that have one; terms that are not in the ontology do not count.
    parent_of
        Label or parent to its parent, see :func:`check_parents`. If there are any, they are the
        groups, and the ontology is not asked.
    """

    def __init__(
        self,
        labels: Sequence[str],
        term_of_label: Mapping[str, str],
        parent_of: Mapping[str, str] | None = None,
    ) -> None:
        ontology, n = read_ontology(), len(labels)
        covered: dict[str, NDArray[np.bool_]] = {}
        depth: dict[str, int] = {}
        for i, label in enumerate(labels):
            line = _parents_above(label, parent_of) if parent_of else []
            term = term_of_label.get(label)
            if not parent_of and term in ontology.names:
                line = [
                    t
                    for t in (term, *ontology.ancestors[term])
                    if t not in ontology.forbidden
                ]
            for place, key in enumerate(line):
                covered.setdefault(key, np.zeros(n, dtype=bool))[i] = True
                depth[key] = (
                    len(line) - place if parent_of else len(ontology.ancestors[key])
                )
        # The fewest labels first; of groups with as many, the most specific, then the lowest number.
        order = sorted(covered, key=lambda key: (covered[key].sum(), -depth[key], key))
        self._keys = order
        self._covered = np.array([covered[key] for key in order]).reshape(-1, n)
        # One name for each set of labels, and none for all labels, which would say nothing.
        first_of = {
            row.tobytes(): k for k, row in reversed(list(enumerate(self._covered)))
        }
        kept = sorted(k for k in first_of.values() if 1 < self._covered[k].sum() < n)
        own = {
            term_of_label[label]: label
            for label in reversed(labels)
            if label in term_of_label
        }
        groups = [order[k] for k in kept]
        self.names = [
            *labels,
            *(
                key if parent_of else own.get(key, ontology.names[key])
                for key in groups
            ),
        ]
        """Names of the labels, then of the groups that have several labels but not all."""
        found = (
            [term_of_label.get(key) or match_label(key).term for key in groups]
            if parent_of
            else groups
        )
        self.terms = [
            *(term_of_label.get(label, NO_TERM) for label in labels),
            *(term or NO_TERM for term in found),
        ]
        """Term of each, or ``"unknown"``."""
        self.members = np.vstack([np.eye(n, dtype=bool), self._covered[kept]])
        """Which labels each stands for, ``(n_names, n_labels)``."""

    def cover(self, members: NDArray[np.bool_]) -> Cover:
        """Find the term that covers all labels of a set, and the fewest others.

        Parameters
        ----------
        members
            Whether each label is in the set, ``(n_labels,)``.
        """
        if members.any():
            covers = ~(members & ~self._covered).any(axis=1)
            if covers.any():
                first = int(covers.argmax())
                return Cover(self._keys[first], self._covered[first])
        return Cover(None, members)

    def answer(
        self, probabilities: NDArray[np.floating], confidence: float
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Find the deepest label or group of each cell whose probability is high enough.

        The probability of a group is the sum over its labels. Of those that reach ``confidence``,
        the one with the fewest labels is taken, and of several the most probable.

        Parameters
        ----------
        probabilities
            Shape ``(n_cells, n_labels)``.
        confidence
            Least probability.

        Returns
        -------
        Position in ``names``, ``len(names)`` where none is probable enough, and the probability
        of the answer, or of the most probable of all names; each of shape ``(n_cells,)``.
        """
        # Sums of single precision may exceed 1 by their rounding.
        sums = np.minimum(probabilities @ self.members.T.astype(probabilities.dtype), 1)
        sizes, rows = self.members.sum(1), np.arange(len(sums))
        codes = np.full(len(sums), len(self.names), dtype=np.int32)
        found = sums.max(1)
        for size in np.unique(sizes):
            of_size = np.flatnonzero(sizes == size)
            best = of_size[sums[:, of_size].argmax(1)]
            new = (codes == len(self.names)) & (sums[rows, best] >= confidence)
            codes[new], found[new] = best[new], sums[rows, best][new]
        return codes, found.astype(np.float32)


def _parents_above(label: str, parent_of: Mapping[str, str]) -> list[str]:
    line = [label]
    while line[-1] in parent_of:
        line.append(parent_of[line[-1]])
    return line


def check_parents(parents: Any, labels: Sequence[str]) -> dict[str, str]:
    """Check a table of child and parent that the caller gave.

    Parameters
    ----------
    parents
        Label or parent to its parent.
    labels
        The labels of the model.

    Raises
    ------
    TypeError
        If it is no mapping of text to text.
    KeyError
        If a child is neither a label nor a parent.
    ValueError
        If one is its own parent, directly or through others.
    """
    name = "label_parents_"
    if not isinstance(parents, Mapping) or not all(
        isinstance(x, str) for pair in parents.items() for x in pair
    ):
        raise TypeError(
            f"{name} must be a dict of label to parent, such as {{'naive B cell': 'B cell'}}."
        )
    known = [*labels, *parents.values()]
    for child in parents:
        if child not in known:
            raise KeyError(
                f"{name}: {child!r} is neither a label of the model nor a parent{only_known(child, known)}"
            )
        line = [child]
        while line[-1] in parents:
            line.append(parents[line[-1]])
            if line[-1] in line[:-1]:
                raise ValueError(
                    f"{name} makes {line[-1]!r} its own parent ({' < '.join(line)}): leave one pair out."
                )
    return dict(parents)
