"""Short names of gene sets and groups, and names of values."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from tosica._annotated import result_type
from tosica._validation import check_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData

_ELLIPSIS = " … "
# Shares of the length for the beginning of a name, in the order in which they are tried.
_HEAD_SHARES = (0.6, 0.4, 0.75, 0.25, 0.9, 0.1)
# A cut moves to the end of a word if it removes at most this many more characters.
_MAX_REMOVED = 10


def shorten(names: Sequence[str], max_length: int = 50) -> list[str]:
    """Shorten long names in the middle, at words, so that all stay different.

    Long Gene Ontology terms ("positive regulation of ... signaling pathway") may differ anywhere,
    so that neither beginning nor end can always be removed.

    Parameters
    ----------
    names
        Names; short ones stay as they are.
    max_length
        Longest name to return, in characters, at least 10.

    Returns
    -------
    One name for each of ``names``, none longer than ``max_length``. Different names stay different;
    if no cut keeps two of them different, the second one gets a number.

    Raises
    ------
    TypeError, ValueError
        If ``max_length`` is not a whole number of at least 10.
    """
    check_count("max_name_length", max_length, least=10)
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
    # A word that was cut is removed, unless too little would be left.
    if re.match(r"\w", name[n_head : n_head + 1]):
        head = _trim(head, re.search(r"[\W_][^\W_]*$", head))
    if re.match(r"[^\W_]", name[len(name) - len(tail) - 1 : len(name) - len(tail)]):
        tail = _trim(tail, re.match(r"[^\W_]*[\W_]", tail))
    return f"{head.rstrip(' _-,(/')}{_ELLIPSIS}{tail.lstrip(' _-,)/')}"


def _trim(part: str, broken_word: re.Match[str] | None) -> str:
    if broken_word is None or len(broken_word[0]) > min(_MAX_REMOVED, 2 * len(part) // 3):
        return part
    return part[: broken_word.start()] if broken_word.start() else part[broken_word.end() :]


# Lines that are short enough for the titles of scanpy's legends.
_VALUE_NAMES = {
    "presence": ("contribution to", "the label's score", "(presence)"),
    "attribution": ("contribution to", "the label's score"),
    "weighted attention": ("weighted attention",),
    "attention": ("attention",),
}


def value_name(adata: AnnData, key: str, prefix: str = "") -> str:
    """Name of the values under a key, as the title of a colour bar.

    Parameters
    ----------
    adata
        Annotated query.
    key
        Key of the values.
    prefix
        First line of the title, such as ``"mean z-score of"``.
    """
    lines = _VALUE_NAMES[result_type(adata, key)]
    return "\n".join([prefix, *lines] if prefix else lines)
