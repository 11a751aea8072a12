"""Declare once what each parameter of a function may be, and check it at every call.

As scikit-learn's ``validate_params``: a public function names a constraint for each parameter, and
the decorator raises before any work is done. A wrong type is a ``TypeError``, a wrong value a
``ValueError``. The test of wrong input reads :data:`CONSTRAINTS` and each constraint's ``wrong``.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import inf, isfinite, nan
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from anndata import AnnData
from mudata import MuData

if TYPE_CHECKING:
    from collections.abc import Sequence

    Wrong = tuple[Any, type[Exception]]

_P = ParamSpec("_P")
_R = TypeVar("_R")

# --------------------------------------------------------------------------- constraints


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """What a value must be; ``optional`` also takes ``None``."""

    optional: bool = False

    @property
    def wanted(self) -> str:
        """What the value must be, as the end of "n_genes must be"."""
        raise NotImplementedError

    @property
    def right(self) -> Any:
        """A value that is taken, for the test of wrong input."""
        return "a"

    def has_type(self, value: Any) -> bool:
        """Whether the type is right; if not, a ``TypeError`` is raised."""
        raise NotImplementedError

    def is_valid(self, value: Any) -> bool:
        """Whether a value of the right type is in range; if not, a ``ValueError`` is raised."""
        return True

    def wrong(self) -> list[Wrong]:
        """Values that are refused, with the exception, for the test of wrong input."""
        raise NotImplementedError

    def check(self, name: str, value: Any) -> None:
        """Raise if ``value`` is not what the parameter ``name`` may be."""
        if self.optional and value is None:
            return
        for error, fits in ((TypeError, self.has_type), (ValueError, self.is_valid)):
            if not fits(value):
                or_none = " or None" if self.optional else ""
                raise error(f"{name} must be {self.wanted}{or_none}, not {shown(value)}.")


@dataclass(frozen=True)
class _OfType(Constraint):
    """A value of some types, for which a condition holds."""

    wanted: str = ""
    types: tuple[type, ...] = ()
    condition: Callable[[Any], Any] = lambda _: True
    right: Any = "a"
    refused: tuple[Any, ...] = ()
    """Values of these types for which it does not hold."""

    def has_type(self, value: Any) -> bool:
        # A bool is a whole number to Python.
        return isinstance(value, self.types) and (bool in self.types or not isinstance(value, bool))

    def is_valid(self, value: Any) -> bool:
        return bool(self.condition(value))

    def wrong(self) -> list[Wrong]:
        others = [value for value in ("8", 1.5, 5, True, ["a"], object()) if not self.has_type(value)]
        return [*((value, TypeError) for value in others), *((value, ValueError) for value in self.refused)]


def InstanceOf(words: str, *classes: type, optional: bool = False) -> Constraint:
    """Take an object of one of several classes; ``words`` says which, as "a dict of markers"."""
    plain: tuple[Any, ...] = ({}, [], "a")
    right = next((value for value in plain if isinstance(value, classes)), None)
    return _OfType(words, classes, right=right, optional=optional)


def Integer(*, least: int = 1, optional: bool = False) -> Constraint:
    """Take a whole number of at least ``least``."""
    words = f"a whole number of at least {least}"
    return _OfType(words, (Integral,), lambda value: value >= least, least, (least - 1,), optional=optional)


def Number(
    *, least: float = -inf, above: float = -inf, most: float = inf, below: float = inf, optional: bool = False
) -> Constraint:
    """Take a finite number of at least ``least``, above ``above``, at most ``most``, below ``below``."""
    bounds = {"at least": least, "above": above, "at most": most, "below": below}
    words = " and ".join(f"{name} {bound:g}" for name, bound in bounds.items() if isfinite(bound))

    def is_inside(value: Any) -> bool:
        return isfinite(value) and least <= value <= most and above < value < below

    outside = (above, below, least - 1, most + 1)
    wanted = f"a finite number, {words}" if words else "a finite number"
    right = next(value for value in (0.5, 1, least, most, above + 0.1) if is_inside(value))
    refused = (nan, inf, *filter(isfinite, outside))
    return _OfType(wanted, (Real,), is_inside, right, refused, optional=optional)


def Fraction(*, zero: bool = True, one: bool = True, optional: bool = False) -> Constraint:
    """Take a number from 0 to 1; ``zero`` and ``one`` say whether these may be."""
    lower, upper = "least" if zero else "above", "most" if one else "below"
    return Number(**{lower: 0, upper: 1}, optional=optional)  # type: ignore[arg-type]


def Flag(*, optional: bool = False) -> Constraint:
    """Take ``True`` or ``False``."""
    return _OfType("True or False", (bool, np.bool_), right=True, optional=optional)


def String(*, optional: bool = False) -> Constraint:
    """Take a string."""
    return _OfType("a string", (str,), optional=optional)


def FileKey(*, optional: bool = False) -> Constraint:
    """Take a string that can be a key of an AnnData in memory and in a file, as ``key_added``."""
    words, refused = "a name that a file can hold, without a slash", ("", "a/b", ".", "a\0b")
    return _OfType(words, (str,), lambda name: is_file_key(name) and "/" not in name, "a", refused, optional=optional)


def FilePath(*, optional: bool = False) -> Constraint:
    """Take a path, as a string or ``pathlib.Path``."""
    words = "a path, as a string or pathlib.Path"
    return _OfType(words, (str, os.PathLike), os.fspath, refused=("",), optional=optional)


def OneOf(*options: str, optional: bool = False) -> Constraint:
    """Take one of several strings."""
    *most, last = map(repr, options)
    words = f"{', '.join(most)} or {last}" if most else last
    return _OfType(words, (str,), lambda value: value in options, options[0], ("nonsense",), optional=optional)


@dataclass(frozen=True, kw_only=True)
class Names(Constraint):
    """A name or an iterable of names; whole numbers are names, because clusters are numbered."""

    wanted = "a string or a list of strings"

    def has_type(self, value: Any) -> bool:
        if isinstance(value, str):
            return True
        if not isinstance(value, Iterable) or isinstance(value, bytes):
            return False
        # What can be iterated once only is checked where it is read.
        return iter(value) is value or all(
            isinstance(item, str | Integral) and not isinstance(item, bool) for item in value
        )

    def wrong(self) -> list[Wrong]:
        return [(5, TypeError), ([1.5], TypeError), ([None], TypeError)]


@dataclass(frozen=True, kw_only=True)
class Either(Constraint):
    """What one of two constraints takes, as ``Either(first=OneOf("auto"), second=Fraction())``."""

    first: Constraint
    second: Constraint

    @property
    def wanted(self) -> str:
        return f"{self.first.wanted} or {self.second.wanted}"

    @property
    def right(self) -> Any:
        return self.first.right

    def has_type(self, value: Any) -> bool:
        return self.first.has_type(value) or self.second.has_type(value)

    def is_valid(self, value: Any) -> bool:
        return any(option.has_type(value) and option.is_valid(value) for option in (self.first, self.second))

    def wrong(self) -> list[Wrong]:
        values = [value for value, _ in (*self.first.wrong(), *self.second.wrong())]
        refused = [value for value in values if not (self.has_type(value) and self.is_valid(value))]
        return [(v, ValueError if self.has_type(v) else TypeError) for v in refused]


@dataclass(frozen=True, kw_only=True)
class CellData(Constraint):
    """An AnnData or, with ``mudata``, a MuData; ``cure`` says what to do with a MuData else."""

    mudata: bool = False
    cure: str = ""

    @property
    def wanted(self) -> str:
        return "an AnnData or a MuData" if self.mudata else "an AnnData"

    @property
    def right(self) -> Any:
        return AnnData(np.ones((2, 2), dtype=np.float32))

    def has_type(self, value: Any) -> bool:
        return isinstance(value, AnnData) or (self.mudata and isinstance(value, MuData))

    def check(self, name: str, value: Any) -> None:
        if self.has_type(value) or (self.optional and value is None):
            return
        advice = ""
        if isinstance(value, MuData):
            modality = next(iter(value.mod), "rna")
            advice = self.cure or f"pass one modality of it, as in mdata[{modality!r}]"
        elif isinstance(value, str | os.PathLike):
            path = os.fspath(value)
            advice = f"read the file before, as in anndata.read_h5ad({path!r})"
        elif hasattr(value, "shape"):
            advice = "make one by anndata.AnnData(...), with cells as rows and genes as columns"
        advice = f": {advice}" if advice else ""
        raise TypeError(f"{name} must be {self.wanted}, not {shown(value)}{advice}.")

    def wrong(self) -> list[Wrong]:
        none = [] if self.optional else [None]
        return [(value, TypeError) for value in ("a.h5ad", np.ones((2, 2)), {"X": 1}, *none)]


# --------------------------------------------------------------------------- the decorator

# Constraints of each function that declares some, by its qualified name.
CONSTRAINTS: dict[str, dict[str, Constraint]] = {}
# Constraint of a parameter that none is named for, by its annotation.
_OF_ANNOTATION: dict[str, Constraint] = {
    "bool": Flag(),
    "int": Integer(),
    "str": String(),
    "str | Path": FilePath(),
    "str | Sequence[str]": Names(),
    "AnnData": CellData(),
    "AnnData | MuData": CellData(mudata=True),
}
_OF_ANNOTATION |= {f"{name} | None": replace(each, optional=True) for name, each in _OF_ANNOTATION.items()}


def validate_params(**constraints: Constraint) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Check the arguments of a function against a constraint for each, in the function's order.

    Defaults are not checked. Put it under ``@classmethod`` and ``@staticmethod``.

    Parameters
    ----------
    **constraints
        Constraints of parameters whose annotation, such as ``bool`` or ``str | None``, does not say all.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)
        unknown = constraints.keys() - signature.parameters.keys()
        if unknown:
            raise TypeError(f"{function.__qualname__} has no parameters {sorted(unknown)}.")
        kinds = {each.name: _OF_ANNOTATION.get(each.annotation) for each in signature.parameters.values()}
        rules = {name: rule for name, rule in (kinds | constraints).items() if rule is not None}
        CONSTRAINTS[f"{function.__module__}.{function.__qualname__}"] = rules

        @functools.wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:
                # Python's own words for arguments that are missing or too many.
                return function(*args, **kwargs)
            for name, value in given.items():
                if name in rules:
                    rules[name].check(name, value)
            return function(*args, **kwargs)

        return checked

    return decorate


def refuse_unknown(function: Callable[..., Any], given: Mapping[str, Any], *known: str) -> None:
    """Raise a ``TypeError`` for keyword arguments that a function does not know.

    Parameters
    ----------
    function
        The function that takes ``**kwargs``; its own parameters are suggested.
    given
        The keyword arguments.
    known
        Names that are passed on.
    """
    unknown = [name for name in given if name not in known]
    if unknown:
        names = [*inspect.signature(function).parameters, *known]
        hint = did_you_mean(unknown[0], [n for n in names if n not in ("self", "cls", "kwargs")])
        raise TypeError(f"{function.__name__} has no parameter {unknown[0]!r}{hint}")


# --------------------------------------------------------------------------- parts of messages


def is_file_key(name: str) -> bool:
    """Whether files can hold something under a name, apart from its slashes."""
    return bool(name.strip(".")) and "\0" not in name


def as_names(value: str | Iterable[str | int]) -> list[str]:
    """Turn a name or several into a list of strings.

    Raises
    ------
    TypeError
        If an item is neither a string nor a whole number.
    """
    names = [value] if isinstance(value, str) else list(value)
    Names().check("names", names)
    return [str(name) for name in names]


def shown(value: Any) -> str:
    """Show a wrong value in a message: whole if it is short, else by its type."""
    plain = bool | str | bytes | Real | list | tuple | set | dict
    text = repr(value) if value is None or isinstance(value, plain) else ""
    if isinstance(value, str | bytes) and len(text) > 60:
        return f"{text[:57]}…"
    if text and len(text) <= 60:
        return text
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


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
