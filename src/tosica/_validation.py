"""Refuse arguments that no function can work with, in one sentence each."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_count(name: str, value: Any, *, least: int = 1) -> None:
    """Refuse what is no whole number of at least ``least``.

    Raises
    ------
    TypeError, ValueError
        If it is none, or is less.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, not {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}.")


def check_key_added(key_added: Any) -> None:
    """Refuse what cannot be the key of a result, in memory or in a file.

    Raises
    ------
    TypeError
        If it is no string.
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
