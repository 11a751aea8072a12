"""Known labels against predictions as a heatmap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import seaborn as sns
from matplotlib.ticker import MaxNLocator

from tosica.pl._confusion_layout import FONT_SIZE, TITLE_SIZE, new_axes
from tosica.pl._names import shorten
from tosica.pl._utils import check_save, finish, text_width
from tosica.tl import confusion as confusion_table

if TYPE_CHECKING:
    import os

    import pandas as pd
    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

# More rows or columns than this are better read by colour.
_MOST_NUMBERS = 25
_NUMBER_SIZE = 8.0
_SMALLEST_NUMBER = 5.0


def confusion(
    adata: AnnData,
    labels_key: str,
    *,
    prediction_key: str = "tosica_prediction",
    normalize: bool = True,
    annotate: bool | None = None,
    cmap: str | Colormap = "mako_r",
    max_name_length: int = 40,
    title: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
) -> Figure | Axes | None:
    """Heatmap of known labels (rows) against predictions (columns).

    The table is that of :func:`tosica.tl.confusion`: both axes run through the labels in the order
    of their categories, so that right answers lie on the diagonal, and ``"Unknown"`` is last.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated and whose labels are known. It is not changed.
    labels_key
        Column of ``adata.obs`` with the known labels.
    prediction_key
        Column of ``adata.obs`` with the predictions.
    normalize
        Show shares of each row's cells, from 0 to 1, instead of numbers of cells.
    annotate
        Write the numbers into the cells, zeros left blank. ``None`` does so if there are at most
        25 rows and 25 columns and the cells are large enough.
    cmap
        Colour map; the default's lightness falls steadily, so it can be read without colours.
    max_name_length
        Longer labels are cut in the middle.
    title
        Title of the plot.
    ax
        Axes to draw into, instead of a new figure.
    figsize
        Width and height of the new figure in inches; by default as the labels need it.
    show
        Show the figure. ``None`` shows it unless ``ax``, ``save`` or ``return_fig`` is given or
        ``scanpy.settings.autoshow`` is off.
    save
        Path to save the figure to; its ending decides the format.
    return_fig
        Return the figure.

    Returns
    -------
    The figure if ``return_fig``, the axes if ``show=False`` or ``ax`` is given, else ``None``.

    Raises
    ------
    KeyError
        If a column is missing.
    TypeError
        If a column cannot be read as labels, or ``save`` is no path.
    ValueError
        If cells have no label or no prediction, or ``ax`` and ``figsize`` are both given.
    FileNotFoundError
        If the folder of ``save`` does not exist.

    Examples
    --------
    A prediction that mistakes every stem cell (CD34+) stands for what ``model.annotate`` writes.

    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata = adata[adata.obs["bulk_labels"].isin(["CD19+ B", "CD34+", "CD56+ NK"])].copy()
    >>> mistaken = adata.obs["bulk_labels"].astype(str).replace({"CD34+": "CD19+ B"})
    >>> adata.obs["tosica_prediction"] = mistaken
    >>> axes = tosica.pl.confusion(adata, "bulk_labels", show=False)
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['CD19+ B', 'CD34+', 'CD56+ NK']
    """
    path = check_save(save)
    if ax is not None and figsize is not None:
        msg = "figsize belongs to a new figure: give either ax or figsize, not both."
        raise ValueError(msg)
    table = confusion_table(adata, labels_key, prediction_key=prediction_key, normalize=normalize)
    with_numbers = max(table.shape) <= _MOST_NUMBERS if annotate is None else annotate
    row_names = shorten(list(table.index), max_name_length)
    column_names = shorten(list(table.columns), max_name_length)
    own_figure = ax is None
    color_bar, font = None, FONT_SIZE
    if ax is None:
        ax, color_bar, font = new_axes(
            row_names,
            column_names,
            labels_key,
            with_numbers=with_numbers,
            has_title=title is not None,
            figsize=figsize,
        )
    sns.heatmap(
        table,
        ax=ax,
        cbar_ax=color_bar,
        cmap=cmap,
        vmin=0,
        vmax=1 if normalize else None,
        square=not own_figure,
        linewidths=0.5 if with_numbers else 0,
        linecolor="white",
        annot=_numbers(table, normalize=normalize) if with_numbers else False,
        fmt="",
        # Set below: seaborn draws all labels to see whether they overlap.
        xticklabels=False,
        yticklabels=False,
        cbar_kws={
            "label": "share of row" if normalize else "cells",
            "ticks": MaxNLocator(nbins=5, integer=not normalize),
        },
    )
    ax.set_xticks(np.arange(len(column_names)) + 0.5, column_names, rotation=90)
    ax.set_yticks(np.arange(len(row_names)) + 0.5, row_names, rotation=0)
    ax.tick_params(labelsize=font, length=2)
    ax.set_xlabel(prediction_key, fontsize=TITLE_SIZE)
    ax.set_ylabel(labels_key, fontsize=TITLE_SIZE)
    if title is not None:
        ax.set_title(title)
    figure = ax.get_figure(root=True)
    if figure is None:
        msg = "ax belongs to no figure any more: draw into the axes of an existing figure."
        raise ValueError(msg)
    if with_numbers:
        _fit_numbers(figure, ax, table.shape[1], drop_if_small=annotate is None)
    return finish(figure, ax, show=show, save=path, return_fig=return_fig, own_figure=own_figure)


def _numbers(table: pd.DataFrame, *, normalize: bool) -> NDArray[np.str_]:
    """What is written into the cells: nothing for zero, so that the eye finds the mistakes."""

    def written(value: float) -> str:
        if value == 0:
            return ""
        if not normalize:
            return f"{value:d}"
        return f"{value:.2f}" if value >= 0.005 else "<.01"

    return np.array([[written(value) for value in row] for row in table.to_numpy()])


def _fit_numbers(figure: Figure, ax: Axes, n_columns: int, *, drop_if_small: bool) -> None:
    """Give the numbers a size at which they fit into the cells; drop them if it is too small."""
    figure.draw_without_rendering()
    cell = ax.get_window_extent().width / figure.dpi / n_columns
    widest = text_width([text.get_text() for text in ax.texts], _NUMBER_SIZE)
    size = min(_NUMBER_SIZE, _NUMBER_SIZE * 0.85 * cell / widest) if widest else _NUMBER_SIZE
    for text in list(ax.texts):
        if drop_if_small and size < _SMALLEST_NUMBER:
            text.remove()
        else:
            text.set_fontsize(max(size, 1.0))
