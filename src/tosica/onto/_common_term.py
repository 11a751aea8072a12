"""The term that covers a set of labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tosica.onto._ontology import read_ontology

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


class Cover(NamedTuple):
    """A term, ``None`` if none covers the set, and whether it covers each label."""

    term: str | None
    members: NDArray[np.bool_]


class LabelTerms:
    """Terms of labels, and all terms above them with the labels that each covers.

    Parameters
    ----------
    labels
        The labels.
    term_of_label
        Terms of those that have one; terms that are not in the ontology do not count.
    """

    def __init__(self, labels: Sequence[str], term_of_label: Mapping[str, str]) -> None:
        ontology = read_ontology()
        covered: dict[str, NDArray[np.bool_]] = {}
        for i, label in enumerate(labels):
            term = term_of_label.get(label)
            if term not in ontology.names:
                continue
            for above in (term, *ontology.ancestors[term]):
                if above not in ontology.forbidden:
                    covered.setdefault(above, np.zeros(len(labels), dtype=bool))[i] = True
        # The fewest labels first; of terms with as many, the most specific, then the lowest number.
        order = sorted(
            covered, key=lambda term: (covered[term].sum(), -len(ontology.ancestors[term]), term)
        )
        self._terms = order
        self._covered = np.array([covered[term] for term in order]).reshape(-1, len(labels))

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
                return Cover(self._terms[first], self._covered[first])
        return Cover(None, members)
