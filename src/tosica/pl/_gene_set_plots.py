"""Gene sets in groups of cells, as dots, a matrix or violins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosica.pl._figure import fill_docs
from tosica.pl._gene_set_panel import GeneSetPanel

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import Any

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PARAMETERS = """\
adata
    Query that ``model.annotate`` has annotated. It is not changed.
groupby
    Column of ``adata.obs`` with the groups, such as ``"tosica_prediction"``.
gene_sets
    Gene sets to show, in this order; by default those that each group brings, as in
    :func:`tosica.pl.gene_set_heatmap`.
n_gene_sets
    How many gene sets each group brings. ``None``: as many as make about 24 in all.
swap_axes
    Gene sets are the rows, as long names are best read; ``False`` makes groups the rows.
max_name_length
    Longer names are cut in the middle.
key
    What to show, such as ``"tosica_attribution"``. ``None``: the presence that
    :func:`tosica.tl.attribute` wrote (``"tosica_presence"``) or, without it, the attention that
    ``model.annotate`` wrote (``"tosica"``); a log line says which.
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
"""
_SECTIONS = """\
Returns
-------
The figure if ``return_fig``; scanpy's dict of axes if ``show=False`` or ``ax`` is given; else
``None``.

Raises
------
KeyError
    If ``adata`` was not annotated under ``key``, or ``groupby`` or a gene set is missing.
TypeError
    If ``groupby`` cannot be read as groups.
ValueError
    If cells have no group, ``gene_sets`` or ``n_gene_sets`` make no sense, ``ax`` and ``figsize``
    are both given, or the presence was written by another model than the annotation.
FileNotFoundError
    If the folder of ``save`` does not exist.

Examples
--------
Random numbers stand for what ``model.annotate`` writes.

>>> import numpy as np
>>> import scanpy as sc
>>> import tosica
>>> adata = sc.datasets.pbmc68k_reduced()
>>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
>>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
>>> axes = tosica.pl.{name}(adata, "phase", show=False)
>>> "mainplot_ax" in axes
True
"""


@fill_docs(parameters=_PARAMETERS, sections=_SECTIONS)
def gene_set_dotplot(
    adata: AnnData,
    groupby: str,
    *,
    gene_sets: Sequence[str] | None = None,
    n_gene_sets: int | None = None,
    swap_axes: bool = True,
    max_name_length: int = 50,
    key: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
    **kwargs: Any,
) -> Figure | dict[str, Axes] | None:
    """Dots of groups × gene sets: how far values lie above the average, and in how many cells.

    :class:`scanpy.pl.DotPlot` on :func:`tosica.get.attention`. Values are contributions to the
    label's score, or attention. Colour is the mean z-score of the group's cells. All cells have a
    value for all gene sets, so that there is no zero to count from: size is the share of cells
    whose value is above that of the average cell.

    Parameters
    ----------
    {parameters}
    **kwargs
        Passed to :meth:`scanpy.pl.DotPlot.style`.

    {sections}
    """
    panel = GeneSetPanel(
        adata, groupby, gene_sets, n_gene_sets, max_name_length=max_name_length, key=key
    )
    return panel.draw(
        "dotplot", kwargs, swap_axes, ax, figsize, show=show, save=save, return_fig=return_fig
    )


@fill_docs(parameters=_PARAMETERS, sections=_SECTIONS)
def gene_set_matrixplot(
    adata: AnnData,
    groupby: str,
    *,
    gene_sets: Sequence[str] | None = None,
    n_gene_sets: int | None = None,
    swap_axes: bool = True,
    max_name_length: int = 50,
    key: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
    **kwargs: Any,
) -> Figure | dict[str, Axes] | None:
    """Matrix of groups × gene sets, coloured by mean z-scores.

    :class:`scanpy.pl.MatrixPlot` on :func:`tosica.get.attention`. Z-scores of contributions to the
    label's score, or of attention, are over all cells; white is the average.

    Parameters
    ----------
    {parameters}
    **kwargs
        Passed to :meth:`scanpy.pl.MatrixPlot.style`.

    {sections}
    """
    panel = GeneSetPanel(
        adata, groupby, gene_sets, n_gene_sets, max_name_length=max_name_length, key=key
    )
    return panel.draw(
        "matrixplot", kwargs, swap_axes, ax, figsize, show=show, save=save, return_fig=return_fig
    )


@fill_docs(parameters=_PARAMETERS, sections=_SECTIONS)
def gene_set_violin(
    adata: AnnData,
    groupby: str,
    *,
    gene_sets: Sequence[str] | None = None,
    n_gene_sets: int | None = None,
    swap_axes: bool = True,
    max_name_length: int = 50,
    key: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
    **kwargs: Any,
) -> Figure | dict[str, Axes] | None:
    """Violins of groups × gene sets: the distribution over cells.

    :class:`scanpy.pl.StackedViolin` on :func:`tosica.get.attention`. Values are contributions to
    the label's score, or attention. Each gene set has an axis of its own, from its 0.5th to its
    99.5th percentile; colour is the median.

    Parameters
    ----------
    {parameters}
    **kwargs
        Passed to :meth:`scanpy.pl.StackedViolin.style`.

    {sections}
    """
    panel = GeneSetPanel(
        adata, groupby, gene_sets, n_gene_sets, max_name_length=max_name_length, key=key
    )
    return panel.draw(
        "violin", kwargs, swap_axes, ax, figsize, show=show, save=save, return_fig=return_fig
    )
