"""Errors that say what is wrong with a file, and one sentence for all others."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MOST_SHOWN = 150


class Refused(Exception):
    """What a reader raises on purpose, with a sentence. Any other error means damage."""


class RefusedValue(Refused, ValueError):
    """The file holds something that cannot be read."""


class RefusedKey(Refused, KeyError):
    """The user named something that the file does not have."""


@contextmanager
def as_builtin_errors() -> Iterator[None]:
    """Raise what readers raise on purpose as the ValueError or KeyError that users expect."""
    try:
        yield
    except RefusedValue as error:
        raise ValueError(*error.args) from error.__cause__
    except RefusedKey as error:
        raise KeyError(*error.args) from error.__cause__


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Turn what libraries raise on a damaged file into one sentence.

    Libraries may raise anything: a member that is not there, an array of another shape, a checksum
    that is wrong. Readers name what is common, and this names the rest.

    Raises
    ------
    ValueError
        Instead of other errors.
    MemoryError
        If the contents are too large for this machine.
    PermissionError
        If the file may not be read.
    """
    try:
        yield
    except (Refused, ImportError):
        raise
    except MemoryError as error:
        raise MemoryError(
            f"{str(path)!r} does not fit into memory: read it on a larger machine, or subset the "
            "object before saving."
        ) from error
    except PermissionError as error:
        raise PermissionError(
            f"{str(path)!r} may not be read by this user: ask its owner for permission."
        ) from error
    except Exception as error:
        raise ValueError(
            f"{str(path)!r} is damaged, or laid out in a way that is not known "
            f"({describe_error(error)}): copy it again to the end, or save it again."
        ) from error


def describe_error(error: Exception) -> str:
    """Kind of the error, and the first line of its message."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    line = lines[0] if len(lines[0]) <= _MOST_SHOWN else f"{lines[0][:_MOST_SHOWN]}…"
    return f"{type(error).__name__}: {line.rstrip('.')}"
