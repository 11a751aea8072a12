"""Faithfulness of explanations: how fast the probability falls as gene sets are removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import seaborn as sns

from tosica._palette import BLUE, GRAY, GREEN, ORANGE, PURPLE
from tosica._validation import check_data, check_string
from tosica.pl._docs import fill_docs
from tosica.pl._figure import Canvas

if TYPE_CHECKING:
    import os

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = {
    "presence": (BLUE, "-", "o"),
    "attribution": (PURPLE, (0, (6, 1.5)), "D"),
    "attention": (ORANGE, "--", "s"),
    "weighted attention": (GREEN, "-.", "^"),
    "random": (GRAY, ":", "x"),
}


@fill_docs()
def faithfulness(
    adata: AnnData,
    *,
    key: str = "faithfulness",
    title: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    dpi: int = 300,
    return_fig: bool = False,
) -> Figure | Axes | None:
    """Probability of the label against the share of gene sets that were removed.

    One curve for each order in which gene sets were removed: the lower the curve, the more faithful
    the order. The legend has the areas under the curves. All curves end where no gene set is left;
    the dotted line is there.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.faithfulness` was run. It is not changed.
    key
        ``key_added`` of :func:`tosica.tl.faithfulness`.
    title
        Title of the plot.
    {ax}
    {figure}

    Returns
    -------
    {returns}

    Raises
    ------
    KeyError
        If there is no such result.
    {ax_raises}

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
    ['random: 0.600', 'no gene set left']
    """
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    check_data(adata, mudata=True)
    check_string("key", key)
    check_string("title", title, optional=True)
    result = adata.uns.get(key)
    if not isinstance(result, Mapping) or not {"curves", "area"} <= set(result):
        raise KeyError(
            f"adata.uns[{key!r}] holds no result of tosica.tl.faithfulness: "
            f"run tosica.tl.faithfulness(adata, model, key_added={key!r}) first."
        )
    ax = canvas.axes((6.2, 3.4))
    areas = result["area"].set_index("order")["area"].sort_values()
    for name in areas.index:
        curve = result["curves"][result["curves"]["order"] == name]
        color, line_style, marker = _STYLES.get(name, (GRAY, "-", "."))
        ax.plot(
            curve["share"],
            curve["probability"],
            linestyle=line_style,
            marker=marker,
            markersize=4,
            color=color,
            label=f"{name}: {areas[name]:.3f}",
        )
    left = result["curves"]["share"].idxmax()
    ax.hlines(
        result["curves"].loc[left, "probability"],
        0,
        1,
        linestyle=":",
        linewidth=0.8,
        color=plt.rcParams["text.color"],
        label="no gene set left",
    )
    ax.set(
        xlabel="share of gene sets removed",
        ylabel="probability of the label",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    ax.grid(False)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(title="removed first, area", fontsize=9, frameon=False)
    if canvas.ax is None:
        # A new figure has room beside the axes, where the legend hides no curve.
        sns.move_legend(ax, "upper left", bbox_to_anchor=(1, 1))
    if title is not None:
        ax.set_title(title)
    return canvas.finish(ax)
