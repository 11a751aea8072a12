"""Declare once what each parameter of a function may be, and check it at every call.

As scikit-learn's ``validate_params``: a public function names a constraint for each parameter, and
the decorator raises before any work is done. A wrong type is a ``TypeError``, a wrong value a
``ValueError``. The test of wrong input reads :data:`CONSTRAINTS`.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

import numpy as np
from anndata import AnnData
from mudata import MuData

from tosica._text import describe_value, did_you_mean

_P = ParamSpec("_P")
_R = TypeVar("_R")

# --------------------------------------------------------------------------- constraints


@dataclass(frozen=True)
class Constraint:
    """The values that a parameter may have.

    Parameters
    ----------
    description
        What a value must be, as the end of "n_genes must be".
    has_type
        Whether the type is right; if not, a ``TypeError`` is raised.
    is_valid
        Whether a value of the right type is in range; if not, a ``ValueError`` is raised.
    optional
        Also take ``None``.
    advice
        Say what to do with a wrong value, as the end of the message.
    """

    description: str
    has_type: Callable[[Any], bool]
    is_valid: Callable[[Any], Any] = lambda _: True
    optional: bool = False
    advice: Callable[[Any], str] = lambda _: ""

    def check(self, name: str, value: Any) -> None:
        """Raise if the parameter ``name`` may not have this value."""
        if value is None and self.optional:
            return
        has_type = self.has_type(value)
        if has_type and self.is_valid(value):
            return
        description = self.description
        if self.optional:
            description += " or None"
        error = ValueError if has_type else TypeError
        raise error(
            f"{name} must be {description}, not {describe_value(value)}{self.advice(value)}."
        )


def _is(*types: type) -> Callable[[Any], bool]:
    def has_type(value: Any) -> bool:
        # A bool is a whole number to Python.
        is_surprise = isinstance(value, bool) and bool not in types
        return isinstance(value, types) and not is_surprise

    return has_type


def InstanceOf(words: str, *classes: type, optional: bool = False) -> Constraint:
    """Take an object of one of several classes; ``words`` says which, as "a dict of markers"."""
    return Constraint(words, _is(*classes), optional=optional)


def Integer(*, least: int = 1, optional: bool = False) -> Constraint:
    """Take a whole number of at least ``least``."""
    return Constraint(
        f"a whole number of at least {least}",
        _is(Integral),
        lambda value: value >= least,
        optional=optional,
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

    return Constraint(
        f"a finite number, {words}" if words else "a finite number",
        _is(Real),
        is_inside,
        optional=optional,
    )


def Fraction(
    *, zero: bool = True, one: bool = True, optional: bool = False
) -> Constraint:
    """Take a number from 0 to 1; ``zero`` and ``one`` say whether these may be."""
    lower = "least" if zero else "above"
    upper = "most" if one else "below"
    return Number(**{lower: 0, upper: 1}, optional=optional)  # type: ignore[arg-type]


def Flag(*, optional: bool = False) -> Constraint:
    """Take ``True`` or ``False``."""
    return Constraint("True or False", _is(bool, np.bool_), optional=optional)


def String(*, optional: bool = False) -> Constraint:
    """Take a string."""
    return Constraint("a string", _is(str), optional=optional)


def FileKey(*, optional: bool = False) -> Constraint:
    """Take a string that can be a key of an AnnData in memory and in a file, as ``key_added``."""
    return Constraint(
        "a name that a file can hold, without a slash",
        _is(str),
        lambda name: is_file_key(name) and "/" not in name,
        optional=optional,
    )


def FilePath(*, optional: bool = False) -> Constraint:
    """Take a path, as a string or ``pathlib.Path``."""
    return Constraint(
        "a path, as a string or pathlib.Path",
        _is(str, os.PathLike),
        os.fspath,
        optional=optional,
    )


def OneOf(*options: str, optional: bool = False) -> Constraint:
    """Take one of several strings."""
    *head, last = map(repr, options)
    return Constraint(
        f"{', '.join(head)} or {last}" if head else last,
        _is(str),
        lambda value: value in options,
        optional=optional,
    )


def Names(*, optional: bool = False) -> Constraint:
    """Take a name or an iterable of names; whole numbers are names, because clusters are numbered."""
    is_name = _is(str, Integral)

    def has_type(value: Any) -> bool:
        if isinstance(value, str):
            return True
        if not isinstance(value, Iterable) or isinstance(value, bytes):
            return False
        # An iterator, which can be read once only, is checked where it is read.
        return iter(value) is value or all(map(is_name, value))

    return Constraint("a string or a list of strings", has_type, optional=optional)


def Either(
    *, first: Constraint, second: Constraint, optional: bool = False
) -> Constraint:
    """Take what one of two constraints takes, as ``Either(first=OneOf("auto"), second=Fraction())``."""
    options = (first, second)

    def has_type(value: Any) -> bool:
        return any(option.has_type(value) for option in options)

    def is_valid(value: Any) -> bool:
        return any(
            option.has_type(value) and option.is_valid(value) for option in options
        )

    return Constraint(
        f"{first.description} or {second.description}",
        has_type,
        is_valid,
        optional=optional,
    )


def CellData(*, mudata: bool = False, cure: str = "") -> Constraint:
    """Take an AnnData or, with ``mudata``, a MuData; ``cure`` says what to do with a MuData else."""

    def advice(value: Any) -> str:
        if isinstance(value, MuData):
            modality = next(iter(value.mod), "rna")
            return f": {cure or f'pass one modality of it, as in mdata[{modality!r}]'}"
        if isinstance(value, str | os.PathLike):
            path = os.fspath(value)
            return f": read the file before, as in anndata.read_h5ad({path!r})"
        if hasattr(value, "shape"):
            return ": make one by anndata.AnnData(...), with cells as rows and genes as columns"
        return ""

    return Constraint(
        "an AnnData or a MuData" if mudata else "an AnnData",
        _is(AnnData, MuData) if mudata else _is(AnnData),
        advice=advice,
    )


ANNDATA = CellData()
ANY_CELLS = CellData(mudata=True)
TEXT = String()

# --------------------------------------------------------------------------- the decorator

# Constraints of each function that declares some, by its qualified name.
CONSTRAINTS: dict[str, dict[str, Constraint]] = {}
# Constraint of a parameter without one of its own, by its annotation.
_REQUIRED: dict[str, Constraint] = {
    "bool": Flag(),
    "int": Integer(),
    "float": Number(),
    "str": TEXT,
    "AnyPath": FilePath(),
    "str | Sequence[str]": Names(),
    "str | Iterable[str]": Names(),
    "Iterable[str]": Names(),
    "Sequence[str]": Names(),
    "Collection[str]": Names(),
    "AnnData": ANNDATA,
    "AnnOrMuData": ANY_CELLS,
}
_OPTIONAL = {
    f"{annotation} | None": replace(constraint, optional=True)
    for annotation, constraint in _REQUIRED.items()
}
_OF_ANNOTATION = _REQUIRED | _OPTIONAL
# Annotations of values that functions check where they read them, because that takes more than
# the value: the names in the data, or a package that need not be installed.
_CHECKED_LATER = {
    "Any",
    "Any | AnyPath",
    "GeneSetsLike",
    "Mapping[str, str] | None",
    "MuData",
    "Sequence[int] | slice | None",
    "dict[str, Any] | None",
    "str | Mapping[str, str] | None",
    "AnyPath | Self",
}
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def validate_params(
    **constraints: Constraint,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Check the arguments of a function against a constraint for each, in the function's order.

    Defaults are not checked. Put it under ``@classmethod`` and ``@staticmethod``.

    Parameters
    ----------
    **constraints
        Constraints of parameters whose annotation, such as ``bool`` or ``str | None``, does not say all.

    Raises
    ------
    TypeError
        At decoration, if a parameter has neither a constraint nor an annotation that stands for one.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)
        parameters = signature.parameters
        name_of_function = function.__qualname__
        unknown = constraints.keys() - parameters.keys()
        if unknown:
            raise TypeError(f"{name_of_function} has no parameters {sorted(unknown)}.")
        rules = {}
        for name, parameter in parameters.items():
            annotation = parameter.annotation
            if name in constraints:
                rules[name] = constraints[name]
            elif annotation in _OF_ANNOTATION:
                rules[name] = _OF_ANNOTATION[annotation]
            elif (
                name not in ("self", "cls")
                and parameter.kind not in _VARIADIC
                and annotation not in _CHECKED_LATER
            ):
                raise TypeError(
                    f"{name_of_function}: no rule is known for {name!r}, which is annotated as {annotation!r}: pass a "
                    "constraint to validate_params, or add the annotation to _validate.py."
                )
        CONSTRAINTS[f"{function.__module__}.{name_of_function}"] = rules

        @functools.wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                arguments = signature.bind(*args, **kwargs).arguments
            except TypeError:
                refuse_unknown(function, kwargs, *parameters)
                # Python's own words for arguments that are missing or too many.
                return function(*args, **kwargs)
            for name, value in arguments.items():
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
    function: Callable[..., Any], kwargs: Mapping[str, Any], *accepted: str
) -> None:
    """Raise a ``TypeError`` for keyword arguments that a function does not know.

    Parameters
    ----------
    function
        The function that takes ``**kwargs``; its own parameters are suggested.
    kwargs
        The keyword arguments.
    accepted
        Names that are passed on.
    """
    unknown = next((name for name in kwargs if name not in accepted), None)
    if unknown is None:
        return
    if unknown in OTHER_HABITS:
        hint = f"; {OTHER_HABITS[unknown]}."
    else:
        names = dict.fromkeys((*inspect.signature(function).parameters, *accepted))
        hint = did_you_mean(
            unknown, [name for name in names if name not in ("self", "cls", "kwargs")]
        )
    raise TypeError(f"{function.__name__} has no parameter {unknown!r}{hint}")


# --------------------------------------------------------------------------- names


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
