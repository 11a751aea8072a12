"""Checks of arguments, and parts of their messages."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_count(name: str, value: Any, *, least: int = 1) -> None:
    """Check that a value is a whole number of at least ``least``.

    Raises
    ------
    TypeError
        If it is not a whole number.
    ValueError
        If it is less.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, not {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}.")


def check_key_added(key_added: Any) -> None:
    """Check that a value can be the key of a result, in memory and in a file.

    Raises
    ------
    TypeError
        If it is not a string.
    ValueError
        If it is empty or has a slash, which in an ``.h5ad`` file is a folder.
    """
    if not isinstance(key_added, str):
        raise TypeError(f"key_added must be a string, not {key_added!r}.")
    if not key_added or "/" in key_added:
        raise ValueError(
            f"key_added must be a name without a slash, which a file could not hold, not "
            f"{key_added!r}."
        )


def list_names(names: Sequence[str], most: int = 10) -> str:
    """Put names in quotes for a message; of more than ``most``, count the rest."""
    listed = ", ".join(repr(name) for name in names[:most])
    return f"{listed} and {len(names) - most} more" if len(names) > most else listed
