"""Match names that differ in hyphens and underscores only, which Seurat exchanges."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Respelled(NamedTuple):
    """Pairs of a wanted and a given name that are equal once ``_`` is replaced by ``-``.

    ``wanted`` and ``rows`` are their positions, both ``(n_pairs,)``. ``ambiguous`` are wanted names
    that more than one name is equal to in this way; no pair has them.
    """

    wanted: NDArray[np.intp]
    rows: NDArray[np.intp]
    ambiguous: list[str]


def match_respelled(
    given: pd.Index, wanted: pd.Index, found: NDArray[np.intp], rows: NDArray[np.intp]
) -> Respelled:
    """Find wanted names that are given with ``-`` for ``_``, or the other way round.

    Seurat replaces each ``_`` in the name of a gene by ``-``. A name is taken only if nothing else
    is equal to it: neither another of the given names, nor another of the wanted ones.

    Parameters
    ----------
    given, wanted
        Names, strings.
    found, rows
        Positions of wanted names and of given names that are matched already.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> given = pd.Index(["HLA-A-1", "B-1", "B_1"])
    >>> wanted = pd.Index(["HLA-A_1", "B-1", "B.1"])
    >>> match = match_respelled(given, wanted, np.array([1]), np.array([1]))
    >>> match.wanted.tolist(), match.rows.tolist(), match.ambiguous
    ([0], [0], [])
    """
    is_open = np.ones(len(wanted), dtype=bool)
    is_open[found] = False
    wanted_key, given_key = _fold(wanted), _fold(given)
    is_given = given_key.isin(wanted_key[is_open])
    # Names without either character are equal only if they are the same.
    candidates = np.flatnonzero(is_open & wanted_key.isin(given_key[is_given]))
    if not len(candidates):
        return Respelled(np.empty(0, np.intp), np.empty(0, np.intp), [])
    of_given = ~given_key.duplicated(keep=False)
    of_given[rows] = False
    positions = np.flatnonzero(of_given)
    row = pd.Index(given_key[positions]).get_indexer(wanted_key[candidates])
    is_one = (row >= 0) & ~wanted_key.duplicated(keep=False)[candidates]
    return Respelled(
        candidates[is_one].astype(np.intp),
        positions[row[is_one]].astype(np.intp),
        [str(wanted[i]) for i in candidates[~is_one]],
    )


def same_but_hyphens(one: NDArray[np.object_], other: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Compare two arrays of names, with ``-`` and ``_`` taken as equal, ``(n_names,)``."""
    return np.asarray(_fold(pd.Index(one)) == _fold(pd.Index(other)))


def _fold(names: pd.Index) -> pd.Index:
    return pd.Index([str(name).replace("_", "-") for name in names], dtype=object)
