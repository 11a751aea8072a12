"""What all plots share: sizes of text, colours of groups, and showing, saving or returning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import pandas as pd
import scanpy as sc
from matplotlib.colors import is_color_like, to_hex
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from tosica.get._read_groups import read_groups

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from typing import TypeVar

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Axes_ = TypeVar("Axes_")

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
        msg = f"save must be the path of the figure, such as 'figure.pdf', not {save}."
        raise TypeError(msg)
    path = Path(save)
    if not path.parent.is_dir():
        msg = (
            f"The figure cannot be saved as {str(path)!r}: there is no folder {str(path.parent)!r}."
        )
        raise FileNotFoundError(msg)
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
        msg = "figsize belongs to a new figure: give either ax or figsize, not both."
        raise ValueError(msg)
    parent = ax.get_figure(root=True)
    if parent is None:
        msg = "ax belongs to no figure any more: draw into the axes of an existing figure."
        raise ValueError(msg)
    return parent, ax, False
