"""From known labels, or clusters, to predictions, as ribbons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tosica._constants import UNKNOWN
from tosica.pl._alluvial import Column, Ribbon, draw_alluvial, inch_axes, size_of
from tosica.pl._names import shorten
from tosica.pl._utils import check_save, finish, group_colors, own_axes
from tosica.tl import confusion as confusion_table

if TYPE_CHECKING:
    import os

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def label_flow(
    adata: AnnData,
    labels_key: str,
    *,
    prediction_key: str = "tosica_prediction",
    min_share: float = 0.01,
    normalize: bool = True,
    max_name_length: int = 40,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
) -> Figure | Axes | None:
    """Ribbons from each known label, or cluster, to the predictions of its cells.

    The table is that of :func:`tosica.tl.confusion`. Ribbons have the colour of the known label,
    and predictions lie opposite of the labels that they come from.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated. It is not changed.
    labels_key
        Column of ``adata.obs`` with known labels or clusters.
    prediction_key
        Column of ``adata.obs`` with the predictions.
    min_share
        Ribbons with a smaller share of a known label's cells are left out.
    normalize
        Make all known labels equally high, so that rare ones can be seen; ``False`` makes them as
        high as their number of cells.
    max_name_length
        Longer names are cut in the middle.
    ax
        Axes to draw into, instead of a new figure. Text shrinks where they are small.
    figsize
        Width and height of the new figure in inches; by default as the names need it.
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
        If a column cannot be read as labels.
    ValueError
        If cells have no label, ``ax`` and ``figsize`` are both given, or ``min_share`` is not
        between 0 and 1.
    FileNotFoundError
        If the folder of ``save`` does not exist.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> axes = tosica.pl.label_flow(adata, "phase", prediction_key="bulk_labels", show=False)
    >>> axes.texts[0].get_text()
    'G1'
    """
    path = check_save(save)
    if not 0 <= min_share < 1:
        msg = f"min_share must lie between 0 and 1, not {min_share}."
        raise ValueError(msg)
    counts = confusion_table(adata, labels_key, prediction_key=prediction_key)
    shares = counts.div(counts.sum(axis=1), axis=0)
    counts = counts.where(shares >= min_share, 0)
    table = shares.where(shares >= min_share, 0.0) if normalize else counts.astype(float)
    known = list(table.index)
    predicted = [name for name in table.columns if table[name].sum() > 0]
    place = np.arange(len(known))
    middle = {name: np.average(place, weights=table[name]) for name in predicted}
    predicted.sort(key=lambda name: (name == UNKNOWN, middle[name]))
    left, right = group_colors(adata, labels_key), group_colors(adata, prediction_key)
    ribbons = [
        Ribbon(name, other, float(table.loc[name, other]), left[name])
        for name in known
        for other in predicted
        if table.loc[name, other] > 0
    ]
    columns = [
        Column(labels_key, known, shorten(known, max_name_length), [left[name] for name in known]),
        Column(prediction_key, predicted, shorten(predicted, max_name_length),
               [right[name] for name in predicted]),
    ]  # fmt: skip
    own_figure = ax is None
    if ax is None:
        ax = inch_axes(figsize or size_of(columns, [ribbons]))
    figure, ax, _ = own_axes(ax, None if own_figure else figsize, (1, 1))
    draw_alluvial(ax, columns, [ribbons])
    return finish(figure, ax, show=show, save=path, return_fig=return_fig, own_figure=own_figure)
