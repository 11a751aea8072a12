"""How fast the probability falls as gene sets are removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import seaborn as sns

from tosica.pl._figure import check_save, finish, own_axes

if TYPE_CHECKING:
    import os

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's, and lines that differ too.
_STYLES = {
    "presence": ("#0072b2", "-", "o"),
    "attribution": ("#cc79a7", (0, (6, 1.5)), "D"),
    "attention": ("#d55e00", "--", "s"),
    "weighted attention": ("#009e73", "-.", "^"),
    "random": ("#8c8c8c", ":", "x"),
}


def faithfulness(
    adata: AnnData,
    *,
    key: str = "faithfulness",
    title: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
) -> Figure | Axes | None:
    """Probability of the label against the share of gene sets that were removed.

    The lower a curve, the more faithful the order; the legend has the areas.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.faithfulness` was run. It is not changed.
    key
        ``key_added`` of :func:`tosica.tl.faithfulness`.
    title
        Title of the plot.
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
        If there is no such result.
    ValueError
        If ``ax`` and ``figsize`` are both given.
    FileNotFoundError
        If the folder of ``save`` does not exist.

    Examples
    --------
    >>> import pandas as pd
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> curves = pd.DataFrame({"order": "random", "share": [0.0, 1.0], "probability": [0.9, 0.3]})
    >>> area = pd.DataFrame({"order": ["random"], "area": [0.6]})
    >>> adata.uns["faithfulness"] = {"curves": curves, "area": area}
    >>> axes = tosica.pl.faithfulness(adata, show=False)
    >>> axes.get_legend_handles_labels()[1]
    ['random: 0.600']
    """
    path = check_save(save)
    result = adata.uns.get(key)
    if not isinstance(result, Mapping) or not {"curves", "area"} <= set(result):
        raise KeyError(
            f"adata.uns[{key!r}] holds no result of tosica.tl.faithfulness: "
            f"run tosica.tl.faithfulness(adata, model, key_added={key!r}) first."
        )
    figure, ax, own_figure = own_axes(ax, figsize, (6.2, 3.4))
    areas = result["area"].set_index("order")["area"].sort_values()
    for name in areas.index:
        part = result["curves"][result["curves"]["order"] == name]
        color, line, marker = _STYLES.get(name, ("#8c8c8c", "-", "."))
        ax.plot(
            part["share"],
            part["probability"],
            linestyle=line,
            marker=marker,
            markersize=4,
            color=color,
            label=f"{name}: {areas[name]:.3f}",
        )
    ax.set(
        xlabel="share of gene sets removed",
        ylabel="probability of the label",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    ax.grid(False)
    ax.spines[["top", "right"]].set_visible(False)
    # In a figure of its own, the legend is where no curve can be.
    ax.legend(title="removed first, area", fontsize=9, frameon=False)
    if own_figure:
        sns.move_legend(ax, "upper left", bbox_to_anchor=(1, 1))
    if title is not None:
        ax.set_title(title)
    return finish(figure, ax, show=show, save=path, return_fig=return_fig, own_figure=own_figure)
