"""What all plots share: figures that fit their names, colours of groups, parameters and docs."""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, TypeVar

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import scanpy as sc
import seaborn  # noqa: F401 (registers the colour maps vlag and mako)
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.colors import Colormap

from tosica._checks import (
    CellData,
    Constraint,
    FilePath,
    Flag,
    InstanceOf,
    Integer,
    Names,
    Number,
    String,
    refuse_unknown,
    validate_params,
)
from tosica._files import check_folder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

Drawn = TypeVar("Drawn")
P = ParamSpec("P")
R = TypeVar("R")

# Sizes of text in points: names, titles, and the smallest that is still to be read.
NAME_SIZE, TITLE_SIZE, _SMALLEST = 8.5, 10.0, 4.0
# Height of a line of text in inches.
LINE = 0.16
# In vector formats, text stays text that an editor can select and change.
_TEXT_AS_TEXT: dict[Any, Any] = {
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "none",
}


class FigureOptions(TypedDict, total=False):
    """Keywords that every plot takes, and hands on to :class:`Canvas`."""

    ax: Axes | None
    figsize: tuple[float, float] | None
    show: bool | None
    save: str | os.PathLike[str] | None
    dpi: int
    return_fig: bool


@dataclass(kw_only=True)
class Canvas:
    """Figure of one plot: given axes or a new figure, which is then saved, shown or returned.

    Make it first in a plotting function, so that its arguments are checked before anything is
    computed or drawn.

    Plots take over this documentation of the parameters, and of what is raised.

    Parameters
    ----------
    ax
        Axes to draw into, instead of a new figure.
    figsize
        Width and height of the new figure in inches; by default large enough for all names.
    show
        Show the figure. ``None`` shows it unless it is saved, returned or drawn into given axes, or
        ``scanpy.settings.autoshow`` is off.
    save
        Path to save the figure to. Its ending decides the format: ``".pdf"`` and ``".svg"`` are
        vector formats, in which text stays text.
    dpi
        Resolution of a saved figure in dots per inch. In vector formats it is that of the parts
        that are images.
    return_fig
        Return the figure.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If ``ax`` and ``figsize`` are both given, ``ax`` belongs to no figure, or matplotlib cannot
        write the format of ``save``.
    FileNotFoundError
        If the folder of ``save`` does not exist.
    """

    ax: Axes | None = None
    figsize: tuple[float, float] | None = None
    show: bool | None = None
    save: str | os.PathLike[str] | None = None
    dpi: int = 300
    return_fig: bool = False
    figure: Figure = field(init=False)
    _grid: tuple[float, float] = field(default=(1, 1), init=False)

    def __post_init__(self) -> None:
        if self.save is not None:
            path = Path(self.save)
            check_folder(path)
            if (
                path.suffix
                and path.suffix[1:].lower() not in FigureCanvasBase.filetypes
            ):
                raise ValueError(
                    "save must end in a format that matplotlib writes, such as .pdf, .svg, .png or .tiff, "
                    f"not in {path.suffix!r}."
                )
        if self.ax is None:
            return
        if self.figsize is not None:
            raise ValueError(
                "figsize belongs to a new figure: give either ax or figsize, not both."
            )
        figure = self.ax.get_figure(root=True)
        if figure is None:
            raise ValueError(
                "ax belongs to no figure any more: draw into the axes of an existing figure."
            )
        self.figure = figure

    def new_figure(self, size: tuple[float, float]) -> Figure:
        """Make a figure of the given ``figsize`` or, without it, of this size in inches."""
        self.figure = plt.figure(figsize=self.figsize or size, layout="constrained")
        return self.figure

    def axes(self, size: tuple[float, float]) -> Axes:
        """Return the given axes or, without them, the only axes of a new figure."""
        return self.new_figure(size).subplots() if self.ax is None else self.ax

    def add_bar(
        self, ax: Axes, size: tuple[float, float], drawn: Any, title: str, **ticks: Any
    ) -> Axes:
        """Add a short colour bar beside the first rows, with arrows where there are values beyond."""
        ends = (
            drawn.get_array().min() < drawn.norm.vmin,
            drawn.get_array().max() > drawn.norm.vmax,
        )
        width, height = size if self.ax is None else inches_of(self.figure, ax)
        extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(
            ends, "neither"
        )
        # 0.15 × 1.3 inches, a little away from the cells.
        short: Any = {
            "fraction": 0.15 / width,
            "pad": 0.12 / width,
            "shrink": min(1.0, 1.3 / height),
            "aspect": 8.7,
        }
        bar = self.figure.colorbar(
            drawn, ax=ax, extend=extend, anchor=(0, 1), **short, **ticks
        )
        # No title, for which the layout leaves no room.
        place: Any = {
            "xycoords": "axes fraction",
            "textcoords": "offset points",
            "va": "bottom",
        }
        bar.ax.annotate(title, (0, 1), (0, 8), fontsize=NAME_SIZE, **place)
        bar.ax.tick_params(labelsize=NAME_SIZE - 1)
        bar.outline.set_visible(False)  # type: ignore[operator]
        return bar.ax

    def only_one(self, n: int, noun: str, cure: str) -> None:
        """Refuse given axes for several panels."""
        if self.ax is not None and n > 1:
            raise ValueError(f"ax has room for one {noun}, and there are {n}: {cure}.")

    def panels(
        self, n: int, n_columns: int, size: tuple[float, float], **kwargs: Any
    ) -> list[Axes]:
        """Return the given axes or, without them, those of a grid of panels in a new figure.

        Each panel gets ``size`` inches; ``kwargs`` are passed to ``figure.subplots``.
        """
        if self.ax is not None:
            return [self.ax]
        n_columns = min(n, n_columns)
        n_rows = -(-n // n_columns)
        self._grid = n_columns, n_rows
        figure = self.new_figure((n_columns * size[0], n_rows * size[1]))
        axes = figure.subplots(n_rows, n_columns, squeeze=False, **kwargs).ravel()
        for unused in axes[n:]:
            unused.remove()
        return list(axes[:n])

    def fit(self, ax: Axes, size: tuple[float, float]) -> None:
        """Resize a new figure so that ``ax`` gets these inches, and names what they need.

        A figure of given size stays as it is.
        """
        if self.ax is not None or self.figsize is not None:
            return
        times = np.array(self._grid)
        for _ in range(2):
            missing = np.array(size) - inches_of(self.figure, ax)
            self.figure.set_size_inches(self.figure.get_size_inches() + missing * times)
        # The layout leaves no room for titles and labels that are longer than the axes. A label on
        # the left may extend only above, where half of the height comes to.
        axes: Any = self.figure.axes
        boxes = [
            (each.get_tightbbox(), each.get_tightbbox(for_layout_only=True))
            for each in axes
        ]
        beyond = [
            full.size - laid_out.size
            for full, laid_out in boxes
            if laid_out is not None
        ]
        self.figure.set_size_inches(
            self.figure.get_size_inches()
            + np.max(beyond, axis=0) * (1, 2) / self.figure.dpi * times
        )

    def finish(self, axes: Drawn) -> Figure | Drawn | None:
        """Save, show and return what was drawn, by scanpy's rules.

        With ``show=None`` the figure is shown, unless it is saved, returned or drawn into given
        axes, or ``scanpy.settings.autoshow`` is off. A figure that was only saved is closed, so
        that a loop over many figures does not fill the memory.

        Returns
        -------
        The figure if ``return_fig``; ``None`` if it was shown, or saved with ``show=None``; else
        ``axes``.
        """
        is_own = self.ax is None and not self.return_fig
        only_saved = self.save is not None and self.show is None and is_own
        show = self.show
        if show is None:
            show = bool(sc.settings.autoshow) and self.save is None and is_own
        if self.save is not None:
            with plt.rc_context(_TEXT_AS_TEXT):
                self.figure.savefig(self.save, dpi=self.dpi, bbox_inches="tight")
        if show:
            plt.show()
        if only_saved:
            plt.close(self.figure)
        if self.return_fig:
            return self.figure
        return None if show or only_saved else axes


# --------------------------------------------------------------------------- room for names


def inches_of(figure: Figure, ax: Axes) -> np.ndarray:
    """Measure the width and height of axes in inches, once all names have their room."""
    with warnings.catch_warnings():
        # In a figure that is too small for its names, they are cut off.
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        figure.draw_without_rendering()
    return np.array(ax.get_window_extent().size) / figure.dpi


def name_cells(ax: Axes, rows: list[str], columns: list[str]) -> None:
    """Name the rows and columns of a table of unit cells, the first row on top."""
    ax.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=90)
    ax.tick_params(labelsize=NAME_SIZE, length=2)
    ax.grid(False)


def name_rows(ax: Axes, names: list[str]) -> None:
    """Name the rows of bars, boxes or violins, the first one on top."""
    ax.set_yticks(range(len(names)), names, fontsize=NAME_SIZE, linespacing=1.0)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    plain(ax)


def fit_names(ax: Axes, size: float = NAME_SIZE) -> None:
    """Name the rows and columns of a table of unit cells in letters that fit into the cells."""
    figure: Any = ax.get_figure(root=True)
    ax.tick_params(labelsize=_SMALLEST, length=2)
    names: dict[Literal["x", "y"], list[str]] = {
        "x": [label.get_text() for label in ax.get_xticklabels()],
        "y": [label.get_text() for label in ax.get_yticklabels()],
    }
    # Larger letters leave less room for the cells, so that the second pass may shrink them.
    for _ in range(2):
        for (axis, texts), room in zip(
            names.items(), inches_of(figure, ax), strict=True
        ):
            n_lines = round(row_height(texts, LINE) / LINE)
            points = 0.9 * 72 * room / max(len(texts), 1) / n_lines
            ax.tick_params(axis=axis, labelsize=float(np.clip(points, _SMALLEST, size)))
    for label in [*ax.get_xticklabels(), *ax.get_yticklabels()]:
        label.set_linespacing(1.0)


def row_height(names: Sequence[str], least: float) -> float:
    """Inches of a row, so that the lines of each name fit in."""
    return max(least, LINE * max((name.count("\n") + 1 for name in names), default=1))


def cell_size(rows: Sequence[str], columns: Sequence[str], least: float) -> float:
    """Inches of a cell of a table: lines of names fit in, unless the table would leave a page."""
    return min(row_height([*rows, *columns], least), 8 / max(len(rows), len(columns)))


# Where a line may end, best first: before a space, after an underscore, after a hyphen and so on.
_BREAKS = (r"(?= )", r"(?<=_)", r"(?<=[-/,:;+])")


def wrap(names: Sequence[str], max_length: int = 50) -> list[str]:
    """Wrap long names at a word into two lines of similar length, so that all stay different.

    Nothing is left out of a name that fits into two lines. Longer ones are shortened in the middle,
    and numbered if that makes them equal.

    Parameters
    ----------
    names
        Names; short ones stay as they are.
    max_length
        Longest line, in characters, at least 10.

    Returns
    -------
    One name for each of ``names``, of one or two lines. Different names stay different.
    """
    wrapped: dict[str, str] = {}
    taken: set[str] = set()
    # Short names first, because they stay as they are.
    for name in sorted(dict.fromkeys(names), key=len):
        candidates = (name, _cut(name, round(1.7 * max_length)), _cut(name, max_length))
        text = next(lines for c in candidates if (lines := _two_lines(c, max_length)))
        number = 1
        while text in taken:
            number += 1
            text = f"{_cut(name, max_length - len(f' ({number})'))} ({number})"
        taken.add(text)
        wrapped[name] = text
    return [wrapped[name] for name in names]


def _two_lines(name: str, max_length: int) -> str | None:
    """Break a name where its longer line is shortest; ``None`` if a line would be too long."""
    if len(name) <= max_length:
        return name
    for pattern in _BREAKS:
        starts = [match.start() for match in re.finditer(pattern, name)]
        pairs = [(name[:i].rstrip(), name[i:].lstrip()) for i in starts]
        fitting = [
            pair for pair in pairs if all(pair) and max(map(len, pair)) <= max_length
        ]
        if fitting:
            # A single letter, as of "G protein", does not end a line.
            best = min(
                fitting,
                key=lambda p: (bool(re.search(r"\b\w$", p[0])), max(map(len, p))),
            )
            return "\n".join(best)
    return None


def _cut(name: str, length: int) -> str:
    """Leave out the middle of a long name, at words if these are short."""
    if len(name) <= length:
        return name
    n_head = round(0.6 * (length - 3))
    n_tail = length - 3 - n_head
    head, tail = name[:n_head], name[-n_tail:] if n_tail else ""
    # A word that was cut is removed, unless too little would be left.
    whole = re.sub(r"[\W_][^\W_]*$", "", head), re.sub(r"^[^\W_]*[\W_]", "", tail)
    head = whole[0] if len(whole[0]) > n_head / 2 else head
    tail = whole[1] if len(whole[1]) > n_tail / 2 else tail
    return f"{head.rstrip(' _-,(/')} … {tail.lstrip(' _-,)/')}"


# --------------------------------------------------------------------------- axes and colours


def plain(ax: Axes) -> None:
    """Draw neither grid nor frame, but the axes left and below."""
    ax.grid(False)
    ax.spines[["top", "right"]].set_visible(False)


# --------------------------------------------------------------------------- parameters and docs


_POSITIVE = Number(above=0)
COLOR_MAP = Constraint(
    "a colour map of matplotlib, such as 'viridis'",
    lambda value: isinstance(value, str | Colormap),
    lambda value: isinstance(value, Colormap) or value in matplotlib.colormaps,
    invalid=("virids",),
)
# What a parameter may be, in each plot that has it.
_PARAMETERS: dict[str, Constraint] = {
    "adata": CellData(mudata=True),
    **dict.fromkeys(("groupby", "labels_key", "prediction_key", "key"), String()),
    **dict.fromkeys(("groups", "gene_sets"), Names(optional=True)),
    **dict.fromkeys(("n_gene_sets", "n_genes", "n_columns"), Integer(optional=True)),
    **dict.fromkeys(("cluster_groups", "normalize", "return_fig"), Flag()),
    **dict.fromkeys(("annotate", "show"), Flag(optional=True)),
    **dict.fromkeys(("vmin", "vmax", "cutoff"), Number(optional=True)),
    "cmap": COLOR_MAP,
    "max_name_length": Integer(least=10),
    "ax": InstanceOf(
        "axes of matplotlib, as plt.subplots() makes them", Axes, optional=True
    ),
    "figsize": Constraint(
        "the width and height in inches, such as (6, 4)",
        lambda value: not isinstance(value, str) and np.shape(value) == (2,),
        lambda value: all(
            _POSITIVE.has_type(v) and _POSITIVE.is_valid(v) for v in value
        ),
        invalid=((0, 4),),
        optional=True,
    ),
    "save": FilePath(optional=True),
    "dpi": Integer(),
}


def _section(name: str) -> str:
    """Text of a section in the docstring of the canvas."""
    found = re.search(
        rf"^{name}\n-+\n(.*?)(?:\n\n|\Z)",
        inspect.getdoc(Canvas) or "",
        re.MULTILINE | re.DOTALL,
    )
    return found[1] if found else ""


_DOCS = {
    "figure": _section("Parameters"),
    "new_figure": _section("Parameters").partition("figure.\n")[2],
    "raises": _section("Raises"),
    "adata": "adata\n    Query that ``model.annotate`` has annotated. It is not changed.",
    "attributed": "adata\n    Data on which :func:`tosica.tl.attribute` was run. It is not changed.",
    "key": "key\n    ``key_added`` of :func:`tosica.tl.attribute`.",
    "max_name_length": """\
max_name_length
    Longer names are wrapped at a word. What is too long for two such lines is shortened in the
    middle; different names stay different.""",
    "returns": "The figure if ``return_fig``, the axes if ``show=False`` or ``ax`` is given, else ``None``.",
    "returns_panels": "The figure if ``return_fig``; with ``show=False`` a list of axes, or ``ax``; else ``None``.",
}


def plot_function(
    **constraints: Constraint,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a plot the parameters of its figure, check its arguments, and fill in shared texts.

    A plot passes ``**figure`` to :class:`Canvas`. In its signature, that stands for the parameters
    of the canvas.

    Parameters
    ----------
    **constraints
        What parameters may be that other plots do not have, or have otherwise.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        # Python 3.13 removes the indentation itself; with -OO there is no docstring.
        doc = inspect.cleandoc(function.__doc__ or "")
        # Each {part} on a line of its own.
        function.__doc__ = re.sub(
            r"^\{(\w+)\}$", lambda part: _DOCS[part[1]], doc, flags=re.MULTILINE
        )
        signature, of_canvas = (
            inspect.signature(function),
            inspect.signature(Canvas).parameters,
        )
        # Those of the canvas take the place of **figure, or stand before other **kwargs.
        *own, last = signature.parameters.values()
        added = [
            each for name, each in of_canvas.items() if name not in signature.parameters
        ]
        signature = signature.replace(
            parameters=[*own, *added, *([] if last.name == "figure" else [last])]
        )
        function.__signature__ = signature  # type: ignore[attr-defined]
        known = _PARAMETERS | constraints
        checked = validate_params(
            **{n: known[n] for n in signature.parameters if n in known}
        )(function)
        if any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
            return checked

        @functools.wraps(checked)
        def plot(*args: P.args, **kwargs: P.kwargs) -> R:
            refuse_unknown(function, kwargs, *signature.parameters)
            return checked(*args, **kwargs)

        return plot

    return decorate
