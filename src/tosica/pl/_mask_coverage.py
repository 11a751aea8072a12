"""How well a mask's gene sets cover the genes, as three panels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from tosica._logging import format_thousands
from tosica.get import mask_coverage as coverage_table
from tosica.pl._figure import check_save, finish

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import pandas as pd
    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_N_PANELS = 3
_FIGSIZE = (10.5, 3.2)
_COLOR = "#35608d"
_PALE = "#d9d9d9"


def mask_coverage(
    adata: AnnData,
    *,
    key: str = "tosica_mask",
    title: str | None = None,
    ax: Sequence[Axes] | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
) -> Figure | Sequence[Axes] | None:
    """Genes covered by a mask's gene sets, the sets' sizes and their overlaps.

    Three panels, of the table that :func:`tosica.get.mask_coverage` gives: how many genes the
    largest sets cover together, against how many genes there are; how many genes the sets have;
    and how much of its genes each set shares with the one that is most like it. A mask to read from
    rises steeply in the first panel and stays left in the third.

    Parameters
    ----------
    adata
        Data that :func:`tosica.pp.build_mask` gave a mask. It is not changed.
    key
        ``key_added`` of :func:`tosica.pp.build_mask`.
    title
        Title of the figure; not for given axes.
    ax
        Three axes to draw into, instead of a new figure.
    figsize
        Width and height of the new figure in inches.
    show
        Show the figure. ``None`` shows it unless ``ax``, ``save`` or ``return_fig`` is given or
        ``scanpy.settings.autoshow`` is off.
    save
        Path to save the figure to; its ending decides the format.
    return_fig
        Return the figure.

    Returns
    -------
    The figure if ``return_fig``, the three axes if ``show=False`` or ``ax`` is given, else
    ``None``.

    Raises
    ------
    KeyError
        If there is no mask.
    TypeError
        If ``save`` is no path.
    ValueError
        If ``ax`` is not three axes, ``ax`` comes with ``figsize`` or ``title``, or the mask is
        broken.
    FileNotFoundError
        If the folder of ``save`` does not exist.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> tosica.pp.build_mask(adata)
    >>> axes = tosica.pl.mask_coverage(adata, show=False)
    >>> axes[0].get_xlabel()
    'gene sets, largest first'
    """
    path = check_save(save)
    if ax is not None and (figsize is not None or title is not None):
        raise ValueError("figsize and title belong to a new figure: give either them or ax.")
    table = coverage_table(adata, key=key)
    own_figure = ax is None
    if ax is None:
        figure, grid = plt.subplots(1, _N_PANELS, figsize=figsize or _FIGSIZE, layout="constrained")
        axes: Sequence[Axes] = list(grid)
        if title is not None:
            figure.suptitle(title)
    else:
        axes = list(np.ravel(np.asarray(ax, dtype=object)))
        if len(axes) != _N_PANELS:
            raise ValueError(f"ax must be {_N_PANELS} axes, one for each panel, not {len(axes)}.")
        root = axes[0].get_figure(root=True)
        if root is None:
            raise ValueError(
                "ax belongs to no figure any more: draw into the axes of an existing figure."
            )
        figure = root
    _draw_coverage(axes[0], table, adata.n_vars)
    _draw_sizes(axes[1], table)
    _draw_overlaps(axes[2], table)
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return finish(figure, axes, show=show, save=path, return_fig=return_fig, own_figure=own_figure)


def _draw_coverage(ax: Axes, table: pd.DataFrame, n_genes: int) -> None:
    number = np.arange(len(table) + 1)
    covered = np.concatenate([[0], table["n_covered"].to_numpy()])
    ax.axhline(n_genes, color="0.5", linewidth=1, linestyle="--")
    ax.fill_between(number, covered, color=_PALE)
    ax.plot(number, covered, color=_COLOR)
    ax.set(xlim=(0, len(table)), ylim=(0, 1.12 * n_genes))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.set_xlabel("gene sets, largest first")
    ax.set_ylabel("genes covered")
    ax.set_title(f"{covered[-1] / n_genes:.0%} of {format_thousands(n_genes)} genes")


def _draw_sizes(ax: Axes, table: pd.DataFrame) -> None:
    sizes = table["n_genes"].to_numpy()
    # Bars of whole numbers of genes, or some would hold more sizes than others.
    width = max(1, int(np.ceil((sizes.max() - sizes.min() + 1) / 30)))
    edges = np.arange(sizes.min(), sizes.max() + width + 1, width) - 0.5
    ax.hist(sizes, bins=edges.tolist(), color=_COLOR)
    ax.axvline(float(np.median(sizes)), color="0.3", linewidth=1, linestyle="--")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.set_xlabel("genes in a set")
    ax.set_ylabel("gene sets")
    ax.set_title(f"median {np.median(sizes):g} genes")


def _draw_overlaps(ax: Axes, table: pd.DataFrame) -> None:
    overlap = table["max_jaccard"].to_numpy()
    ax.hist(overlap, bins=np.linspace(0, 1, 21).tolist(), color=_COLOR)
    ax.axvline(float(np.median(overlap)), color="0.3", linewidth=1, linestyle="--")
    ax.set_xlim(0, 1)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.set_xlabel("genes shared with the nearest set\n(Jaccard index)")
    ax.set_ylabel("gene sets")
    ax.set_title(f"median {np.median(overlap):.2f}")
