"""Checks of arguments at the entrances of public functions, and parts of their messages.

A wrong type is a ``TypeError``, a wrong value a ``ValueError``, and a name that is not there a
``KeyError``. A message names the parameter and the value, and what to pass instead.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from anndata import AnnData
from mudata import MuData

from tosica._obs import file_columns  # noqa: F401 # until its callers import it from there

if TYPE_CHECKING:
    from collections.abc import Sequence

# --------------------------------------------------------------------------- numbers and flags


def check_count(name: str, value: Any, *, least: int = 1, optional: bool = False) -> None:
    """Check that a value is a whole number of at least ``least``, or ``None`` if ``optional``.

    Raises
    ------
    TypeError
        If it is not a whole number.
    ValueError
        If it is less.
    """
    if optional and value is None:
        return
    or_none = " or None" if optional else ""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number{or_none}, not {_shown(value)}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}{or_none}, not {value}.")


def check_number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    optional: bool = False,
) -> None:
    """Check that a value is a finite number in a range, or ``None`` if ``optional``.

    Raises
    ------
    TypeError
        If it is not a number.
    ValueError
        If it is NaN, infinite, below ``least``, or not above ``above``.
    """
    if optional and value is None:
        return
    or_none = " or None" if optional else ""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number{or_none}, not {_shown(value)}.")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number{or_none}, not {value}.")
    if float(value) < least or float(value) <= above:
        bound = f"at least {least:g}" if float(value) < least else f"above {above:g}"
        raise ValueError(f"{name} must be {bound}{or_none}, not {value}.")


def check_fraction(name: str, value: Any, *, zero: bool = True, one: bool = True) -> None:
    """Check that a value is a number from 0 to 1; ``zero`` and ``one`` say whether these may be.

    Raises
    ------
    TypeError
        If it is not a number.
    ValueError
        If it is NaN or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not {_shown(value)}.")
    share = float(value)
    if not 0 <= share <= 1 or (share == 0 and not zero) or (share == 1 and not one):
        bounds = {
            (True, True): "lie between 0 and 1",
            (True, False): "be at least 0 and below 1",
            (False, True): "be above 0 and at most 1",
            (False, False): "lie between 0 and 1",
        }
        raise ValueError(f"{name} must {bounds[zero, one]}, not {value}.")


def check_flags(**flags: Any) -> None:
    """Check that each argument is ``True`` or ``False``.

    Raises
    ------
    TypeError
        If one is anything else, such as ``"yes"``.
    """
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name} must be True or False, not {_shown(value)}.")


# --------------------------------------------------------------------------- strings and names


def check_string(name: str, value: Any, *, optional: bool = False) -> None:
    """Check that a value is a string, or ``None`` if ``optional``.

    Raises
    ------
    TypeError
        If it is not.
    """
    if not isinstance(value, str) and not (optional and value is None):
        or_none = " or None" if optional else ""
        raise TypeError(f"{name} must be a string{or_none}, not {_shown(value)}.")


def check_names(name: str, value: Any) -> list[str]:
    """Check that a value is a name or several, and return them as strings.

    Whole numbers are names, too, because clusters are often numbered.

    Raises
    ------
    TypeError
        If it is anything else.
    """
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        raise TypeError(f"{name} must be a string or a list of strings, not {_shown(value)}.")
    listed = list(value)
    for item in listed:
        if isinstance(item, bool) or not isinstance(item, str | Integral):
            raise TypeError(f"{name} must hold strings only, not {_shown(item)}.")
    return [str(item) for item in listed]


def check_choice(name: str, value: Any, choices: Iterable[str], *, optional: bool = False) -> None:
    """Check that a value is one of several strings, or ``None`` if ``optional``.

    Raises
    ------
    TypeError
        If it is not a string.
    ValueError
        If it is another string.
    """
    if optional and value is None:
        return
    *most, last = [*map(repr, choices), *(["None"] if optional else [])]
    if not isinstance(value, str) or value not in choices:
        wrong = ValueError if isinstance(value, str) else TypeError
        listed = f"{', '.join(most)} or {last}" if most else last
        raise wrong(f"{name} must be {listed}, not {_shown(value)}.")


def check_key_added(key_added: Any, *, name: str = "key_added", optional: bool = False) -> None:
    """Check that a value can be the key of a result, in memory and in a file.

    Raises
    ------
    TypeError
        If it is not a string.
    ValueError
        If it is empty, has a slash, which in an ``.h5ad`` file is a folder, or cannot be the name
        of anything in a file.
    """
    check_string(name, key_added, optional=optional)
    if key_added is not None and (not is_file_key(key_added) or "/" in key_added):
        raise ValueError(
            f"{name} must be a name without a slash, which a file could not hold, not "
            f"{key_added!r}."
        )


def is_file_key(name: str) -> bool:
    """Whether files can hold something under a name, apart from its slashes."""
    return bool(name.strip(".")) and "\0" not in name


def check_path(name: str, value: Any) -> None:
    """Check that a value is a path.

    Raises
    ------
    TypeError
        If it is neither a string nor a path.
    ValueError
        If it is empty.
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be a path, as a string or pathlib.Path, not {_shown(value)}.")
    if not os.fspath(value):
        raise ValueError(f"{name} is an empty string, and must be a path.")


def list_names(names: Sequence[str], most: int = 10) -> str:
    """Put names in quotes for a message; of more than ``most``, count the rest."""
    listed = ", ".join(repr(name) for name in names[:most])
    return f"{listed} and {len(names) - most} more" if len(names) > most else listed


def similar_names(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Find names that are spelled nearly alike, the nearest first."""
    # Case is ignored: names differ in it more often than in letters.
    lower: dict[str, str] = {}
    for other in known:
        lower.setdefault(other.lower(), other)
    close = get_close_matches(name.lower(), list(lower), n=most, cutoff=0.5)
    parts = [other for other in lower if name and name.lower() in other]
    found = dict.fromkeys([*close, *sorted(parts, key=len)])
    return [lower[other] for other in found][:most]


def did_you_mean(name: str, known: Iterable[str], most: int = 3) -> str:
    """Suggest similar names, as the end of a sentence."""
    similar = similar_names(name, known, most)
    return f"; did you mean {' or '.join(map(repr, similar))}?" if similar else "."


def only_known(name: str, known: Iterable[Any], most: int = 12) -> str:
    """List what there is instead of a name, and suggest the nearest, as the end of a sentence."""
    names = [str(other) for other in known]
    listed = f"only {list_names(names, most)}" if names else "nor any other"
    return f", {listed}{did_you_mean(name, names, 1)}"


# --------------------------------------------------------------------------- data


def check_data(data: Any, *, name: str = "adata", mudata: bool = False, cure: str = "") -> None:
    """Check that a value is an AnnData or, if ``mudata``, a MuData.

    Parameters
    ----------
    data
        The value.
    name
        Name of the parameter.
    mudata
        Whether a MuData may be.
    cure
        What to do with a MuData where none may be; by default to pass one modality.

    Raises
    ------
    TypeError
        If it is anything else.
    """
    if isinstance(data, AnnData) or (mudata and isinstance(data, MuData)):
        return
    wanted = f"{name} must be an AnnData{' or a MuData' if mudata else ''}"
    if isinstance(data, MuData):
        modality = next(iter(data.mod), "rna")
        cure = cure or f"pass one modality of it, as in mdata[{modality!r}]"
        raise TypeError(f"{wanted}, not a MuData: {cure}.")
    if isinstance(data, str | os.PathLike):
        raise TypeError(
            f"{wanted}, not a path: read the file before, as in "
            f"anndata.read_h5ad({os.fspath(data)!r})."
        )
    if hasattr(data, "shape"):
        raise TypeError(
            f"{wanted}, not {_shown(data)}: make an AnnData of it, with cells as rows and genes as "
            "columns, by anndata.AnnData(...)."
        )
    raise TypeError(f"{wanted}, not {_shown(data)}.")


def _shown(value: Any) -> str:
    """Show a wrong value in a message: whole if it is short, else by its type."""
    if value is None or isinstance(value, bool | str | bytes | Real):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}…"
    text = repr(value) if isinstance(value, list | tuple | set | dict) else ""
    if text and len(text) <= 60:
        return text
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"
