"""The figure of a plot: made or handed in, as large as its names need, saved, shown or returned."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import matplotlib.pyplot as plt
import numpy as np
import scanpy as sc
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.text import Text

from tosica._files import resolve_output
from tosica._settings import warn_user
from tosica.pl._names import LINE, NAME_SIZE, SMALLEST_SIZE, inches_of, row_height

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

    from tosica._types import AnyPath

Drawn = TypeVar("Drawn")

# In vector formats, text stays text that an editor can select and change.
_TEXT_AS_TEXT: dict[Any, Any] = {
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "none",
}
# Characters of a name for each inch of a figure's width, so that there is room beside the names.
_CHARACTERS_PER_INCH = 6.5
# Rows of a table for each inch of a figure's height.
_ROWS_PER_INCH = 7
# Inches of a figure from which on letters are as large as in a figure of free size.
_FULL_SIZE = 5.0


class FigureOptions(TypedDict, total=False):
    """Keywords that every plot takes, and hands on to :class:`Canvas`."""

    ax: Axes | None
    figsize: tuple[float, float] | None
    show: bool | None
    save: AnyPath | None
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
        Width and height of the new figure in inches, also of the saved one: letters shrink until
        they fit, and a warning says if names of rows still overlap. By default it is large enough for all
        names.
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
    save: AnyPath | None = None
    dpi: int = 300
    return_fig: bool = False
    figure: Figure = field(init=False)
    _grid: tuple[float, float] = field(default=(1, 1), init=False)
    # What is written in given axes before the plot.
    _earlier_texts: dict[Any, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.save is not None:
            path = Path(self.save)
            resolve_output(path)
            suffix = path.suffix[1:].lower()
            if suffix and suffix not in FigureCanvasBase.filetypes:
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
        self._earlier_texts = {text: text.get_text() for text in _texts_of(self.ax)}

    def new_figure(self, size: tuple[float, float]) -> Figure:
        """Make a figure of the given ``figsize`` or, without it, of this size in inches."""
        self.figure = plt.figure(figsize=self.figsize or size, layout="constrained")
        return self.figure

    def axes(self, size: tuple[float, float]) -> Axes:
        """Return the given axes or, without them, the only axes of a new figure."""
        if self.ax is not None:
            return self.ax
        return self.new_figure(size).subplots()

    def line_length(self, max_name_length: int) -> int:
        """Longest line of a name in characters: fewer in a narrow figure of given size."""
        if self.figsize is None:
            return max_name_length
        fitting = int(_CHARACTERS_PER_INCH * self.figsize[0])
        return min(max_name_length, max(fitting, 10))

    def n_rows(self, default: int) -> int:
        """Number of rows to draw by default: fewer in a low figure of given size."""
        if self.figsize is None:
            return default
        return min(default, int(_ROWS_PER_INCH * self.figsize[1]))

    @property
    def text_scale(self) -> float:
        """Factor of the sizes of titles and legends: smaller in a small figure of given size."""
        if self.figsize is None:
            return 1.0
        return float(np.clip(min(self.figsize) / _FULL_SIZE, 0.6, 1.0))

    def add_colorbar(
        self,
        ax: Axes,
        size: tuple[float, float],
        mappable: ScalarMappable,
        title: str,
        **kwargs: Any,
    ) -> Axes:
        """Add a short color bar beside the first rows, with arrows where there are values beyond.

        ``size`` is that of the axes in inches, unless they are given ones.
        """
        self._keep_dollars()
        values = np.asarray(mappable.get_array())
        low, high = mappable.get_clim()
        is_below = bool(values.min() < low)
        is_above = bool(values.max() > high)
        extend = {(True, True): "both", (True, False): "min", (False, True): "max"}
        is_free = self.ax is None and self.figsize is None
        width, height = size if is_free else inches_of(self.figure, ax)
        scale = self.text_scale
        # 0.15 × 1.3 inches, a little away from the cells.
        bar = self.figure.colorbar(
            mappable,
            ax=ax,
            extend=extend.get((is_below, is_above), "neither"),
            anchor=(0, 1),
            fraction=0.15 * scale / width,
            pad=0.12 * scale / width,
            shrink=min(1.0, 1.3 * scale / height),
            aspect=8.7,
            **kwargs,
        )
        # An annotation, because the layout leaves no room for a title.
        bar.ax.annotate(
            title,
            (0, 1),
            (0, 8),
            xycoords="axes fraction",
            textcoords="offset points",
            va="bottom",
            fontsize=NAME_SIZE * scale,
        )
        bar.ax.tick_params(labelsize=(NAME_SIZE - 1) * scale)
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
        self._keep_dollars()
        if self.ax is not None or self.figsize is not None:
            return
        grid = np.array(self._grid)
        for _ in range(2):
            missing = np.array(size) - inches_of(self.figure, ax)
            self.figure.set_size_inches(self.figure.get_size_inches() + missing * grid)
        # The layout leaves no room for titles and labels that are longer than the axes. A label on
        # the left may extend only above, where half of the height comes to.
        beyond = np.zeros(2)
        panel: Any
        for panel in self.figure.axes:
            box = panel.get_tightbbox()
            laid_out = panel.get_tightbbox(for_layout_only=True)
            if laid_out is not None:
                beyond = np.maximum(beyond, box.size - laid_out.size)
        growth = beyond * (1, 2) / self.figure.dpi * grid
        self.figure.set_size_inches(self.figure.get_size_inches() + growth)

    def fit_names(self, ax: Axes) -> None:
        """Name the rows and columns of a table of unit cells in letters that fit into the cells.

        In a figure of given size, the letters of rows and columns are equally large.
        """
        ax.tick_params(labelsize=SMALLEST_SIZE, length=2)
        labels: dict[Any, list[Any]] = {
            "x": ax.get_xticklabels(),
            "y": ax.get_yticklabels(),
        }
        # Larger letters leave less room for the cells, so that the second pass may shrink them.
        for _ in range(2):
            sizes = {}
            inches = inches_of(self.figure, ax)
            for (axis, axis_labels), length in zip(labels.items(), inches, strict=True):
                names = [label.get_text() for label in axis_labels]
                n_lines = round(row_height(names, LINE) / LINE)
                points = 0.9 * 72 * length / max(len(names), 1) / n_lines
                sizes[axis] = float(np.clip(points, SMALLEST_SIZE, NAME_SIZE))
            for axis, size in sizes.items():
                if self.figsize is not None:
                    size = min(sizes.values())
                ax.tick_params(axis=axis, labelsize=size)
        for label in [*labels["x"], *labels["y"]]:
            label.set_linespacing(1.0)

    def fit_text(self) -> None:
        """Shrink all letters of a figure of given size until they fit, and warn if rows still overlap."""
        if self.figsize is None:
            return
        size = np.array(self.figure.get_size_inches())
        texts: list[Any] = self.figure.findobj(Text)
        for _ in range(6):
            inches_of(self.figure, self.figure.axes[0])
            # Without a renderer that draws, as the figure was laid out.
            box: Any = self.figure.get_tightbbox()
            over = max(*(box.size / size), *(box.max / size), *(1 - box.min / size))
            if over <= 1.0:
                break
            for text in texts:
                points = text.get_fontsize() * max(0.75, 0.98 / over)
                text.set_fontsize(max(points, SMALLEST_SIZE))
        are_apart = [_separate_rows(ax) for ax in self.figure.axes]
        if not all(are_apart):
            width, height = self.figsize
            warn_user(
                f"Names overlap in a figure of {width:g} × {height:g} inches: take a larger figsize, or draw fewer "
                "groups, genes or gene sets."
            )

    def _keep_dollars(self) -> None:
        """Write the dollar signs of names, between which matplotlib would read a formula.

        This precedes whatever measures text.
        """
        for ax in self.figure.axes if self.ax is None else [self.ax]:
            for text in _texts_of(ax):
                content = text.get_text()
                # Some numbers are formulas of matplotlib's own.
                is_name = "$" in content and r"\mathdefault" not in content
                if is_name and content != self._earlier_texts.get(text):
                    text.set_parse_math(False)

    def finish(self, axes: Drawn) -> Figure | Drawn | Axes | None:
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
        self._keep_dollars()
        self.fit_text()
        if self.save is not None:
            # A figure of given size has that size in the file.
            bbox = "tight" if self.figsize is None else None
            with plt.rc_context(_TEXT_AS_TEXT):
                self.figure.savefig(self.save, dpi=self.dpi, bbox_inches=bbox)
        if show:
            plt.show()
        if only_saved:
            plt.close(self.figure)
        if self.return_fig:
            return self.figure
        if show or only_saved:
            return None
        return axes if self.ax is None else self.ax


def _texts_of(ax: Axes) -> list[Any]:
    """List all texts in axes: titles, labels, names of ticks, those of legends and so on."""
    return ax.findobj(Text)


def _separate_rows(ax: Axes) -> bool:
    """Shrink the names of rows that would overlap; tell whether they are apart then."""
    labels: list[Any] = [
        label for label in ax.get_yticklabels() if label.get_text().strip()
    ]
    if not ax.axison or not ax.yaxis.get_visible() or len(labels) < 2:
        return True
    boxes = [label.get_window_extent() for label in labels]
    middles = np.array([(box.y0 + box.y1) / 2 for box in boxes])
    heights = np.array([box.height for box in boxes])
    order = np.argsort(middles)
    # Names of two lines need more room than their neighbors.
    needed = (heights[order][1:] + heights[order][:-1]) / 2
    factor = float((np.diff(middles[order]) / needed).min())
    if factor >= 1:
        return True
    points = labels[0].get_fontsize() * factor
    ax.tick_params(axis="y", labelsize=max(points, SMALLEST_SIZE))
    # A tenth of a line is empty.
    return points >= 0.9 * SMALLEST_SIZE
