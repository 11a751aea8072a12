"""Numbers, names and parameters in sentences: the log, messages of errors, and the report."""

from __future__ import annotations

import math
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# --------------------------------------------------------------------------- numbers


def format_thousands(number: int, separator: str = " ") -> str:
    """Set the thousands of a number apart, as in 2 310."""
    return f"{int(number):,}".replace(",", separator)


def count(n: int, noun: str = "", separator: str = "\u202f") -> str:
    """Write a number and its noun, on pages with thin spaces between thousands."""
    number = format_thousands(n, separator)
    if not noun:
        return number
    plural = "" if n == 1 else "s"
    return f"{number} {noun}{plural}"


def percent(share: float) -> str:
    """Write a share; a small one is not rounded to nothing."""
    if not math.isfinite(share):
        return "–"
    if share == 0:
        return "0\u00a0%"
    if 0 < share < 0.001:
        return "< 0.1\u00a0%"
    digits = 0 if share >= 0.0995 else 1
    number = f"{100 * share:.{digits}f}".removesuffix(".0")
    return f"{number}\u00a0%"


def decimal(value: float, digits: int = 2) -> str:
    """Write a number with a minus sign instead of a hyphen."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.{digits}f}".replace("-", "−")


# --------------------------------------------------------------------------- names


def listed(texts: Sequence[str], max_listed: int = 8, last: str = " and ") -> str:
    """Put texts into a sentence; ``last`` joins the last one, and of many the rest is counted."""
    if len(texts) > max_listed:
        n_left_out = len(texts) - max_listed
        return f"{', '.join(texts[:max_listed])} and {n_left_out} more"
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])}{last}{texts[-1]}"


def list_names(names: Sequence[str], max_listed: int = 10) -> str:
    """Put names in quotes for a message; of more than ``max_listed``, count the rest."""
    return listed([repr(name) for name in names], max_listed, last=", ")


def similar_names(
    name: str, names: Iterable[str], max_names: int = 3, likeness: float = 0.5
) -> list[str]:
    """Find names that are spelled nearly alike, by :mod:`difflib`, the nearest first."""
    # Case is ignored: names differ in it more often than in letters.
    by_lower: dict[str, str] = {}
    for candidate in names:
        by_lower.setdefault(candidate.lower(), candidate)
    close = get_close_matches(
        name.lower(), list(by_lower), n=max_names, cutoff=likeness
    )
    longer = [lower for lower in by_lower if name and name.lower() in lower]
    similar = dict.fromkeys([*close, *sorted(longer, key=len)])
    return [by_lower[lower] for lower in similar][:max_names]


def did_you_mean(name: str, names: Iterable[str], max_names: int = 3) -> str:
    """Suggest similar names, as the end of a sentence."""
    similar = similar_names(name, names, max_names)
    return f"; did you mean {' or '.join(map(repr, similar))}?" if similar else "."


def only_known(name: str, names: Iterable[Any], max_listed: int = 12) -> str:
    """List the names that exist, and suggest the nearest, as the end of a sentence."""
    existing = [str(candidate) for candidate in names]
    if not existing:
        return ", nor any other."
    listing = list_names(existing, max_listed)
    return f", only {listing}{did_you_mean(name, existing, 1)}"


# --------------------------------------------------------------------------- values and errors


def describe_value(value: Any) -> str:
    """Show a wrong value in a message: whole if it is short, else by its type."""
    is_plain = value is None or isinstance(
        value, bool | str | bytes | Real | list | tuple | set | dict
    )
    text = repr(value) if is_plain else ""
    if isinstance(value, str | bytes) and len(text) > 60:
        return f"{text[:57]}…"
    if text and len(text) <= 60:
        return text
    name = type(value).__name__
    article = "an" if name[0] in "AEIOUaeiou" else "a"
    return f"{article} {name}"


def first_line(error: BaseException) -> str:
    """Write the first line of an error, or its type if it has no text."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


# --------------------------------------------------------------------------- parameters

# Option of the running command for each parameter of Python; empty outside of the command line.
_options: dict[str, str] = {}


@contextmanager
def parameters_as_options(options: Mapping[str, str]) -> Iterator[None]:
    """Let sentences name options of a command instead of parameters.

    Parameters
    ----------
    options
        Text of the command line for each parameter, and for each function of Python that a
        sentence may name: ``{"overwrite": "--overwrite", "model.annotate": "tosica annotate"}``.
    """
    _options.update(options)
    try:
        yield
    finally:
        _options.clear()


def parameter(name: str, value: Any = None) -> str:
    """Name a parameter and its value for a sentence: ``overwrite=True``, or ``--overwrite``.

    Without a value, it is ``layer=`` or ``--layer``.
    """
    option = _options.get(name)
    if option is None:
        return f"{name}=" if value is None else f"{name}={value!r}"
    return option if value is None or value is True else f"{option} {value!r}"


def argument(name: str) -> str:
    """Name a parameter without its value for a sentence: ``labels_key``, or ``--labels-key``."""
    return _options.get(name, name)


def call(function: str, arguments: str | None = None) -> str:
    """Name a function or a call for a sentence: ``model.annotate(adata)``, or ``tosica annotate``."""
    python = function if arguments is None else f"{function}({arguments})"
    return _options.get(function, python)


def in_python(text: str, command_line: str = "") -> str:
    """Write what helps in Python only there, and something else, or nothing, on the command line."""
    return command_line if _options else text
