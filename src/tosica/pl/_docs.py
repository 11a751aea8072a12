"""Parts of docstrings that plots share."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable")

_PARTS = {
    "ax": """\
ax
    Axes to draw into, instead of a new figure.""",
    "figure": """\
figsize
    Width and height of the new figure in inches; by default large enough for all names.
show
    Show the figure. ``None`` shows it unless it is saved, returned or drawn into given axes, or
    ``scanpy.settings.autoshow`` is off.
save
    Path to save the figure to. Its ending decides the format: ``".pdf"`` and ``".svg"`` are vector
    formats, in which text stays text.
dpi
    Resolution of a saved figure in dots per inch. In vector formats it is that of the parts that
    are images.
return_fig
    Return the figure.""",
    "max_name_length": """\
max_name_length
    Longer names are wrapped at a word. What is too long for two such lines is shortened in the
    middle; different names stay different.""",
    "values_key": """\
key
    Values to show, such as ``"tosica_attribution"``. ``None``: the presence that
    :func:`tosica.tl.attribute` wrote (``"tosica_presence"``) or, without it, the attention that
    ``model.annotate`` wrote (``"tosica"``); a log line says which.""",
    "returns": """\
The figure if ``return_fig``, the axes if ``show=False`` or ``ax`` is given, else ``None``.""",
    "ax_raises": """\
ValueError
    If ``ax`` and ``figsize`` are both given, ``ax`` belongs to no figure, or matplotlib cannot
    write the format of ``save``.
{save_raises}""",
    "save_raises": """\
TypeError
    If an argument is of the wrong type.
FileNotFoundError
    If the folder of ``save`` does not exist.""",
}


def fill_docs(**parts: str) -> Callable[[Function], Function]:
    """Fill shared texts into a function's docstring, so that ``help`` shows all of it.

    Each ``{part}`` on a line of its own is replaced: ``{ax}``, ``{figure}``, ``{max_name_length}``,
    ``{values_key}``, ``{returns}``, ``{ax_raises}``, ``{save_raises}``, and those given here.

    Parameters
    ----------
    **parts
        More texts, by name. ``{name}`` in them stands for the function's name.

    Raises
    ------
    KeyError
        If the docstring names a part that does not exist.
    """

    def fill(function: Function) -> Function:
        name = function.__name__
        texts = _PARTS | {part: text.replace("{name}", name) for part, text in parts.items()}
        # Python 3.13 removes the indentation itself; with -OO there is no docstring.
        function.__doc__ = _filled(inspect.cleandoc(function.__doc__ or ""), texts)
        return function

    return fill


def _filled(doc: str, texts: dict[str, str]) -> str:
    """Replace parts, also those that are named in other parts."""
    return re.sub(
        r"^\{(\w+)\}$",
        lambda match: _filled(texts[match[1]].strip(), texts),
        doc,
        flags=re.MULTILINE,
    )
