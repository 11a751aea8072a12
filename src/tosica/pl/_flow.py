"""Flow of contributions from labels to gene sets and genes, and of labels between columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica._constants import UNKNOWN
from tosica.get import top_genes_df
from tosica.pl._alluvial import (
    Column,
    Ribbon,
    draw_alluvial,
    inch_axes,
    ordered_by_sources,
    size_of,
)
from tosica.pl._figure import check_save, finish, group_colors, own_axes, shorten
from tosica.tl import confusion as confusion_table

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Nodes to aim at in the columns of gene sets and of genes.
_ALL_GENE_SETS, _MOST_GENE_SETS = 30, 3
_ALL_GENES, _MOST_GENES = 60, 4
_GREY = "#8c8c8c"


def flow(
    adata: AnnData,
    groups: str | Iterable[str] | None = None,
    *,
    n_gene_sets: int | None = None,
    n_genes: int | None = None,
    max_name_length: int = 45,
    key: str = "top_genes",
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
) -> Figure | Axes | None:
    """Ribbons from each label to its gene sets, and from these to their genes.

    A group's ribbons share its height in proportion to the weights of its gene sets among those
    that are shown, a gene set's in proportion to its genes'. Ribbons keep the group's colour as
    far as the genes; small nodes are drawn as high as their name.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.top_genes` was run. It is not changed.
    groups
        Groups to show; by default all.
    n_gene_sets, n_genes
        Gene sets for each group and genes for each gene set, of those that
        :func:`tosica.tl.top_genes` kept. ``None``: up to 3 and 4, and fewer for many groups.
    max_name_length
        Longer names are cut in the middle.
    key
        ``key_added`` of :func:`tosica.tl.top_genes`.
    ax
        Axes to draw into, instead of a new figure. Text shrinks where they are small.
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
        If there is no such result, or no such group in it.
    ValueError
        If ``ax`` and ``figsize`` are both given, or a number is below 1.
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
    >>> axes = tosica.pl.flow(adata, show=False)
    >>> [text.get_text() for text in axes.texts]
    ['B', 'label', 'B cell activation', 'gene set', 'CD79A', 'MS4A1', 'gene']
    """
    path = check_save(save)
    for name, number in {"n_gene_sets": n_gene_sets, "n_genes": n_genes}.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, or None, not {number}.")
    table = top_genes_df(adata, groups, key=key)
    table = table.astype({"group": str, "gene_set": str, "gene": str})
    names = list(dict.fromkeys(table["group"]))
    table = _cut(table, len(names), n_gene_sets, n_genes)
    groupby = adata.uns[key].get("params", {}).get("groupby")
    colors = group_colors(adata, groupby) if groupby in adata.obs else {}

    to_sets, to_genes = _ribbons(table, colors)
    sets = ordered_by_sources(to_sets, list(dict.fromkeys(table["gene_set"])), names)
    genes = ordered_by_sources(to_genes, list(dict.fromkeys(table["gene"])), sets)
    columns = [
        Column("label", names, shorten(names, max_name_length),
               [colors.get(name, _GREY) for name in names]),
        Column("gene set", sets, shorten(sets, max_name_length), [_GREY] * len(sets)),
        Column("gene", genes, shorten(genes, max_name_length), [_GREY] * len(genes)),
    ]  # fmt: skip
    flows = [to_sets, to_genes]
    own_figure = ax is None
    if ax is None:
        ax = inch_axes(figsize or size_of(columns, flows))
    figure, ax, _ = own_axes(ax, None if own_figure else figsize, (1, 1))
    draw_alluvial(ax, columns, flows)
    return finish(figure, ax, show=show, save=path, return_fig=return_fig, own_figure=own_figure)


def _cut(
    table: pd.DataFrame, n_groups: int, n_gene_sets: int | None, n_genes: int | None
) -> pd.DataFrame:
    """Keep the heaviest gene sets of each group, and the heaviest genes of these."""
    if n_gene_sets is None:
        n_gene_sets = min(_MOST_GENE_SETS, max(1, _ALL_GENE_SETS // n_groups))
    if n_genes is None:
        n_genes = min(_MOST_GENES, max(1, _ALL_GENES // (n_groups * n_gene_sets)))
    parts = []
    for _, part in table.groupby("group", sort=False):
        chosen = list(dict.fromkeys(part["gene_set"]))[:n_gene_sets]
        parts += [part[part["gene_set"] == name].head(n_genes) for name in chosen]
    return pd.concat(parts, ignore_index=True)


def _ribbons(table: pd.DataFrame, colors: dict[str, str]) -> tuple[list[Ribbon], list[Ribbon]]:
    to_sets, to_genes = [], []
    for group, of_group in table.groupby("group", sort=False):
        weights = of_group.drop_duplicates("gene_set").set_index("gene_set")["gene_set_weight"]
        shares = weights / weights.sum()
        color = colors.get(str(group), _GREY)
        for name, part in of_group.groupby("gene_set", sort=False):
            share = float(shares[name])
            to_sets.append(Ribbon(str(group), str(name), share, color))
            of_set = part["gene_weight"] / part["gene_weight"].sum()
            to_genes += [
                Ribbon(str(name), gene, share * float(value), color)
                for gene, value in zip(part["gene"], of_set, strict=True)
            ]
    return to_sets, to_genes


def label_flow(
    adata: AnnData,
    labels_key: str,
    *,
    prediction_key: str = "tosica_prediction",
    min_share: float = 0.01,
    normalize: bool = True,
    max_name_length: int = 40,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
) -> Figure | Axes | None:
    """Ribbons from each known label, or cluster, to the predictions of its cells.

    The table is that of :func:`tosica.tl.confusion`. Ribbons have the colour of the known label,
    and predictions lie opposite of the labels that they come from.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated. It is not changed.
    labels_key
        Column of ``adata.obs`` with known labels or clusters.
    prediction_key
        Column of ``adata.obs`` with the predictions.
    min_share
        Ribbons with a smaller share of a known label's cells are left out.
    normalize
        Make all known labels equally high, so that rare ones can be seen; ``False`` makes them as
        high as their number of cells.
    max_name_length
        Longer names are cut in the middle.
    ax
        Axes to draw into, instead of a new figure. Text shrinks where they are small.
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
        If a column cannot be read as labels.
    ValueError
        If cells have no label, ``ax`` and ``figsize`` are both given, or ``min_share`` is not
        between 0 and 1.
    FileNotFoundError
        If the folder of ``save`` does not exist.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> axes = tosica.pl.label_flow(adata, "phase", prediction_key="bulk_labels", show=False)
    >>> axes.texts[0].get_text()
    'G1'
    """
    path = check_save(save)
    if not 0 <= min_share < 1:
        raise ValueError(f"min_share must lie between 0 and 1, not {min_share}.")
    counts = confusion_table(adata, labels_key, prediction_key=prediction_key)
    shares = counts.div(counts.sum(axis=1), axis=0)
    counts = counts.where(shares >= min_share, 0)
    table = shares.where(shares >= min_share, 0.0) if normalize else counts.astype(float)
    known = list(table.index)
    predicted = [name for name in table.columns if table[name].sum() > 0]
    place = np.arange(len(known))
    middle = {name: np.average(place, weights=table[name]) for name in predicted}
    predicted.sort(key=lambda name: (name == UNKNOWN, middle[name]))
    left, right = group_colors(adata, labels_key), group_colors(adata, prediction_key)
    ribbons = [
        Ribbon(name, other, float(table.loc[name, other]), left[name])
        for name in known
        for other in predicted
        if table.loc[name, other] > 0
    ]
    columns = [
        Column(labels_key, known, shorten(known, max_name_length), [left[name] for name in known]),
        Column(prediction_key, predicted, shorten(predicted, max_name_length),
               [right[name] for name in predicted]),
    ]  # fmt: skip
    own_figure = ax is None
    if ax is None:
        ax = inch_axes(figsize or size_of(columns, [ribbons]))
    figure, ax, _ = own_axes(ax, None if own_figure else figsize, (1, 1))
    draw_alluvial(ax, columns, [ribbons])
    return finish(figure, ax, show=show, save=path, return_fig=return_fig, own_figure=own_figure)
