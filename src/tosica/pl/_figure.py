"""What all plots share: axes, saving, names, colours and parts of docstrings."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import pandas as pd
import scanpy as sc
from matplotlib.colors import is_color_like, to_hex
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from tosica._annotated import kind_of
from tosica._groups import read_groups

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from typing import TypeVar

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Axes_ = TypeVar("Axes_")
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable)
    from collections.abc import Sequence

_POINTS_PER_INCH = 72
_SMALLEST_FONT = 4.0
# Letters are rounded to whole pixels, and are this much wider at the resolutions of a screen.
_HINTING = 1.12


def check_save(save: str | os.PathLike[str] | None) -> Path | None:
    """Refuse a place where nothing can be saved, before anything is computed.

    Raises
    ------
    TypeError
        If ``save`` is no path.
    FileNotFoundError
        If its folder does not exist.
    """
    if save is None:
        return None
    if isinstance(save, bool):
        raise TypeError(f"save must be the path of the figure, such as 'figure.pdf', not {save}.")
    path = Path(save)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"The figure cannot be saved as {str(path)!r}: there is no folder {str(path.parent)!r}."
        )
    return path


def finish(
    figure: Figure,
    axes: Axes_,
    *,
    show: bool | None,
    save: Path | None,
    return_fig: bool,
    own_figure: bool = True,
) -> Figure | Axes_ | None:
    """Save, show and hand back a figure by scanpy's rules.

    With ``show=None`` the figure is shown, unless it is saved, returned or drawn into the caller's
    axes (``own_figure=False``), or ``scanpy.settings.autoshow`` is off. A figure that was only
    saved is closed, so that a loop over many does not fill the memory.

    Returns
    -------
    The figure if ``return_fig``; nothing if it was shown, or saved with ``show=None``; else
    ``axes``.
    """
    if save is not None:
        figure.savefig(save, bbox_inches="tight")
    only_saved = save is not None and show is None and own_figure and not return_fig
    if show is None:
        wanted_elsewhere = return_fig or save is not None or not own_figure
        show = bool(sc.settings.autoshow) and not wanted_elsewhere
    if show:
        plt.show()
    if only_saved:
        plt.close(figure)
    if return_fig:
        return figure
    return None if show or only_saved else axes


def text_width(labels: Iterable[str], font_size: float) -> float:
    """Width of the widest label in inches, at whatever resolution it is drawn."""
    font = FontProperties(size=font_size)
    # Measured without a figure, because its size is what is being looked for.
    widths = [
        text_to_path.get_text_width_height_descent(label, font, ismath=False)[0] for label in labels
    ]
    return _HINTING * max(widths, default=0.0) / _POINTS_PER_INCH


def fitting_font(cell: float, largest: float) -> float:
    """Font size in points whose lines fit into cells of this size in inches, within reason."""
    return min(largest, max(_SMALLEST_FONT, 0.9 * cell * _POINTS_PER_INCH))


def group_colors(adata: AnnData, groupby: str) -> dict[str, str]:
    """Colour of each group: those of the AnnData if it has them, else scanpy's default palette.

    ``adata`` is only read, even where scanpy would write the default palette into it.

    Parameters
    ----------
    adata
        Data with ``adata.uns[f"{groupby}_colors"]`` or without.
    groupby
        Column of ``adata.obs`` with the groups.
    """
    column = adata.obs[groupby]
    if isinstance(column.dtype, pd.CategoricalDtype):
        # The list of colours counts unused categories too.
        names = [str(name) for name in column.cat.categories]
    else:
        names = list(read_groups(adata, groupby).categories)
    stored = [str(color) for color in adata.uns.get(f"{groupby}_colors", ())]
    if len(stored) < len(names) or not all(is_color_like(color) for color in stored):
        stored = _default_palette(len(names))
    return {name: to_hex(color) for name, color in zip(names, stored, strict=False)}


def _default_palette(n_colors: int) -> list[str]:
    palettes = sc.pl.palettes
    for palette in (palettes.default_20, palettes.default_28, palettes.default_102):
        if n_colors <= len(palette):
            return list(palette[:n_colors])
    return ["grey"] * n_colors


def own_axes(
    ax: Axes | None,
    figsize: tuple[float, float] | None,
    default: tuple[float, float],
) -> tuple[Figure, Axes, bool]:
    """Axes to draw into: the caller's, or those of a new figure.

    Returns
    -------
    Figure, axes, and whether they are new.

    Raises
    ------
    ValueError
        If ``ax`` and ``figsize`` are both given, or ``ax`` belongs to no figure any more.
    """
    if ax is None:
        figure, ax = plt.subplots(figsize=figsize or default, layout="constrained")
        return figure, ax, True
    if figsize is not None:
        raise ValueError("figsize belongs to a new figure: give either ax or figsize, not both.")
    parent = ax.get_figure(root=True)
    if parent is None:
        raise ValueError(
            "ax belongs to no figure any more: draw into the axes of an existing figure."
        )
    return parent, ax, False


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


_ELLIPSIS = " … "
# Share of the room that the beginning of a name gets; the first that tells all names apart wins.
_HEAD_SHARES = (0.6, 0.4, 0.75, 0.25, 0.9, 0.1)
# A cut moves back to the end of a word if that costs no more letters than this.
_MOST_LOST = 10


def shorten(names: Sequence[str], max_length: int = 50) -> list[str]:
    """Cut the middle out of long names, at words, so that all stay different.

    Gene Ontology terms begin with what is done ("positive regulation of") and end with to what
    ("signaling pathway"), and long ones differ anywhere, so no fixed end can be dropped.

    Parameters
    ----------
    names
        Names; those that are short enough stay as they are.
    max_length
        Longest name to return, in characters, at least 10.

    Returns
    -------
    One name for each of ``names``, none longer than ``max_length``. Names that differ still do;
    where no cut tells two apart, the later one gets a number.

    Raises
    ------
    ValueError
        If ``max_length`` is less than 10.
    """
    if max_length < 10:
        raise ValueError(
            f"Names cannot be shortened to fewer than 10 characters, got {max_length}."
        )
    short = {name: name for name in names if len(name) <= max_length}
    pending = list(dict.fromkeys(name for name in names if len(name) > max_length))
    taken = set(short.values())
    for share in _HEAD_SHARES:
        candidates: dict[str, list[str]] = defaultdict(list)
        for name in pending:
            candidates[_cut(name, max_length, share)].append(name)
        for candidate, sources in candidates.items():
            if len(sources) == 1 and candidate not in taken:
                short[sources[0]] = candidate
                taken.add(candidate)
        pending = [name for name in pending if name not in short]
    for name in pending:
        number = 1
        candidate = _cut(name, max_length, _HEAD_SHARES[0])
        while candidate in taken:
            number += 1
            suffix = f" ({number})"
            candidate = _cut(name, max_length - len(suffix), _HEAD_SHARES[0]) + suffix
        short[name] = candidate
        taken.add(candidate)
    return [short[name] for name in names]


def _cut(name: str, max_length: int, head_share: float) -> str:
    room = max_length - len(_ELLIPSIS)
    n_head = round(room * head_share)
    head, tail = name[:n_head], name[len(name) - (room - n_head) :]
    # Only if the cut went through a word; the part that is kept must not vanish with it.
    if re.match(r"\w", name[n_head : n_head + 1]):
        head = _trim(head, re.search(r"[\W_][^\W_]*$", head))
    if re.match(r"[^\W_]", name[len(name) - len(tail) - 1 : len(name) - len(tail)]):
        tail = _trim(tail, re.match(r"[^\W_]*[\W_]", tail))
    return f"{head.rstrip(' _-,(/')}{_ELLIPSIS}{tail.lstrip(' _-,)/')}"


def _trim(part: str, broken_word: re.Match[str] | None) -> str:
    if broken_word is None or len(broken_word[0]) > min(_MOST_LOST, 2 * len(part) // 3):
        return part
    return part[: broken_word.start()] if broken_word.start() else part[broken_word.end() :]


# Lines, short enough for the titles of scanpy's legends.
_LINES = {
    "presence": ("contribution to", "the label's score", "(presence)"),
    "attribution": ("contribution to", "the label's score"),
    "weighted attention": ("weighted attention",),
    "attention": ("attention",),
}


def value_name(adata: AnnData, key: str, before: str = "") -> str:
    """Name of the numbers under a key, in as many lines as a colour bar has room for.

    Parameters
    ----------
    adata
        Annotated query.
    key
        Which numbers.
    before
        First line of the title, such as ``"mean z-score of"``.
    """
    lines = _LINES[kind_of(adata, key)]
    return "\n".join([before, *lines] if before else lines)
