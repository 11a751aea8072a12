"""Names short enough for an axis."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_ELLIPSIS = " … "
# Share of the room that the beginning of a name gets; the first that tells all names apart wins.
_HEAD_SHARES = (0.6, 0.4, 0.75, 0.25, 0.9, 0.1)
# A cut moves back to the end of a word if that costs no more letters than this.
_MOST_LOST = 10


def shorten(names: Sequence[str], max_length: int = 50) -> list[str]:
    """Cut the middle out of long names, at words, so that all stay different.

    Gene Ontology terms begin with what is done ("positive regulation of") and end with to what
    ("signaling pathway"), and long ones differ anywhere, so no fixed end can be dropped.

    Parameters
    ----------
    names
        Names; those that are short enough stay as they are.
    max_length
        Longest name to return, in characters, at least 10.

    Returns
    -------
    One name for each of ``names``, none longer than ``max_length``. Names that differ still do;
    where no cut tells two apart, the later one gets a number.

    Raises
    ------
    ValueError
        If ``max_length`` is less than 10.
    """
    if max_length < 10:
        msg = f"Names cannot be shortened to fewer than 10 characters, got {max_length}."
        raise ValueError(msg)
    short = {name: name for name in names if len(name) <= max_length}
    pending = list(dict.fromkeys(name for name in names if len(name) > max_length))
    taken = set(short.values())
    for share in _HEAD_SHARES:
        candidates: dict[str, list[str]] = defaultdict(list)
        for name in pending:
            candidates[_cut(name, max_length, share)].append(name)
        for candidate, sources in candidates.items():
            if len(sources) == 1 and candidate not in taken:
                short[sources[0]] = candidate
                taken.add(candidate)
        pending = [name for name in pending if name not in short]
    for name in pending:
        number = 1
        candidate = _cut(name, max_length, _HEAD_SHARES[0])
        while candidate in taken:
            number += 1
            suffix = f" ({number})"
            candidate = _cut(name, max_length - len(suffix), _HEAD_SHARES[0]) + suffix
        short[name] = candidate
        taken.add(candidate)
    return [short[name] for name in names]


def _cut(name: str, max_length: int, head_share: float) -> str:
    room = max_length - len(_ELLIPSIS)
    n_head = round(room * head_share)
    head, tail = name[:n_head], name[len(name) - (room - n_head) :]
    # Only if the cut went through a word; the part that is kept must not vanish with it.
    if re.match(r"\w", name[n_head : n_head + 1]):
        head = _trim(head, re.search(r"[\W_][^\W_]*$", head))
    if re.match(r"[^\W_]", name[len(name) - len(tail) - 1 : len(name) - len(tail)]):
        tail = _trim(tail, re.match(r"[^\W_]*[\W_]", tail))
    return f"{head.rstrip(' _-,(/')}{_ELLIPSIS}{tail.lstrip(' _-,)/')}"


def _trim(part: str, broken_word: re.Match[str] | None) -> str:
    if broken_word is None or len(broken_word[0]) > min(_MOST_LOST, 2 * len(part) // 3):
        return part
    return part[: broken_word.start()] if broken_word.start() else part[broken_word.end() :]
