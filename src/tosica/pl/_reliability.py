"""Whether probabilities mean what they say, as a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from tosica.pl._figure import check_save, finish, own_axes
from tosica.tl import reliability as reliability_table
from tosica.tl._reliability import expected_calibration_error

if TYPE_CHECKING:
    import os

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOR = "#0072b2"


def reliability(
    adata: AnnData,
    labels_key: str,
    *,
    key: str = "tosica",
    n_bins: int = 10,
    title: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
) -> Figure | Axes | None:
    """Share of right labels against the probability that was given for them.

    Points on the diagonal are well calibrated, above it the model is too modest, below it too sure.
    The lines are 95 % intervals, the bars in the background shares of the cells. The title has the
    expected calibration error. The table is that of :func:`tosica.tl.reliability`.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated and whose labels are known. It is not changed.
    labels_key
        Column of ``adata.obs`` with the known labels, in the words of the predictions.
    key
        ``key_added`` of ``model.annotate``.
    n_bins
        Number of bins of equal width between 0 and 1.
    title
        Title instead of the expected calibration error.
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
    KeyError, TypeError, ValueError
        As :func:`tosica.tl.reliability`; ``ValueError`` also if ``ax`` and ``figsize`` are given.
    FileNotFoundError
        If the folder of ``save`` does not exist.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.obs["tosica_prediction"] = adata.obs["bulk_labels"]
    >>> adata.obs["tosica_probability"] = 0.95
    >>> axes = tosica.pl.reliability(adata, "bulk_labels", show=False)
    >>> axes.get_title()
    'expected calibration error 5.0 %'
    """
    path = check_save(save)
    table = reliability_table(adata, labels_key, key=key, n_bins=n_bins)
    figure, ax, own_figure = own_axes(ax, figsize, (3.6, 3.6))
    share = table["n_cells"] / table["n_cells"].sum()
    ax.bar(
        (table["low"] + table["high"]) / 2,
        share,
        width=0.92 / n_bins,
        color=plt.rcParams["text.color"],
        alpha=0.15,
        linewidth=0,
        label="share of cells",
    )
    ax.plot([0, 1], [0, 1], color=plt.rcParams["text.color"], linewidth=0.8, linestyle="--")
    spread = np.abs(
        table[["accuracy_low", "accuracy_high"]].to_numpy().T - table["accuracy"].to_numpy()
    )
    ax.errorbar(
        table["probability"],
        table["accuracy"],
        yerr=spread,
        fmt="o-",
        markersize=4.5,
        linewidth=1.2,
        elinewidth=1.2,
        color=_COLOR,
        label="right labels",
    )
    ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="probability of the label", ylabel="share")
    ax.set_aspect("equal")
    ax.grid(False)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="upper left", fontsize=9)
    error = expected_calibration_error(table)
    ax.set_title(
        f"expected calibration error {error:.1%}".replace("%", " %") if title is None else title,
        fontsize=10,
    )
    return finish(figure, ax, show=show, save=path, return_fig=return_fig, own_figure=own_figure)
