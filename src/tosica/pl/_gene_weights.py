"""The genes of a group's gene sets as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosica._annotated import find_gene_sets
from tosica.get import top_genes_df
from tosica.pl._bar_panels import Panel, draw_panels
from tosica.pl._figure import check_save, finish, group_colors, own_axes, shorten

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WITHOUT_COLOR = "#4878a8"


def gene_weights(
    adata: AnnData,
    group: str,
    *,
    gene_sets: str | Iterable[str] | None = None,
    n_genes: int | None = None,
    n_columns: int | None = None,
    max_name_length: int = 50,
    key: str = "top_genes",
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
) -> Figure | list[Axes] | Axes | None:
    """Bars of the genes in the gene sets on which a group's label rests.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.top_genes` was run. It is not changed.
    group
        Group whose gene sets are shown.
    gene_sets
        Which of them; by default all.
    n_genes
        Genes for each gene set; by default all that :func:`tosica.tl.top_genes` kept.
    n_columns
        Panels beside each other; by default as many as have room.
    max_name_length
        Longer names are cut in the middle.
    key
        ``key_added`` of :func:`tosica.tl.top_genes`.
    ax
        Axes to draw a single gene set into, instead of a new figure.
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
    The figure if ``return_fig``; with ``show=False`` a list of axes, one a gene set, or ``ax``;
    else ``None``.

    Raises
    ------
    KeyError
        If there is no such result, or no such group or gene set in it.
    ValueError
        If ``ax`` is given for several gene sets or together with ``figsize``, or ``n_genes`` is
        below 1.
    FileNotFoundError
        If the folder of ``save`` does not exist.

    Examples
    --------
    >>> import pandas as pd
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> rows = [["B", "B cell activation", 1.5, gene, 0.4] for gene in ("CD79A", "MS4A1")]
    >>> columns = ["group", "gene_set", "gene_set_weight", "gene", "gene_weight"]
    >>> adata.uns["top_genes"] = {"table": pd.DataFrame(rows, columns=columns)}
    >>> (axes,) = tosica.pl.gene_weights(adata, "B", show=False)
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['CD79A', 'MS4A1']
    """
    path = check_save(save)
    if n_genes is not None and n_genes < 1:
        raise ValueError(f"n_genes must be at least 1, or None for all, not {n_genes}.")
    table = top_genes_df(adata, group, key=key)
    known = list(dict.fromkeys(table["gene_set"]))
    where = f"adata.uns[{key!r}] of group {group!r}"
    shown = known if gene_sets is None else find_gene_sets(gene_sets, known, where)
    if ax is not None:
        own_axes(ax, figsize, (1, 1))
        if len(shown) > 1:
            raise ValueError(
                f"ax has room for one gene set, and there are {len(shown)}: pass gene_sets=[...]."
            )
    params = adata.uns[key].get("params", {})
    groupby = params.get("groupby")
    colors = group_colors(adata, groupby) if groupby in adata.obs else {}
    titles = shorten(shown, max_name_length)
    panels = []
    for name, title in zip(shown, titles, strict=True):
        part = table[table["gene_set"] == name].head(n_genes)
        panels.append(
            Panel(
                title,
                list(part["gene"].astype(str)),
                [float(value) for value in part["gene_weight"]],
                colors.get(group, _WITHOUT_COLOR),
            )
        )
    label = "contribution (logits)" if params.get("by") == "attribution" else "weight"
    figure, axes = draw_panels(panels, label, ax=ax, figsize=figsize, n_columns=n_columns)
    drawn = axes if ax is None else ax
    return finish(figure, drawn, show=show, save=path, return_fig=return_fig, own_figure=ax is None)
