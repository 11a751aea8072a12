"""Gene sets on an embedding of the cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import scanpy as sc

from tosica._annotated import find_gene_sets, resolve_key
from tosica._validation import check_count, check_names, check_string
from tosica.get import attention
from tosica.pl._docs import fill_docs
from tosica.pl._figure import Canvas, check_cmap, group_colors, text_width
from tosica.pl._names import value_name, wrap

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import Any

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Groups with a legend of normal font size; more get a small one.
_MAX_LEGEND = 20
# In inches: width of the cells, of a colour bar, and of the dot beside a name.
_CELLS, _COLOR_BAR, _LEGEND_MARKER = 3.4, 1.0, 0.4
# Area of a dot in square points: that of scanpy for many cells, smaller for few.
_DOT_AREA, _MAX_SIZE = 120_000, 60.0


@fill_docs()
def umap(
    adata: AnnData,
    color: str | Sequence[str],
    *,
    basis: str = "umap",
    n_columns: int = 3,
    cmap: str = "viridis",
    max_name_length: int = 38,
    key: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    dpi: int = 300,
    return_fig: bool = False,
    **kwargs: Any,
) -> Figure | list[Axes] | Axes | None:
    """Contributions of gene sets, or attention to them, and columns of ``adata.obs``, on a UMAP.

    This is :func:`scanpy.pl.embedding` on :func:`tosica.get.attention`, with wrapped names.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated, with an embedding in ``adata.obsm``. It is not
        changed.
    color
        Gene set, column of ``adata.obs``, or a list of both.
    basis
        Embedding to draw, ``adata.obsm[f"X_{basis}"]``.
    n_columns
        Panels side by side.
    cmap
        Colour map of gene sets and numeric columns.
    {max_name_length}
    {values_key}
    ax
        Axes to draw a single panel into, instead of a new figure.
    {figure}
    **kwargs
        Passed to :func:`scanpy.pl.embedding`, such as ``size`` or ``vmax="p99"``.

    Returns
    -------
    The figure if ``return_fig``; with ``show=False`` a list of axes, or ``ax``; else ``None``.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, has no such embedding, or no gene set or
        column of such a name.
    ValueError
        If ``ax`` is given for several panels, or the presence was written by another model than the
        annotation.
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
    >>> axes = tosica.pl.umap(adata, ["bulk_labels", "phagocytosis"], show=False)
    >>> [ax.get_title() for ax in axes]
    ['bulk_labels', 'phagocytosis']
    """
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    check_string("basis", basis)
    check_cmap(cmap)
    check_count("n_columns", n_columns)
    check_count("max_name_length", max_name_length, least=10)
    colors = check_names("color", color)
    key = resolve_key(adata, key)
    by_set = attention(adata, key=key)
    if f"X_{basis}" not in adata.obsm:
        raise KeyError(
            f"adata.obsm has no 'X_{basis}': run scanpy.pp.neighbors and scanpy.tl.{basis} first."
        )
    columns = [name for name in colors if name in adata.obs]
    rest = [name for name in colors if name not in adata.obs]
    if rest or not colors:
        where = f"adata.uns[{key!r}]['gene_sets'], and no such column in adata.obs"
        find_gene_sets(rest, list(by_set.var_names), where)
    # Of gene sets with the same name, only the first is drawn.
    by_set = by_set[:, ~by_set.var_names.duplicated()].copy()
    for name in columns:
        if f"{name}_colors" not in by_set.uns and not _is_number(by_set, name):
            by_set.obs[name] = by_set.obs[name].astype("category")
            by_set.uns[f"{name}_colors"] = list(group_colors(by_set, name).values())
    if ax is not None and len(colors) > 1:
        raise ValueError(f"ax has room for one panel, and color names {len(colors)}.")
    groups = [name for name in columns if not _is_number(by_set, name)]
    if ax is None:
        legend = max((_legend_width(by_set, name) for name in groups), default=0.0)
        axes = _new_axes(canvas, len(colors), n_columns, legend)
    else:
        axes = [ax]
    titles = wrap(colors, max_name_length)
    defaults = {"frameon": False, "size": min(_MAX_SIZE, _DOT_AREA / by_set.n_obs)}
    for panel, name, title in zip(axes, colors, titles, strict=True):
        sc.pl.embedding(
            by_set,
            basis,
            color=name,
            title=title,
            ax=panel,
            show=False,
            cmap=cmap,
            **(defaults | {"legend_fontsize": _legend_font(by_set, name)} | kwargs),
        )
        # A vector file of many dots could not be opened: they are an image in it.
        for dots in panel.collections:
            dots.set_rasterized(True)
        panel.set_title(title, fontsize=10)
        bar = panel.collections[0].colorbar if name in rest else None
        if bar is not None:
            bar.set_label(value_name(adata, key), fontsize=8)
    return canvas.finish(axes if ax is None else ax)


def _is_number(adata: AnnData, name: str) -> bool:
    return adata.obs[name].dtype.kind in "fiu"


def _legend_font(adata: AnnData, name: str) -> float:
    is_large = name in adata.obs and adata.obs[name].nunique() > _MAX_LEGEND
    return 5.5 if is_large else 8


def _legend_width(adata: AnnData, name: str) -> float:
    """Inches of the legend that scanpy draws right of the cells, in columns of at most 15 names."""
    names = [str(value) for value in adata.obs[name].unique()]
    n_columns = 1 if len(names) <= 14 else 2 if len(names) <= 30 else 3
    return n_columns * (text_width(names, _legend_font(adata, name)) + _LEGEND_MARKER)


def _new_axes(canvas: Canvas, n_panels: int, n_columns: int, legend: float) -> list[Axes]:
    n_columns = min(n_panels, n_columns)
    n_rows = -(-n_panels // n_columns)
    width = _CELLS + max(legend, _COLOR_BAR)
    figure = canvas.new_figure((width * n_columns, 3.6 * n_rows), "constrained")
    axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for unused in axes[n_panels:]:
        unused.remove()
    return list(axes[:n_panels])
