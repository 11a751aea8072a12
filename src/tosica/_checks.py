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


@dataclass(frozen=True)
class Constraint:
    """What a value must be.

    Parameters
    ----------
    wanted
        What it must be, as the end of "n_genes must be".
    has_type
        Whether the type is right; if not, a ``TypeError`` is raised.
    is_valid
        Whether a value of the right type is in range; if not, a ``ValueError`` is raised.
    right, refused
        For the test of wrong input: a value that is taken or its class, and values of the right type
        that are not.
    optional
        Also take ``None``.
    advice
        Say what to do with a wrong value, as the end of the message.
    """

    wanted: str
    has_type: Callable[[Any], bool]
    is_valid: Callable[[Any], Any] = lambda _: True
    right: Any = "a"
    refused: tuple[Any, ...] = ()
    optional: bool = False
    advice: Callable[[Any], str] = lambda _: ""

    def check(self, name: str, value: Any) -> None:
        """Raise if ``value`` is not what the parameter ``name`` may be."""
        has_type = (self.optional and value is None) or self.has_type(value)
        if has_type and (value is None or self.is_valid(value)):
            return
        wanted = f"{self.wanted} or None" if self.optional else self.wanted
        error = ValueError if has_type else TypeError
        raise error(f"{name} must be {wanted}, not {shown(value)}{self.advice(value)}.")

    def wrong(self) -> list[Wrong]:
        """Values that are refused, with the exception, for the test of wrong input."""
        values = ("8", 1.5, 5, True, ["a"], [1.5], {"X": 1}, np.ones((2, 2)), object())
        others = [(value, TypeError) for value in values if not self.has_type(value)]
        return [*others, *((value, ValueError) for value in self.refused)]


def _is(*types: type) -> Callable[[Any], bool]:
    # A bool is a whole number to Python.
    return lambda value: (
        isinstance(value, types) and (bool in types or not isinstance(value, bool))
    )


def InstanceOf(words: str, *classes: type, optional: bool = False) -> Constraint:
    """Take an object of one of several classes; ``words`` says which, as "a dict of markers"."""
    plain: tuple[Any, ...] = ({}, [], "a")
    right = next((value for value in plain if isinstance(value, classes)), classes[0])
    return Constraint(words, _is(*classes), right=right, optional=optional)


def Integer(*, least: int = 1, optional: bool = False) -> Constraint:
    """Take a whole number of at least ``least``."""
    words, refused = f"a whole number of at least {least}", (least - 1,)
    return Constraint(
        words, _is(Integral), lambda value: value >= least, least, refused, optional
    )


def Number(
    *,
    least: float = -inf,
    above: float = -inf,
    most: float = inf,
    below: float = inf,
    optional: bool = False,
) -> Constraint:
    """Take a finite number of at least ``least``, above ``above``, at most ``most``, below ``below``."""
    bounds = {"at least": least, "above": above, "at most": most, "below": below}
    words = " and ".join(
        f"{name} {bound:g}" for name, bound in bounds.items() if isfinite(bound)
    )

    def is_inside(value: Any) -> bool:
        return isfinite(value) and least <= value <= most and above < value < below

    wanted = f"a finite number, {words}" if words else "a finite number"
    right = next(
        value for value in (0.5, 1, least, most, above + 0.1) if is_inside(value)
    )
    refused = (nan, inf, *filter(isfinite, (above, below, least - 1, most + 1)))
    return Constraint(wanted, _is(Real), is_inside, right, refused, optional)


def Fraction(
    *, zero: bool = True, one: bool = True, optional: bool = False
) -> Constraint:
    """Take a number from 0 to 1; ``zero`` and ``one`` say whether these may be."""
    lower, upper = "least" if zero else "above", "most" if one else "below"
    return Number(**{lower: 0, upper: 1}, optional=optional)  # type: ignore[arg-type]


def Flag(*, optional: bool = False) -> Constraint:
    """Take ``True`` or ``False``."""
    return Constraint(
        "True or False", _is(bool, np.bool_), right=True, optional=optional
    )


def String(*, optional: bool = False) -> Constraint:
    """Take a string."""
    return Constraint("a string", _is(str), optional=optional)


def FileKey(*, optional: bool = False) -> Constraint:
    """Take a string that can be a key of an AnnData in memory and in a file, as ``key_added``."""
    words, refused = (
        "a name that a file can hold, without a slash",
        ("", "a/b", ".", "a\0b"),
    )
    return Constraint(
        words,
        _is(str),
        lambda name: is_file_key(name) and "/" not in name,
        "a",
        refused,
        optional,
    )


def FilePath(*, optional: bool = False) -> Constraint:
    """Take a path, as a string or ``pathlib.Path``."""
    words = "a path, as a string or pathlib.Path"
    return Constraint(
        words, _is(str, os.PathLike), os.fspath, refused=("",), optional=optional
    )


def OneOf(*options: str, optional: bool = False) -> Constraint:
    """Take one of several strings."""
    *most, last = map(repr, options)
    words = f"{', '.join(most)} or {last}" if most else last
    return Constraint(
        words,
        _is(str),
        lambda value: value in options,
        options[0],
        ("nonsense",),
        optional,
    )


def Names(*, optional: bool = False) -> Constraint:
    """Take a name or an iterable of names; whole numbers are names, because clusters are numbered."""
    is_name = _is(str, Integral)

    def has_type(value: Any) -> bool:
        if isinstance(value, str):
            return True
        if not isinstance(value, Iterable) or isinstance(value, bytes):
            return False
        # What can be iterated once only is checked where it is read.
        return iter(value) is value or all(map(is_name, value))

    return Constraint("a string or a list of strings", has_type, optional=optional)


def Either(
    *, first: Constraint, second: Constraint, optional: bool = False
) -> Constraint:
    """Take what one of two constraints takes, as ``Either(first=OneOf("auto"), second=Fraction())``."""
    options = (first, second)

    def is_valid(value: Any) -> bool:
        return any(
            option.has_type(value) and option.is_valid(value) for option in options
        )

    return Constraint(
        f"{first.wanted} or {second.wanted}",
        lambda value: any(option.has_type(value) for option in options),
        is_valid,
        first.right,
        tuple(
            value for value in (*first.refused, *second.refused) if not is_valid(value)
        ),
        optional,
    )


def CellData(
    *, mudata: bool = False, optional: bool = False, cure: str = ""
) -> Constraint:
    """Take an AnnData or, with ``mudata``, a MuData; ``cure`` says what to do with a MuData else."""

    def advice(value: Any) -> str:
        if isinstance(value, MuData):
            modality = next(iter(value.mod), "rna")
            return f": {cure or f'pass one modality of it, as in mdata[{modality!r}]'}"
        if isinstance(value, str | os.PathLike):
            return (
                f": read the file before, as in anndata.read_h5ad({os.fspath(value)!r})"
            )
        is_array = hasattr(value, "shape")
        return (
            ": make one by anndata.AnnData(...), with cells as rows and genes as columns"
            if is_array
            else ""
        )

    words, types = (
        ("an AnnData or a MuData", (AnnData, MuData))
        if mudata
        else ("an AnnData", (AnnData,))
    )
    return Constraint(
        words, _is(*types), right=AnnData, optional=optional, advice=advice
    )


ANNDATA, ANY_CELLS, TEXT = CellData(), CellData(mudata=True), String()

# --------------------------------------------------------------------------- the decorator

# Constraints of each function that declares some, by its qualified name.
CONSTRAINTS: dict[str, dict[str, Constraint]] = {}
# Constraint of a parameter that none is named for, by its annotation.
_OF_ANNOTATION: dict[str, Constraint] = {
    "bool": Flag(),
    "int": Integer(),
    "str": TEXT,
    **dict.fromkeys(("str | Path", "str | os.PathLike[str]"), FilePath()),
    **dict.fromkeys(
        (
            "str | Sequence[str]",
            "str | Iterable[str]",
            "Iterable[str]",
            "Collection[str]",
        ),
        Names(),
    ),
    "AnnData": ANNDATA,
    "AnnData | MuData": ANY_CELLS,
}
_OF_ANNOTATION |= {
    f"{name} | None": replace(each, optional=True)
    for name, each in _OF_ANNOTATION.items()
}


def validate_params(
    **constraints: Constraint,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
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
            raise TypeError(
                f"{function.__qualname__} has no parameters {sorted(unknown)}."
            )
        kinds = {
            each.name: _OF_ANNOTATION.get(each.annotation)
            for each in signature.parameters.values()
        }
        rules = {
            name: rule
            for name, rule in (kinds | constraints).items()
            if rule is not None
        }
        CONSTRAINTS[f"{function.__module__}.{function.__qualname__}"] = rules

        @functools.wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:
                refuse_unknown(function, kwargs, *signature.parameters)
                # Python's own words for arguments that are missing or too many.
                return function(*args, **kwargs)
            for name, value in given.items():
                if name in rules:
                    rules[name].check(name, value)
            return function(*args, **kwargs)

        return checked

    return decorate


# Parameters of other packages, and what does the same here.
OTHER_HABITS = {
    "epochs": "it is max_epochs here",
    "n_epochs": "it is max_epochs here",
    "use_gpu": "say accelerator='gpu'",
    "majority_voting": "call tosica.tl.majority_vote after it",
}


def refuse_unknown(
    function: Callable[..., Any], given: Mapping[str, Any], *known: str
) -> None:
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
        names = dict.fromkeys((*inspect.signature(function).parameters, *known))
        hint = did_you_mean(
            unknown[0], [n for n in names if n not in ("self", "cls", "kwargs")]
        )
        hint = f"; {OTHER_HABITS[unknown[0]]}." if unknown[0] in OTHER_HABITS else hint
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
    return list_parts([repr(name) for name in names], most)


def list_parts(parts: Sequence[str], most: int = 10) -> str:
    """Join parts of a message; of more than ``most``, count the rest."""
    listed = ", ".join(parts[:most])
    return f"{listed} and {len(parts) - most} more" if len(parts) > most else listed


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
