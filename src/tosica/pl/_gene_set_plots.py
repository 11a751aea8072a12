"""Dot plot and matrix plot of gene sets in groups of cells, drawn by scanpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scanpy as sc

from tosica._annotated import resolve_key
from tosica._groups import read_groups
from tosica._validation import check_count, check_flags
from tosica.get import attention
from tosica.pl._choose_gene_sets import choose_gene_sets, scale_groups
from tosica.pl._docs import fill_docs
from tosica.pl._figure import Canvas, line_count, text_width
from tosica.pl._names import value_name, wrap

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Default number of gene sets, of all groups together and at most for each.
_N_GENE_SETS, _MAX_PER_GROUP = 24, 4
_FONT_SIZE = 9.0
# In inches: of what scanpy draws beside the cells, of margins and of ticks.
_LEGEND, _MARGIN, _TICK, _LINE = 1.6, 0.12, 0.1, 0.15
# Colours end at this mean z-score, so that those of a rare type do not make all others pale.
_MAX_Z_SCORE = 2.5

_PARAMETERS = """\
adata
    Query that ``model.annotate`` has annotated. It is not changed.
groupby
    Column of ``adata.obs`` with the groups, such as ``"tosica_prediction"``.
gene_sets
    Gene sets to show, in this order; by default the most important of each group, as in
    :func:`tosica.pl.gene_set_heatmap`.
n_gene_sets
    Number of gene sets for each group. ``None``: as many as make about 24 in all.
swap_axes
    Draw gene sets as rows, where long names are easiest to read; ``False`` draws groups as rows.
{max_name_length}
{values_key}
{ax}
{figure}
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
    If cells have no group, ``gene_sets`` is empty or given together with ``n_gene_sets``,
    ``n_gene_sets`` is below 1, or the presence was written by another model than the annotation.
{ax_raises}

Notes
-----
``ax``, ``figsize``, ``show``, ``save`` and ``return_fig`` are the same in all plots.

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
    dpi: int = 300,
    return_fig: bool = False,
    **kwargs: Any,
) -> Figure | dict[str, Axes] | None:
    """Dot plot of gene sets in groups of cells.

    :class:`scanpy.pl.DotPlot` on :func:`tosica.get.attention`. Values are contributions to the
    label's score, or attention. Colour is the mean z-score in the group. Size is the share of its
    cells whose value is above the mean of all cells, because no value is zero as counts are.

    Parameters
    ----------
    {parameters}
    **kwargs
        Passed to :meth:`scanpy.pl.DotPlot.style`.

    {sections}
    """
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    data = _Values(adata, groupby, gene_sets, n_gene_sets, swap_axes, max_name_length, key)
    data.z_score()
    plot = sc.pl.DotPlot(
        data.values,
        data.names,
        "group",
        expression_cutoff=0,
        **data.color_limits(),
        ax=ax,
        figsize=data.inner_size(canvas, cell=0.26, min_height=1.9),
    ).legend(
        colorbar_title=data.title("mean z-score of"),
        size_title="cells above\naverage (%)",
        width=_LEGEND,
    )
    return _draw(canvas, data, plot, {"cmap": "vlag", "dot_edge_lw": 0.3} | kwargs)


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
    dpi: int = 300,
    return_fig: bool = False,
    **kwargs: Any,
) -> Figure | dict[str, Axes] | None:
    """Matrix plot of gene sets in groups of cells, coloured by mean z-scores.

    :class:`scanpy.pl.MatrixPlot` on :func:`tosica.get.attention`. Values are contributions to the
    label's score, or attention, z-scored over all cells: white is the mean of all cells.

    Parameters
    ----------
    {parameters}
    **kwargs
        Passed to :meth:`scanpy.pl.MatrixPlot.style`.

    {sections}
    """
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    data = _Values(adata, groupby, gene_sets, n_gene_sets, swap_axes, max_name_length, key)
    data.z_score()
    plot = sc.pl.MatrixPlot(
        data.values,
        data.names,
        "group",
        **data.color_limits(),
        ax=ax,
        figsize=data.inner_size(canvas, cell=0.22),
    ).legend(title=data.title("mean z-score of"), width=_LEGEND)
    return _draw(canvas, data, plot, {"cmap": "vlag", "edge_lw": 0.2} | kwargs)


class _Values:
    """Values of the gene sets to show, as an AnnData that scanpy draws.

    Parameters
    ----------
    adata, groupby, gene_sets, n_gene_sets, swap_axes, max_name_length, key
        As in the public functions.

    Attributes
    ----------
    values
        AnnData of shape ``(n_cells, n_gene_sets)``, with short names and ``obs["group"]``.
    names, group_names
        Short names of gene sets and of groups.
    """

    def __init__(
        self,
        adata: AnnData,
        groupby: str,
        gene_sets: Sequence[str] | None,
        n_gene_sets: int | None,
        swap_axes: bool,
        max_name_length: int,
        key: str | None,
    ) -> None:
        check_count("max_name_length", max_name_length, least=10)
        check_flags(swap_axes=swap_axes)
        self._adata = adata
        self._key = resolve_key(adata, key)
        values = attention(adata, key=self._key)
        groups = read_groups(adata, groupby)
        self._sets_scale = scale_groups(adata, groupby)
        shown = choose_gene_sets(
            adata,
            groupby,
            gene_sets,
            n_gene_sets,
            key=self._key,
            n_total=_N_GENE_SETS,
            max_per_group=_MAX_PER_GROUP,
        )
        # Of gene sets with the same name, only the first is drawn.
        values = values[:, ~values.var_names.duplicated()][:, shown].copy()
        self.names = wrap(shown, max_name_length)
        values.var_names = self.names
        self.group_names = wrap(list(groups.categories), max_name_length)
        values.obs = values.obs[[]].copy()
        values.obs["group"] = pd.Categorical.from_codes(groups.codes, pd.Index(self.group_names))
        self.values = values
        self.swap_axes = swap_axes

    def title(self, prefix: str) -> str:
        """Name of the values, after the name of what is drawn of them."""
        return value_name(self._adata, self._key, prefix)

    def z_score(self) -> None:
        """Scale each gene set to mean 0 and standard deviation 1 over all cells."""
        values = np.asarray(self.values.X, dtype=np.float64)
        deviation = values.std(axis=0)
        scaled = (values - values.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        self.values.X = scaled.astype(np.float32)

    def color_limits(self) -> dict[str, float]:
        """Limits of the colours, symmetric so that white is the mean of all cells.

        Groups of one or two cells do not set them.
        """
        values, groups = np.asarray(self.values.X), self.values.obs["group"]
        means = np.array([values[groups == name].mean(axis=0) for name in self.group_names])
        limit = min(float(np.abs(means[self._sets_scale]).max()), _MAX_Z_SCORE) or 1.0
        return {"vmin": -limit, "vmax": limit}

    def inner_size(
        self, canvas: Canvas, *, cell: float, min_height: float = 1.2
    ) -> tuple[float, float] | None:
        """Inches of what scanpy draws without the names, for cells of this size.

        ``None`` if it is drawn into given axes.
        """
        if canvas.ax is not None:
            return None
        if canvas.figsize is not None:
            outer = zip(canvas.figsize, self.names_size(), strict=True)
            width, height = (max(inches - names - 2 * _MARGIN, 1.0) for inches, names in outer)
            return width, height
        rows, columns = self._rows_and_columns()
        # Two lines of text need more than a cell's height.
        row, column = (max(cell, _LINE * line_count(names)) for names in (rows, columns))
        return len(columns) * column + _LEGEND + 0.4, max(len(rows) * row, min_height)

    def names_size(self) -> tuple[float, float]:
        """Inches that names need left of the cells and below them."""
        rows, columns = self._rows_and_columns()
        return text_width(rows, _FONT_SIZE) + _TICK, text_width(columns, _FONT_SIZE) + _TICK

    def _rows_and_columns(self) -> tuple[list[str], list[str]]:
        return (self.names, self.group_names) if self.swap_axes else (self.group_names, self.names)


def _draw(
    canvas: Canvas,
    data: _Values,
    plot: sc.pl.DotPlot | sc.pl.MatrixPlot,
    style: dict[str, Any],
) -> Figure | dict[str, Axes] | None:
    """Draw a plot of scanpy, with room for the names, which scanpy puts outside of the figure."""
    plot.style(**style)
    if data.swap_axes:
        plot.swap_axes()
    plot.make_figure()
    axes = plot.get_axes()
    if canvas.ax is None:
        canvas.figure = plot.fig
        left, bottom = data.names_size()
        inner_width, inner_height = plot.fig.get_size_inches()
        width, height = inner_width + left + 2 * _MARGIN, inner_height + bottom + 2 * _MARGIN
        plot.fig.set_size_inches(width, height)
        plot.fig.subplots_adjust(
            left=(left + _MARGIN) / width,
            right=1 - _MARGIN / width,
            bottom=(bottom + _MARGIN) / height,
            top=1 - _MARGIN / height,
        )
    main = axes["mainplot_ax"]
    for label in [*main.get_xticklabels(), *main.get_yticklabels()]:
        label.set_fontsize(_FONT_SIZE)
        label.set_linespacing(1.0)
    return canvas.finish(axes)
