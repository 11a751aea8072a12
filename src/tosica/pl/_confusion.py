"""Heatmap of known labels against predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator

from tosica.pl._figure import Canvas, FigureOptions
from tosica.pl._names import (
    NAME_SIZE,
    SMALLEST_SIZE,
    TITLE_SIZE,
    cell_size,
    inches_of,
    name_cells,
    wrap,
)
from tosica.pl._plot_function import plot_function
from tosica.tl import confusion as confusion_table

if TYPE_CHECKING:
    from typing import Unpack

    import pandas as pd
    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

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
        Color map. The default has steadily falling lightness, so it is readable in grayscale.
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
        If no cell has a known label, or cells have no prediction.
    {raises}

    Examples
    --------
    Predictions that are wrong for all stem cells (CD34+) stand for what ``model.annotate`` writes.

    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata = adata[
    ...     adata.obs["bulk_labels"].isin(["CD19+ B", "CD34+", "CD56+ NK"])
    ... ].copy()
    >>> mistaken = adata.obs["bulk_labels"].astype(str).replace({"CD34+": "CD19+ B"})
    >>> adata.obs["tosica_prediction"] = mistaken
    >>> axes = tosica.pl.confusion(adata, "bulk_labels", show=False)
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['CD19+ B', 'CD34+', 'CD56+ NK']
    """
    canvas = Canvas(**figure)
    table = confusion_table(
        adata, labels_key, prediction_key=prediction_key, normalize=normalize
    )
    has_numbers = annotate
    if has_numbers is None:
        has_numbers = max(table.shape) <= _MAX_NUMBERS
    max_name_length = canvas.line_length(40)
    rows = wrap(list(table.index), max_name_length)
    columns = wrap(list(table.columns), max_name_length)
    least = 0.42 if has_numbers else 0.19
    if max(table.shape) <= 4:
        least = 0.65
    cell = cell_size(rows, columns, least)
    size = cell * len(columns), cell * len(rows)
    ax = canvas.axes((size[0] + 6, size[1] + 4))
    name_cells(ax, rows, columns)
    # In a new figure, the cells are made square by its size.
    if canvas.ax is not None or canvas.figsize is not None:
        ax.set_aspect("equal")
    mesh = ax.pcolormesh(
        table.to_numpy(),
        cmap=cmap,
        vmin=0,
        vmax=1 if normalize else None,
        edgecolors="white" if has_numbers else "none",
        linewidth=0.5 if has_numbers else 0,
    )
    ax.spines[:].set_visible(False)
    title_size = TITLE_SIZE * canvas.text_scale
    ax.set_xlabel(prediction_key, fontsize=title_size)
    ax.set_ylabel(labels_key, fontsize=title_size)
    ticks = MaxNLocator(nbins=5, integer=not normalize)
    title = "share of row" if normalize else "cells"
    canvas.add_colorbar(ax, size, mesh, title, ticks=ticks)
    canvas.fit(ax, size)
    canvas.fit_names(ax)
    canvas.fit_text()
    if has_numbers:
        width = inches_of(canvas.figure, ax)[0] / table.shape[1]
        _write_numbers(ax, table, mesh, width, drop_if_small=annotate is None)
    return canvas.finish(ax)


def _write_numbers(
    ax: Axes,
    table: pd.DataFrame,
    mesh: QuadMesh,
    width: float,
    *,
    drop_if_small: bool,
) -> None:
    """Write numbers as large as fits into cells of some inches.

    Zeros are left out, so that errors are easy to find.
    """
    values = {
        position: value for position, value in np.ndenumerate(table.to_numpy()) if value
    }
    is_share = table.dtypes.iloc[0].kind == "f"
    texts = [str(value) for value in values.values()]
    if is_share:
        texts = [
            f"{value:.2f}" if value >= 0.005 else "<.01" for value in values.values()
        ]
    size = _number_size(texts, width)
    if is_share and size < SMALLEST_SIZE + 1:
        # Without the zero, which all but 1.00 begin with.
        texts = [f"{value:.2f}".removeprefix("0") for value in values.values()]
        texts = ["1" if text == "1.00" else text for text in texts]
        size = _number_size(texts, width)
    if drop_if_small and size < SMALLEST_SIZE:
        return
    for ((row, column), value), text in zip(values.items(), texts, strict=True):
        is_dark = np.dot(mesh.to_rgba(value)[:3], (0.21, 0.72, 0.07)) < 0.4
        ax.text(
            column + 0.5,
            row + 0.5,
            text,
            size=size,
            color="white" if is_dark else "0.15",
            ha="center",
            va="center",
        )


def _number_size(texts: list[str], width: float) -> float:
    """Points of the largest letters with which all texts are narrower than some inches."""
    # A digit is 0.64 times as wide as the letters are high, and a point half as wide as a digit.
    n_digits = max(len(text) - 0.5 * text.count(".") for text in texts)
    fitting = 0.85 * 72 * width / 0.64 / n_digits
    return min(NAME_SIZE - 0.5, fitting)
