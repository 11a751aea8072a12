"""Alluvial plots: from labels to gene sets and genes, and from labels to predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica._constants import UNKNOWN
from tosica._palette import GRAY
from tosica._validation import check_count, check_flags, check_fraction, check_names
from tosica.get import top_genes_df
from tosica.pl._alluvial import Column, Ribbon, draw_alluvial, ordered_by_sources
from tosica.pl._docs import fill_docs
from tosica.pl._figure import Canvas, group_colors
from tosica.pl._names import wrap
from tosica.tl import confusion as confusion_table

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Default number of nodes, of all groups together, and at most for each group or gene set.
_N_GENE_SETS, _MAX_GENE_SETS = 30, 3
_N_GENES, _MAX_GENES = 60, 4


@fill_docs()
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
    dpi: int = 300,
    return_fig: bool = False,
) -> Figure | Axes | None:
    """Alluvial plot from each label to its gene sets, and from these to their genes.

    The width of a ribbon is proportional to the weight of the gene set in the group, or of the gene
    in the gene set, among those that are shown. Ribbons have the colour of the group. Small nodes
    are drawn as high as their name.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.top_genes` was run. It is not changed.
    groups
        Groups to show; by default all.
    n_gene_sets, n_genes
        Gene sets for each group and genes for each gene set, of those that
        :func:`tosica.tl.top_genes` kept. ``None``: up to 3 and 4, and fewer for many groups.
    {max_name_length}
    key
        ``key_added`` of :func:`tosica.tl.top_genes`.
    ax
        Axes to draw into, instead of a new figure. Text shrinks if they are small.
    {figure}

    Returns
    -------
    {returns}

    Raises
    ------
    KeyError
        If there is no such result, or no such group in it.
    ValueError
        If ``n_gene_sets`` or ``n_genes`` is below 1.
    {ax_raises}

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
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    check_count("n_gene_sets", n_gene_sets, optional=True)
    check_count("n_genes", n_genes, optional=True)
    check_count("max_name_length", max_name_length, least=10)
    groups = None if groups is None else check_names("groups", groups)
    table = top_genes_df(adata, groups, key=key)
    table = table.astype({"group": str, "gene_set": str, "gene": str})
    names = list(dict.fromkeys(table["group"]))
    table = _cut(table, len(names), n_gene_sets, n_genes)
    groupby = adata.uns[key].get("params", {}).get("groupby")
    colors = group_colors(adata, groupby) if groupby in adata.obs else {}

    to_sets, to_genes = _ribbons(table, colors)
    sets = ordered_by_sources(to_sets, list(dict.fromkeys(table["gene_set"])), names)
    genes = ordered_by_sources(to_genes, list(dict.fromkeys(table["gene"])), sets)
    group_column = Column(
        "label",
        names,
        wrap(names, max_name_length),
        [colors.get(name, GRAY) for name in names],
    )
    columns = [
        group_column,
        Column("gene set", sets, wrap(sets, max_name_length), [GRAY] * len(sets)),
        Column("gene", genes, wrap(genes, max_name_length), [GRAY] * len(genes)),
    ]
    return canvas.finish(draw_alluvial(canvas, columns, [to_sets, to_genes]))


def _cut(
    table: pd.DataFrame, n_groups: int, n_gene_sets: int | None, n_genes: int | None
) -> pd.DataFrame:
    """Keep the first gene sets of each group, and the first genes of each gene set."""
    if n_gene_sets is None:
        n_gene_sets = min(_MAX_GENE_SETS, max(1, _N_GENE_SETS // n_groups))
    if n_genes is None:
        n_genes = min(_MAX_GENES, max(1, _N_GENES // (n_groups * n_gene_sets)))
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
        color = colors.get(str(group), GRAY)
        for name, part in of_group.groupby("gene_set", sort=False):
            share = float(shares[name])
            to_sets.append(Ribbon(str(group), str(name), share, color))
            of_set = part["gene_weight"] / part["gene_weight"].sum()
            to_genes += [
                Ribbon(str(name), gene, share * float(value), color)
                for gene, value in zip(part["gene"], of_set, strict=True)
            ]
    return to_sets, to_genes


@fill_docs()
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
    dpi: int = 300,
    return_fig: bool = False,
) -> Figure | Axes | None:
    """Alluvial plot from each known label, or cluster, to the predictions of its cells.

    The table is that of :func:`tosica.tl.confusion`. Ribbons have the colour of the known label.
    Predictions are in the order of the labels that their cells have.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated. It is not changed.
    labels_key
        Column of ``adata.obs`` with known labels or clusters.
    prediction_key
        Column of ``adata.obs`` with the predictions.
    min_share
        Ribbons with a smaller share of the cells of a known label are left out.
    normalize
        Make all known labels equally high, so that rare labels are visible. ``False`` makes heights
        proportional to numbers of cells.
    {max_name_length}
    ax
        Axes to draw into, instead of a new figure. Text shrinks if they are small.
    {figure}

    Returns
    -------
    {returns}

    Raises
    ------
    KeyError
        If a column is missing.
    TypeError
        If a column cannot be read as labels.
    ValueError
        If cells have no label, or ``min_share`` is not between 0 and 1.
    {ax_raises}

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> axes = tosica.pl.label_flow(adata, "phase", prediction_key="bulk_labels", show=False)
    >>> axes.texts[0].get_text()
    'G1'
    """
    canvas = Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)
    check_fraction("min_share", min_share, one=False)
    check_flags(normalize=normalize)
    check_count("max_name_length", max_name_length, least=10)
    counts = confusion_table(adata, labels_key, prediction_key=prediction_key)
    shares = counts.div(counts.sum(axis=1), axis=0)
    counts = counts.where(shares >= min_share, 0)
    table = shares.where(shares >= min_share, 0.0) if normalize else counts.astype(float)
    known = list(table.index)
    predicted = [name for name in table.columns if table[name].sum() > 0]
    position = np.arange(len(known))
    mean_position = {name: np.average(position, weights=table[name]) for name in predicted}
    predicted.sort(key=lambda name: (name == UNKNOWN, mean_position[name]))
    known_colors = group_colors(adata, labels_key)
    predicted_colors = group_colors(adata, prediction_key)
    ribbons = [
        Ribbon(name, other, float(table.loc[name, other]), known_colors[name])
        for name in known
        for other in predicted
        if table.loc[name, other] > 0
    ]
    columns = [
        Column(title, names, wrap(names, max_name_length), [colors[name] for name in names])
        for title, names, colors in (
            (labels_key, known, known_colors),
            (prediction_key, predicted, predicted_colors),
        )
    ]
    return canvas.finish(draw_alluvial(canvas, columns, [ribbons]))
