"""Names of gene sets and groups that fit into plots, and names of values."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
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
# A name longer than two lines is shortened to this many lines, the first of which it then fits.
_SHORTENED_TO = (2.0, 1.8, 1.6)
# Where a line may end, best first: before a space, after an underscore, after a hyphen and so on.
_BREAKS = (r"(?= )", r"(?<=_)", r"(?<=[-/,:;+])")


def wrap(names: Sequence[str], max_length: int = 50) -> list[str]:
    """Wrap long names at a word into two lines of similar length, so that all stay different.

    Nothing is left out of a name that fits into two lines. Only longer ones, and those without a
    place to break, are shortened as in :func:`shorten`.

    Parameters
    ----------
    names
        Names; short ones stay as they are.
    max_length
        Longest line, in characters, at least 10.

    Returns
    -------
    One name for each of ``names``, of one or two lines. Different names stay different.

    Raises
    ------
    TypeError, ValueError
        If ``max_length`` is not a whole number of at least 10.
    """
    one_line = shorten(names, max_length)
    shorter = [shorten(names, round(factor * max_length)) for factor in _SHORTENED_TO]
    wrapped = []
    for i, name in enumerate(names):
        candidates = [name] if len(name) <= max_length else [name, *(of[i] for of in shorter)]
        lines = (_two_lines(candidate, max_length) for candidate in candidates)
        wrapped.append(next((text for text in lines if text is not None), one_line[i]))
    times = Counter(dict(zip(names, wrapped, strict=True)).values())
    return [
        text if times[text] == 1 else short for text, short in zip(wrapped, one_line, strict=True)
    ]


def _two_lines(name: str, max_length: int) -> str | None:
    """Break a name where its longer line is shortest; ``None`` if a line would be too long."""
    if len(name) <= max_length:
        return name
    for pattern in _BREAKS:
        pairs = [
            (name[: match.start()].rstrip(), name[match.start() :].lstrip())
            for match in re.finditer(pattern, name)
        ]
        fitting = [
            pair for pair in pairs if all(pair) and max(len(line) for line in pair) <= max_length
        ]
        if fitting:
            best = min(fitting, key=_unevenness)
            return "\n".join(best)
    return None


def _unevenness(pair: Sequence[str]) -> tuple[bool, int]:
    """How bad a break is: worst after a single letter, as of "G protein", then by longer line."""
    return bool(re.search(r"(^|\W)\w$", pair[0])), max(len(line) for line in pair)


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
