"""Confusion of labels and predictions as a heatmap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import seaborn as sns
from matplotlib.ticker import MaxNLocator

from tosica.pl._figure import (
    LINE,
    NAME_SIZE,
    TITLE_SIZE,
    Canvas,
    FigureOptions,
    fit_names,
    inches_of,
    line_count,
    plot_function,
)
from tosica.pl._names import wrap
from tosica.tl import confusion as confusion_table

if TYPE_CHECKING:
    from typing import Unpack

    import pandas as pd
    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

# By default, numbers are written for at most this many rows and columns.
_MAX_NUMBERS = 25


@plot_function()
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
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Heatmap of known labels (rows) against predictions (columns).

    The table is that of :func:`tosica.tl.confusion`: labels are in the order of their categories on
    both axes, so that correct predictions are on the diagonal, and ``"Unknown"`` is last.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated and whose labels are known. It is not changed.
    labels_key
        Column of ``adata.obs`` with the known labels.
    prediction_key
        Column of ``adata.obs`` with the predictions.
    normalize
        Show shares of the cells of each row, from 0 to 1, instead of numbers of cells.
    annotate
        Write the numbers into the heatmap, except zeros. ``None`` does so if there are at most 25
        rows and 25 columns and the numbers fit.
    cmap
        Colour map. The default has steadily falling lightness, so it is readable in greyscale.
    {max_name_length}
    title
        Title of the plot.
    {figure}

    Returns
    -------
    {returns}

    Raises
    ------
    KeyError
        If a column is missing.
    TypeError
        If a column cannot be read as labels.
    ValueError
        If cells have no label or no prediction.
    {raises}

    Examples
    --------
    Predictions that are wrong for all stem cells (CD34+) stand for what ``model.annotate`` writes.

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
    canvas = Canvas(**figure)
    table = confusion_table(adata, labels_key, prediction_key=prediction_key, normalize=normalize)
    with_numbers = max(table.shape) <= _MAX_NUMBERS if annotate is None else annotate
    rows, columns = (wrap(list(names), max_name_length) for names in (table.index, table.columns))
    # Wide enough for a number of four characters, or for a line of text or two.
    cell = 0.65 if max(table.shape) <= 4 else 0.42 if with_numbers else 0.19
    cell = max(cell, LINE * line_count([*rows, *columns]))
    ax = canvas.axes((cell * len(columns) + 4, cell * len(rows) + 4))
    sns.heatmap(
        table,
        ax=ax,
        cmap=cmap,
        vmin=0,
        vmax=1 if normalize else None,
        # In a new figure, the cells are made square by its size.
        square=canvas.ax is not None or canvas.figsize is not None,
        linewidths=0.5 if with_numbers else 0,
        linecolor="white",
        annot=_numbers(table, normalize=normalize) if with_numbers else False,
        fmt="",
        # Set below, because seaborn would draw all names to check whether they overlap.
        xticklabels=False,
        yticklabels=False,
        cbar_kws={
            "label": "share of row" if normalize else "cells",
            "ticks": MaxNLocator(nbins=5, integer=not normalize),
            # A short one, beside the first rows.
            "shrink": min(1.0, 2.2 / (cell * len(rows))),
            "anchor": (0, 1),
            "aspect": 14,
        },
    )
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=90)
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows, rotation=0)
    ax.tick_params(labelsize=NAME_SIZE, length=2)
    ax.set_xlabel(prediction_key, fontsize=TITLE_SIZE)
    ax.set_ylabel(labels_key, fontsize=TITLE_SIZE)
    if title is not None:
        ax.set_title(title)
    canvas.fit(ax, (cell * len(columns), cell * len(rows)))
    fit_names(ax)
    if with_numbers:
        _fit_numbers(canvas.figure, ax, table.shape[1], drop_if_small=annotate is None)
    return canvas.finish(ax)


def _numbers(table: pd.DataFrame, *, normalize: bool) -> NDArray[np.str_]:
    """Texts of the cells: none for zero, so that errors are easy to find."""

    def text(value: float) -> str:
        if value == 0:
            return ""
        if not normalize:
            return f"{value:d}"
        return f"{value:.2f}" if value >= 0.005 else "<.01"

    return np.array([[text(value) for value in row] for row in table.to_numpy()])


def _fit_numbers(figure: Figure, ax: Axes, n_columns: int, *, drop_if_small: bool) -> None:
    """Shrink the numbers until they fit into the cells; drop them if they would be too small."""
    for text in ax.texts:
        text.set_fontsize(NAME_SIZE - 0.5)
    room = 0.85 * inches_of(figure, ax)[0] / n_columns * figure.dpi
    widest = max((text.get_window_extent().width for text in ax.texts), default=room)
    size = (NAME_SIZE - 0.5) * min(1.0, room / max(widest, 1))
    for text in list(ax.texts):
        if drop_if_small and size < 5:
            text.remove()
        else:
            text.set_fontsize(max(size, 1.0))
