"""How new cells look to the model, group by group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from tosica._groups import read_groups
from tosica.pl._figure import check_save, finish, group_colors, own_axes, shorten, text_width

if TYPE_CHECKING:
    import os

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FONT = 9.0


def novelty(
    adata: AnnData,
    groupby: str | None = None,
    *,
    key: str = "tosica",
    cutoff: float | None = None,
    max_name_length: int = 40,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
) -> Figure | Axes | None:
    """Boxes of the novelty of cells, one a group, from the newest group down.

    Boxes hold the middle half of a group's cells, with the median; whiskers end at the furthest
    cell within 1.5 times the box, dots are the cells beyond.

    Parameters
    ----------
    adata
        Query that :func:`tosica.tl.novelty` has scored. It is not changed.
    groupby
        Column of ``adata.obs`` with the groups; by default the predictions.
    key
        ``key_added`` of ``model.annotate``.
    cutoff
        Novelty at which to draw a line.
    max_name_length
        Longer names are cut in the middle.
    ax
        Axes to draw into, instead of a new figure.
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
        If ``groupby`` cannot be read as groups.
    ValueError
        If cells have no group, or ``ax`` and ``figsize`` are both given.
    FileNotFoundError
        If the folder of ``save`` does not exist.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.obs["tosica_novelty"] = adata.obs["percent_mito"]
    >>> axes = tosica.pl.novelty(adata, "phase", show=False)
    >>> len(axes.get_yticklabels())
    3
    """
    path = check_save(save)
    column = f"{key}_novelty"
    if column not in adata.obs:
        raise KeyError(
            f"adata.obs has no column {column!r}: nothing has measured how new the cells are; "
            f"tosica.tl.novelty(adata, model, key={key!r}) does."
        )
    groupby = f"{key}_prediction" if groupby is None else groupby
    groups = read_groups(adata, groupby)
    values = adata.obs[column].to_numpy(dtype=float)
    medians = adata.obs[column].groupby(groups, observed=True).median()
    order = [str(name) for name in medians.sort_values(ascending=False).index]
    names = shorten(order, max_name_length)
    size = 3.2 + text_width(names, _FONT), 0.24 * len(order) + 0.7
    figure, ax, own_figure = own_axes(ax, figsize, size)
    colors = group_colors(adata, groupby)
    ink = {"color": plt.rcParams["text.color"], "linewidth": 0.8}
    # Not seaborn's, which calls this with what newer versions of matplotlib deprecate.
    boxes = ax.boxplot(
        [values[np.asarray(groups) == name] for name in order],
        orientation="horizontal",
        positions=range(len(order)),
        widths=0.7,
        patch_artist=True,
        boxprops={"edgecolor": ink["color"], "linewidth": ink["linewidth"]},
        whiskerprops=ink,
        capprops=ink,
        medianprops=ink | {"linewidth": 1.4},
        flierprops={"marker": ".", "markersize": 3, "markeredgecolor": ink["color"]},
        manage_ticks=False,
    )
    for box, name in zip(boxes["boxes"], order, strict=True):
        box.set_facecolor(colors[name])
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.set_yticks(range(len(order)), names, fontsize=_FONT)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("novelty", fontsize=10)
    ax.set_ylabel("")
    ax.grid(False)
    ax.spines[["top", "right"]].set_visible(False)
    if cutoff is not None:
        ax.axvline(cutoff, linestyle="--", linewidth=1, color="#d55e00")
    return finish(figure, ax, show=show, save=path, return_fig=return_fig, own_figure=own_figure)
