"""Coverage of the genes by the gene sets of a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator

from tosica._logging import format_thousands
from tosica._validation import check_string
from tosica.get import mask_coverage as coverage_table
from tosica.pl._docs import fill_docs
from tosica.pl._figure import Canvas

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


@fill_docs()
def mask_coverage(
    adata: AnnData,
    *,
    key: str = "tosica_mask",
    title: str | None = None,
    ax: Sequence[Axes] | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    dpi: int = 300,
    return_fig: bool = False,
) -> Figure | Sequence[Axes] | None:
    """Coverage of the genes by a mask, and sizes and overlaps of its gene sets.

    Three panels of the table of :func:`tosica.get.mask_coverage`: number of genes that the largest
    gene sets cover together; histogram of the sizes of the gene sets; histogram of the Jaccard
    index of each gene set with its most similar one. A mask that is easy to interpret rises steeply
    in the first panel and has low values in the third.

    Parameters
    ----------
    adata
        Data that :func:`tosica.pp.build_mask` gave a mask. It is not changed.
    key
        ``key_added`` of :func:`tosica.pp.build_mask`.
    title
        Title of a new figure.
    ax
        Three axes to draw into, instead of a new figure.
    {figure}

    Returns
    -------
    The figure if ``return_fig``, the three axes if ``show=False`` or ``ax`` is given, else
    ``None``.

    Raises
    ------
    KeyError
        If there is no mask.
    ValueError
        If ``ax`` is not three axes, ``ax`` is given together with ``title``, or the mask cannot be
        read.
    {ax_raises}

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
    if ax is not None and (figsize is not None or title is not None):
        raise ValueError("figsize and title belong to a new figure: give either them or ax.")
    axes: list[Axes] = [] if ax is None else list(np.ravel(np.asarray(ax, dtype=object)))
    if ax is not None and len(axes) != _N_PANELS:
        raise ValueError(f"ax must be {_N_PANELS} axes, one for each panel, not {len(axes)}.")
    check_string("title", title, optional=True)
    given = axes[0] if axes else None
    canvas = Canvas(given, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    table = coverage_table(adata, key=key)
    if not axes:
        figure = canvas.new_figure(_FIGSIZE, "constrained")
        axes = list(figure.subplots(1, _N_PANELS))
        if title is not None:
            figure.suptitle(title)
    _draw_coverage(axes[0], table, adata.n_vars)
    _draw_sizes(axes[1], table)
    _draw_overlaps(axes[2], table)
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    return canvas.finish(axes)


def _draw_coverage(ax: Axes, table: pd.DataFrame, n_genes: int) -> None:
    n_sets = np.arange(len(table) + 1)
    covered = np.concatenate([[0], table["n_covered"].to_numpy()])
    ax.axhline(n_genes, color="0.5", linewidth=1, linestyle="--")
    ax.text(0.98 * len(table), 1.02 * n_genes, "all genes", ha="right", va="bottom", fontsize=8)
    ax.fill_between(n_sets, covered, color=_PALE)
    ax.plot(n_sets, covered, color=_COLOR)
    ax.set(xlim=(0, len(table)), ylim=(0, 1.12 * n_genes))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.set_xlabel("gene sets, largest first")
    ax.set_ylabel("genes covered")
    ax.set_title(f"{covered[-1] / n_genes:.0%} of {format_thousands(n_genes)} genes")


def _draw_sizes(ax: Axes, table: pd.DataFrame) -> None:
    sizes = table["n_genes"].to_numpy()
    # Bins of whole numbers, because bins of other widths would hold unequal numbers of sizes.
    width = max(1, int(np.ceil((sizes.max() - sizes.min() + 1) / 30)))
    edges = np.arange(sizes.min(), sizes.max() + width + 1, width) - 0.5
    ax.hist(sizes, bins=edges.tolist(), color=_COLOR)
    ax.axvline(float(np.median(sizes)), color="0.3", linewidth=1, linestyle="--")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.set_xlabel("genes in a set")
    ax.set_ylabel("gene sets")
    ax.set_title(f"median {np.median(sizes):g} genes (dashed)")


def _draw_overlaps(ax: Axes, table: pd.DataFrame) -> None:
    overlap = table["max_jaccard"].to_numpy()
    ax.hist(overlap, bins=np.linspace(0, 1, 21).tolist(), color=_COLOR)
    ax.axvline(float(np.median(overlap)), color="0.3", linewidth=1, linestyle="--")
    ax.set_xlim(0, 1)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.set_xlabel("genes shared with the nearest set\n(Jaccard index)")
    ax.set_ylabel("gene sets")
    ax.set_title(f"median {np.median(overlap):.2f} (dashed)")
