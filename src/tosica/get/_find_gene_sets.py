"""Gene sets that a caller names, found among those that are there."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MOST_SUGGESTIONS = 3


def find_gene_sets(wanted: str | Iterable[str], known: Sequence[str], where: str) -> list[str]:
    """Names that the caller wants, each once, all of which exist.

    Parameters
    ----------
    wanted
        One name or several.
    known
        Names that exist.
    where
        What holds them, for the message.

    Raises
    ------
    KeyError
        If a name does not exist; the nearest names are suggested.
    ValueError
        If no name is given.
    """
    names = [wanted] if isinstance(wanted, str) else [str(name) for name in wanted]
    names = list(dict.fromkeys(names))
    if not names:
        msg = "gene_sets is empty: name at least one gene set, or leave it out."
        raise ValueError(msg)
    exists = set(known)
    missing = [name for name in names if name not in exists]
    if missing:
        raise KeyError(
            f"There is no gene set {missing[0]!r} in {where}{nearest(missing[0], known)}"
        )
    return names


def nearest(name: str, known: Sequence[str]) -> str:
    """Say which names are near, as the end of a sentence."""
    # Names are compared without case, since collections differ in that more than in letters.
    lower: dict[str, str] = {}
    for other in known:
        lower.setdefault(other.lower(), other)
    close = get_close_matches(name.lower(), list(lower), n=_MOST_SUGGESTIONS, cutoff=0.5)
    parts = [other for other in lower if name.lower() in other]
    found = list(dict.fromkeys([*close, *sorted(parts, key=len)]))[:_MOST_SUGGESTIONS]
    if not found:
        return f", which holds {len(known)}."
    return f"; did you mean {' or '.join(repr(lower[other]) for other in found)}?"
