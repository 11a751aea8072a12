"""The decorator of plots: parameters that they share, the checks of these, and their docs."""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap

from tosica._validate import (
    CellData,
    Constraint,
    InstanceOf,
    Number,
    refuse_unknown,
    validate_params,
)
from tosica.pl._colormaps import register_colormaps
from tosica.pl._figure import Canvas

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

register_colormaps()

# --------------------------------------------------------------------------- parameters

COLOR_MAP = Constraint(
    "a color map of matplotlib, such as 'viridis'",
    lambda value: isinstance(value, str | Colormap),
    lambda value: isinstance(value, Colormap) or value in matplotlib.colormaps,
)
_POSITIVE = Number(above=0)


_FIGSIZE = Constraint(
    "the width and height in inches, such as (6, 4)",
    lambda value: not isinstance(value, str) and np.shape(value) == (2,),
    lambda lengths: all(
        _POSITIVE.has_type(length) and _POSITIVE.is_valid(length) for length in lengths
    ),
    optional=True,
)
# Constraints of parameters whose annotations do not tell them, in all plots that have them.
_PARAMETERS: dict[str, Constraint] = {
    "adata": CellData(mudata=True),
    "cmap": COLOR_MAP,
    "ax": InstanceOf(
        "axes of matplotlib, as plt.subplots() makes them", Axes, optional=True
    ),
    "figsize": _FIGSIZE,
}

# --------------------------------------------------------------------------- docs


def _section(name: str) -> str:
    """Text of a section in the docstring of the canvas."""
    section = re.search(
        rf"^{name}\n-+\n(.*?)(?:\n\n|\Z)",
        inspect.getdoc(Canvas) or "",
        re.MULTILINE | re.DOTALL,
    )
    return section[1] if section else ""


_DOCS = {
    "figure": _section("Parameters"),
    "new_figure": _section("Parameters").partition("new figure.\n")[2],
    "raises": _section("Raises"),
    "adata": "adata\n    Query that ``model.annotate`` has annotated. It is not changed.",
    "attributed": "adata\n    Data on which :func:`tosica.tl.attribute` was run. It is not changed.",
    "key": "key\n    ``key_added`` of :func:`tosica.tl.attribute`.",
    "returns": "The figure if ``return_fig``, the axes if ``show=False`` or ``ax`` is given, else ``None``.",
    "returns_panels": "The figure if ``return_fig``; with ``show=False`` a list of axes, or ``ax``; else ``None``.",
}


# --------------------------------------------------------------------------- decorator


def plot_function(
    **constraints: Constraint,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a plot the parameters of its figure, check its arguments, and fill in shared texts.

    A plot passes ``**figure`` to :class:`Canvas`. In its signature, that stands for the parameters
    of the canvas.

    Parameters
    ----------
    **constraints
        Constraints of parameters that other plots do not have, or have otherwise.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        # With -OO there is no docstring.
        # Python 3.13 removes the indentation itself.
        function.__doc__ = re.sub(
            r"^\{(\w+)\}$",
            lambda match: _DOCS[match[1]],
            inspect.cleandoc(function.__doc__ or ""),
            flags=re.MULTILINE,
        )
        signature = inspect.signature(function)
        *parameters, variadic = signature.parameters.values()
        for name, parameter in inspect.signature(Canvas).parameters.items():
            if name not in signature.parameters:
                parameters.append(parameter)
        if variadic.name != "figure":
            parameters.append(variadic)
        signature = signature.replace(parameters=parameters)
        function.__signature__ = signature  # type: ignore[attr-defined]
        declared = _PARAMETERS | constraints
        checked = validate_params(
            **{
                name: declared[name]
                for name in signature.parameters
                if name in declared
            }
        )(function)
        has_kwargs = any(
            parameter.kind is parameter.VAR_KEYWORD
            for parameter in signature.parameters.values()
        )
        if has_kwargs:
            return checked

        @functools.wraps(checked)
        def plot(*args: P.args, **kwargs: P.kwargs) -> R:
            refuse_unknown(function, kwargs, *signature.parameters)
            return checked(*args, **kwargs)

        return plot

    return decorate
