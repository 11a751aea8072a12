"""Match names that differ in a hyphen, an underscore or a dot only.

Seurat writes a hyphen for an underscore, R a dot for any character that its names may not have.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from tosica._types import BoolArray, IntArray, ObjectArray

_SEPARATOR = re.compile("[^A-Za-z0-9]")


class Respelled(NamedTuple):
    """Pairs of a target and a name that are equal but for ``-``, ``_`` and ``.``.

    ``targets`` and ``rows`` are their positions, ``(n_pairs,)``. ``ambiguous`` are targets with
    several candidates; they are not matched.
    """

    targets: IntArray
    rows: IntArray
    ambiguous: list[str]


def match_respelled(
    names: pd.Index,
    targets: pd.Index,
    matched_targets: IntArray,
    matched_rows: IntArray,
) -> Respelled:
    """Find targets among names that write another one of ``-``, ``_`` and ``.``.

    A name is taken only if nothing else is equal to it: neither another of the names, nor another
    of the targets.

    Parameters
    ----------
    names, targets
        Names to search, and names to find, strings.
    matched_targets, matched_rows
        Positions of targets and of names that are matched already.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> names = pd.Index(["HLA-A-1", "B-1", "B_1"])
    >>> targets = pd.Index(["HLA-A_1", "B-1", "C.1"])
    >>> match = match_respelled(names, targets, np.array([1]), np.array([1]))
    >>> match.targets.tolist(), match.rows.tolist(), match.ambiguous
    ([0], [0], [])
    """
    is_open = np.ones(len(targets), dtype=bool)
    is_open[matched_targets] = False
    target_keys = _fold(targets)
    name_keys = _fold(names)
    is_near = name_keys.isin(target_keys[is_open])
    candidates = np.flatnonzero(is_open & target_keys.isin(name_keys[is_near]))
    if not len(candidates):
        return Respelled(np.empty(0, np.intp), np.empty(0, np.intp), [])
    is_free = ~name_keys.duplicated(keep=False)
    is_free[matched_rows] = False
    free_rows = np.flatnonzero(is_free)
    position = pd.Index(name_keys[free_rows]).get_indexer(target_keys[candidates])
    is_single = ~target_keys.duplicated(keep=False)[candidates]
    is_clear = (position >= 0) & is_single
    return Respelled(
        candidates[is_clear].astype(np.intp),
        free_rows[position[is_clear]].astype(np.intp),
        [str(targets[i]) for i in candidates[~is_clear]],
    )


def same_but_hyphens(left: ObjectArray, right: ObjectArray) -> BoolArray:
    """Compare two arrays of names, with ``-``, ``_`` and ``.`` taken as equal, ``(n_names,)``."""
    return np.asarray(_fold(pd.Index(left)) == _fold(pd.Index(right)))


def _fold(names: pd.Index) -> pd.Index:
    return pd.Index([_SEPARATOR.sub("-", str(name)) for name in names], dtype=object)
