"""Figures, sizes of text and colours of groups, for all plots."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scanpy as sc
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.colors import Colormap, is_color_like, to_hex
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from tosica._files import replace_file
from tosica._groups import read_groups
from tosica._palette import default_palette
from tosica._validation import (
    check_count,
    check_flags,
    check_number,
    check_string,
    did_you_mean,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal

    from anndata import AnnData
    from matplotlib.figure import Figure

Drawn = TypeVar("Drawn")

_POINTS_PER_INCH = 72
_MIN_FONT_SIZE = 4.0
# Letters are up to this much wider on a screen, where their widths are rounded to whole pixels.
_HINTING = 1.12
# In vector formats, text stays text that an editor can select and change.
_TEXT_AS_TEXT: dict[Any, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}


class Canvas:
    """Figure of one plot: given axes or a new figure, which is then saved, shown or returned.

    Make it first in a plotting function, so that its arguments are checked before anything is
    computed or drawn.

    Parameters
    ----------
    ax, figsize, show, save, dpi, return_fig
        As in the public functions.

    Attributes
    ----------
    ax
        The given axes, if any.
    figsize
        The given size, if any.
    figure
        Figure of ``ax``, or the new figure once it is made.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    FileNotFoundError
        If the folder of ``save`` does not exist.
    ValueError
        If ``figsize`` is not two positive numbers, ``dpi`` is below 1, matplotlib cannot write the
        format of ``save``, ``ax`` and ``figsize`` are both given, or ``ax`` belongs to no figure.
    """

    figure: Figure

    def __init__(
        self,
        ax: Axes | None,
        figsize: tuple[float, float] | None,
        *,
        show: bool | None,
        save: str | os.PathLike[str] | None,
        dpi: int,
        return_fig: bool,
    ) -> None:
        if show is not None:
            check_flags(show=show)
        check_flags(return_fig=return_fig)
        check_count("dpi", dpi)
        _check_figsize(figsize)
        if ax is not None and not isinstance(ax, Axes):
            raise TypeError(
                f"ax must be axes of matplotlib, as plt.subplots() makes them, not {ax!r:.60}."
            )
        self.ax = ax
        self.figsize = figsize
        self._show = show
        self._save = _check_save(save)
        self._dpi = dpi
        self._return_fig = return_fig
        if ax is None:
            return
        if figsize is not None:
            raise ValueError(
                "figsize belongs to a new figure: give either ax or figsize, not both."
            )
        figure = ax.get_figure(root=True)
        if figure is None:
            raise ValueError(
                "ax belongs to no figure any more: draw into the axes of an existing figure."
            )
        self.figure = figure

    def new_figure(
        self, size: tuple[float, float], layout: Literal["constrained"] | None = None
    ) -> Figure:
        """Make a figure of the given ``figsize`` or, without it, of this size in inches."""
        self.figure = plt.figure(figsize=self.figsize or size, layout=layout)
        return self.figure

    def axes(self, size: tuple[float, float]) -> Axes:
        """Return the given axes or, without them, the only axes of a new figure."""
        return self.new_figure(size, "constrained").subplots() if self.ax is None else self.ax

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
        is_own = self.ax is None and not self._return_fig
        only_saved = self._save is not None and self._show is None and is_own
        show = self._show
        if show is None:
            show = bool(sc.settings.autoshow) and self._save is None and is_own
        if self._save is not None:
            with replace_file(_target(self._save)) as temporary, plt.rc_context(_TEXT_AS_TEXT):
                self.figure.savefig(temporary, dpi=self._dpi, bbox_inches="tight")
        if show:
            plt.show()
        if only_saved:
            plt.close(self.figure)
        if self._return_fig:
            return self.figure
        return None if show or only_saved else axes


def _target(path: Path) -> Path:
    """File that matplotlib would write: with a suffix, and behind a link."""
    if not path.suffix:
        path = path.with_name(f"{path.name}.{plt.rcParams['savefig.format']}")
    return Path(os.path.realpath(path))


def _check_figsize(figsize: tuple[float, float] | None) -> None:
    if figsize is None:
        return
    if isinstance(figsize, str) or np.ndim(figsize) != 1 or len(figsize) != 2:
        raise TypeError(
            f"figsize must be the width and height in inches, such as (6, 4), not {figsize!r:.60}."
        )
    for inches in figsize:
        check_number("each of figsize", inches, above=0)


def check_cmap(cmap: str | Colormap | None) -> None:
    """Check that a value names a colour map, is one, or is ``None``.

    Raises
    ------
    TypeError
        If it is of another type.
    ValueError
        If there is no such colour map.
    """
    if cmap is None or isinstance(cmap, Colormap):
        return
    check_string("cmap", cmap)
    if cmap not in matplotlib.colormaps:
        raise ValueError(
            f"cmap must be a colour map of matplotlib, not {cmap!r}"
            f"{did_you_mean(cmap, matplotlib.colormaps)}"
        )


def _check_save(save: str | os.PathLike[str] | None) -> Path | None:
    if save is None:
        return None
    if not isinstance(save, str | os.PathLike):
        raise TypeError(f"save must be the path of the figure, such as 'figure.pdf', not {save!r}.")
    path = Path(save)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"The figure cannot be saved as {str(path)!r}: there is no folder {str(path.parent)!r}."
        )
    file_format = path.suffix[1:].lower()
    if file_format and file_format not in FigureCanvasBase.filetypes:
        raise ValueError(
            f"save must end in a format that matplotlib writes, such as .pdf, .svg, .png or .tiff, "
            f"not in {path.suffix!r}."
        )
    return path


def text_width(labels: Iterable[str], font_size: float) -> float:
    """Width of the widest line of the labels in inches, at any resolution."""
    font = FontProperties(size=font_size)
    # Measured without a figure, because the size of the figure depends on it.
    widths = [
        text_to_path.get_text_width_height_descent(line, font, ismath=False)[0]
        for label in labels
        for line in label.splitlines()
    ]
    return _HINTING * max(widths, default=0.0) / _POINTS_PER_INCH


def line_count(labels: Iterable[str]) -> int:
    """Lines of the label that has most."""
    return max((len(label.splitlines()) for label in labels), default=1)


def fitting_font(height: float, largest: float, n_lines: int = 1) -> float:
    """Font size in points for names of rows of this height in inches, from 4 to ``largest``."""
    return min(largest, max(_MIN_FONT_SIZE, 0.9 * height * _POINTS_PER_INCH / n_lines))


def group_colors(adata: AnnData, groupby: str) -> dict[str, str]:
    """Colour of each group: that of the AnnData if it has one, else that of scanpy's palette.

    ``adata`` is not changed, even where scanpy would write its palette to it.

    Parameters
    ----------
    adata
        Data with or without ``adata.uns[f"{groupby}_colors"]``.
    groupby
        Column of ``adata.obs`` with the groups.
    """
    column = adata.obs[groupby]
    if isinstance(column.dtype, pd.CategoricalDtype):
        # The list of colours includes those of unused categories.
        names = [str(name) for name in column.cat.categories]
    else:
        names = list(read_groups(adata, groupby).categories)
    stored = [str(color) for color in adata.uns.get(f"{groupby}_colors", ())]
    if len(stored) < len(names) or not all(is_color_like(color) for color in stored):
        stored = default_palette(len(names))
    return {name: to_hex(color) for name, color in zip(names, stored, strict=False)}
