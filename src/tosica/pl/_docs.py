"""Docstrings of functions that share more than they differ in, written once."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Function = TypeVar("Function", bound=Callable)


def fill_docs(**parts: str) -> Callable[[Function], Function]:
    """Fill texts into a function's docstring, so that ``help`` shows all of it.

    Parameters
    ----------
    **parts
        Of each ``{part}`` of the docstring, on a line of its own, the text to put there. In these
        texts ``{name}`` stands for the function's name.
    """

    def fill(function: Function) -> Function:
        # Python 3.13 takes the indentation away, those before do not; and -OO takes all.
        doc = inspect.cleandoc(function.__doc__ or "")
        for part, text in parts.items():
            doc = doc.replace(f"{{{part}}}", text.strip())
        function.__doc__ = doc.replace("{name}", function.__name__)
        return function

    return fill
