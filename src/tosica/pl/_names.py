"""Names of gene sets and groups that fit into plots."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Where a line may end, best first: before a space, after an underscore, after a hyphen and so on.
_BREAKS = (r"(?= )", r"(?<=_)", r"(?<=[-/,:;+])")


def wrap(names: Sequence[str], max_length: int = 50) -> list[str]:
    """Wrap long names at a word into two lines of similar length, so that all stay different.

    Nothing is left out of a name that fits into two lines. Longer ones are shortened in the middle,
    and numbered if that makes them equal.

    Parameters
    ----------
    names
        Names; short ones stay as they are.
    max_length
        Longest line, in characters, at least 10.

    Returns
    -------
    One name for each of ``names``, of one or two lines. Different names stay different.
    """
    wrapped: dict[str, str] = {}
    taken: set[str] = set()
    # Short names first, because they stay as they are.
    for name in sorted(dict.fromkeys(names), key=len):
        candidates = (name, _cut(name, round(1.7 * max_length)), _cut(name, max_length))
        text = next(lines for c in candidates if (lines := _two_lines(c, max_length)))
        number = 1
        while text in taken:
            number += 1
            text = f"{_cut(name, max_length - len(f' ({number})'))} ({number})"
        taken.add(text)
        wrapped[name] = text
    return [wrapped[name] for name in names]


def _two_lines(name: str, max_length: int) -> str | None:
    """Break a name where its longer line is shortest; ``None`` if a line would be too long."""
    if len(name) <= max_length:
        return name
    for pattern in _BREAKS:
        starts = [match.start() for match in re.finditer(pattern, name)]
        pairs = [(name[:i].rstrip(), name[i:].lstrip()) for i in starts]
        fitting = [pair for pair in pairs if all(pair) and max(map(len, pair)) <= max_length]
        if fitting:
            # A single letter, as of "G protein", does not end a line.
            best = min(fitting, key=lambda p: (bool(re.search(r"\b\w$", p[0])), max(map(len, p))))
            return "\n".join(best)
    return None


def _cut(name: str, length: int) -> str:
    """Leave out the middle of a long name, at words if these are short."""
    if len(name) <= length:
        return name
    n_head = round(0.6 * (length - 3))
    n_tail = length - 3 - n_head
    head, tail = name[:n_head], name[-n_tail:] if n_tail else ""
    # A word that was cut is removed, unless too little would be left.
    whole = re.sub(r"[\W_][^\W_]*$", "", head), re.sub(r"^[^\W_]*[\W_]", "", tail)
    head = whole[0] if len(whole[0]) > n_head / 2 else head
    tail = whole[1] if len(whole[1]) > n_tail / 2 else tail
    return f"{head.rstrip(' _-,(/')} … {tail.lstrip(' _-,)/')}"
