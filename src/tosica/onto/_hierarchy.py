"""The tree above labels: terms, or parents that the user names, and their labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tosica._text import only_known
from tosica.onto._ontology import NO_TERM, match_label, read_ontology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tosica._types import BoolArray, Float32Array, FloatArray, IntArray


class Cover(NamedTuple):
    """A term, ``None`` if none covers the set, and whether it covers each label."""

    term: str | None
    members: BoolArray


class LabelHierarchy:
    """Labels, and the groups of labels above them.

    Groups are terms of the Cell Ontology, or the parents that the caller names. A group is the set
    of the labels below it; a label that has others below it is one of its own group.

    Parameters
    ----------
    labels
        The labels.
    term_of_label
        Terms of labels that have one; terms that are not in the ontology do not count.
    parent_of
        Label or parent to its parent, see :func:`check_parents`. If there are any, they are the
        groups, and the ontology is not used.

    Attributes
    ----------
    names
        Names of the labels, then of the groups that have several labels but not all.
    terms
        Term of each name, or ``"unknown"``.
    members
        Labels of each name, ``(n_names, n_labels)``, bool.
    """

    def __init__(
        self,
        labels: Sequence[str],
        term_of_label: Mapping[str, str],
        parent_of: Mapping[str, str] | None = None,
    ) -> None:
        n_labels = len(labels)
        covered: dict[str, BoolArray] = {}
        depth: dict[str, int] = {}
        for i, label in enumerate(labels):
            if parent_of:
                line = _parents_above(label, parent_of)
                depth.update((key, len(line) - step) for step, key in enumerate(line))
            else:
                line = _terms_above(term_of_label.get(label))
                depth.update((key, len(read_ontology().ancestors[key])) for key in line)
            for key in line:
                covered.setdefault(key, np.zeros(n_labels, dtype=bool))[i] = True
        # Few labels come first; of groups with as many, the most specific, then the lowest number.
        self._keys = sorted(
            covered, key=lambda key: (covered[key].sum(), -depth[key], key)
        )
        self._covered = np.array([covered[key] for key in self._keys], dtype=bool)
        self._covered = self._covered.reshape(-1, n_labels)
        # Of groups with the same labels, the first names them. A group of all labels says nothing.
        group_of_set: dict[bytes, int] = {}
        for i, row in enumerate(self._covered):
            if 1 < row.sum() < n_labels:
                group_of_set.setdefault(row.tobytes(), i)
        groups = list(group_of_set.values())
        keys = [self._keys[i] for i in groups]
        if parent_of:
            group_names = keys
            group_terms = [term_of_label.get(k) or match_label(k).term for k in keys]
        else:
            label_of_term: dict[str, str] = {}
            for label in labels:
                if label in term_of_label:
                    label_of_term.setdefault(term_of_label[label], label)
            term_names = read_ontology().names
            group_names = [label_of_term.get(key, term_names[key]) for key in keys]
            group_terms = list(keys)
        label_terms = [term_of_label.get(label, NO_TERM) for label in labels]
        self.names = [*labels, *group_names]
        self.terms = [*label_terms, *(term or NO_TERM for term in group_terms)]
        self.members = np.vstack([np.eye(n_labels, dtype=bool), self._covered[groups]])

    def cover(self, members: BoolArray) -> Cover:
        """Find the term that covers all labels of a set, and the fewest others.

        Parameters
        ----------
        members
            Whether each label is in the set, ``(n_labels,)``.
        """
        if members.any():
            covers = ~(members & ~self._covered).any(axis=1)
            if covers.any():
                smallest = int(covers.argmax())
                return Cover(self._keys[smallest], self._covered[smallest])
        return Cover(None, members)

    def answer(
        self, probabilities: FloatArray, confidence: float
    ) -> tuple[IntArray, Float32Array]:
        """Find the deepest label or group of each cell whose probability is high enough.

        The probability of a group is the sum over its labels. Of the names that reach
        ``confidence``, the one with the fewest labels is taken, and of several the most probable.

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
        sizes = self.members.sum(1)
        cells = np.arange(len(sums))
        codes = np.full(len(sums), len(self.names), dtype=np.int32)
        answered = sums.max(1)
        for size in np.unique(sizes):
            of_size = np.flatnonzero(sizes == size)
            best = of_size[sums[:, of_size].argmax(1)]
            best_sums = sums[cells, best]
            is_new = (codes == len(self.names)) & (best_sums >= confidence)
            codes[is_new] = best[is_new]
            answered[is_new] = best_sums[is_new]
        return codes, answered.astype(np.float32)


def _parents_above(label: str, parent_of: Mapping[str, str]) -> list[str]:
    """A label, its parent, the parent of this and so on."""
    line = [label]
    while line[-1] in parent_of:
        line.append(parent_of[line[-1]])
    return line


def _terms_above(term: str | None) -> list[str]:
    """A term and all terms above it, without those that cells may not have."""
    ontology = read_ontology()
    if term not in ontology.names:
        return []
    terms = (term, *ontology.ancestors[term])
    return [term for term in terms if term not in ontology.forbidden]


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
        If a label or parent is its own parent, directly or through others.
    """
    if not isinstance(parents, Mapping) or not all(
        isinstance(name, str) for pair in parents.items() for name in pair
    ):
        raise TypeError(
            "label_parents_ must be a dict of label to parent, such as "
            "{'naive B cell': 'B cell'}."
        )
    names = [*labels, *parents.values()]
    for child in parents:
        if child not in names:
            raise KeyError(
                f"label_parents_: {child!r} is neither a label of the model nor a "
                f"parent{only_known(child, names)}"
            )
        line = [child]
        while line[-1] in parents:
            line.append(parents[line[-1]])
            if line[-1] in line[:-1]:
                raise ValueError(
                    f"label_parents_ makes {line[-1]!r} its own parent "
                    f"({' < '.join(line)}): leave one pair out."
                )
    return dict(parents)
