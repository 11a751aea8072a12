"""Heatmaps and dots: the evidence for gene sets in groups of cells, and confusion of labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_rgb
from matplotlib.ticker import MaxNLocator
from scipy.cluster.hierarchy import dendrogram, linkage

from tosica._limits import LIMITS
from tosica._obs import ATTRIBUTION, find_gene_sets, group_colors, read_attribution
from tosica.get import gene_sets_df
from tosica.pl._figure import (
    NAME_SIZE,
    TITLE_SIZE,
    Canvas,
    FigureOptions,
    cell_size,
    fit_names,
    inches_of,
    name_cells,
    plot_function,
    wrap,
)
from tosica.tl import confusion as confusion_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    import pandas as pd
    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from mudata import MuData
    from numpy.typing import NDArray

# Colours end at this z: stronger evidence needs no telling apart.
_MAX_Z = 12.0
_BAR = f"evidence (z)\n{{}}: adjusted p ≤ {LIMITS.pvalue:g}"
# In inches: a cell of the dot plot, the strip of colours, and the tree.
_DOT, _STRIP, _TREE = 0.26, 0.13, 0.5


@plot_function()
def gene_set_heatmap(
    adata: AnnData | MuData,
    *,
    gene_sets: Sequence[str] | None = None,
    n_gene_sets: int | None = None,
    cluster_groups: bool = True,
    cmap: str | Colormap = "vlag",
    vmin: float | None = None,
    vmax: float | None = None,
    max_name_length: int = 50,
    key: str = ATTRIBUTION,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Heatmap of the evidence for gene sets (rows) in the groups of cells (columns).

    The colour is ``z``, the statistic of :func:`tosica.tl.attribute`: how much more the genes of the
    set add to the label's score than other genes do, without the strongest of them. A dot marks
    where this is evidence, at a family-wise error rate of 5 %. The strip has the colours of the
    groups, ``adata.uns[f"{groupby}_colors"]``.

    Parameters
    ----------
    {attributed}
    gene_sets
        Gene sets to show, in this order, of those with evidence in any group. By default the first
        of each group in :func:`tosica.get.gene_sets_df`, in the order of the groups in which they
        are highest.
    n_gene_sets
        Number of gene sets for each group. ``None``: as many as make about 36 in all, from 1 to 5.
    cluster_groups
        Order groups by average linkage of Euclidean distances, and draw the tree.
    cmap
        Colour map.
    vmin, vmax
        Values where the colours end. By default they are symmetric around 0, so that white is no
        more than other genes, and at most 12. An arrow at the colour bar shows that there are
        values beyond.
    {max_name_length}
    {key}
    {figure}

    Returns
    -------
    {returns}

    Raises
    ------
    KeyError
        If there is no such result, or a gene set has no evidence in any group.
    ValueError
        If no gene set has evidence, or ``gene_sets`` is empty or given together with
        ``n_gene_sets``.
    {raises}

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model)
    >>> axes = tosica.pl.gene_set_heatmap(query, show=False)
    >>> len(axes.get_xticklabels()) == query.obs["tosica_prediction"].nunique()
    True
    """
    canvas = Canvas(**figure)
    shown = _Evidence(adata, key, gene_sets, n_gene_sets)
    tree = shown.cluster_groups() if cluster_groups and len(shown.groups) > 2 else None
    if gene_sets is None:
        shown.make_diagonal()
    rows, columns = (
        wrap(list(shown.z.index), max_name_length),
        wrap(shown.groups, max_name_length),
    )
    cell = cell_size(rows, columns, 0.175)
    # The colour bar needs some height.
    size = max(cell * len(columns), 0.9), max(cell * len(rows), 1.3)
    ax = canvas.axes((size[0] + 6, size[1] + 4))
    name_cells(ax, rows, columns)
    mesh = ax.pcolormesh(shown.z.to_numpy(), cmap=cmap, norm=shown.norm(vmin, vmax))
    y, x = np.nonzero(shown.has_evidence())
    ax.scatter(x + 0.5, y + 0.5, s=7, color="white", edgecolors="black", linewidths=0.5)
    ax.spines[:].set_visible(False)
    strip = ax.inset_axes((0, 1 + 0.03 / size[1], 1, _STRIP / size[1]))
    strip.pcolormesh(np.array([[to_rgb(shown.colors[name]) for name in shown.groups]]))
    strip.axis("off")
    if tree is not None:
        _draw_tree(
            ax.inset_axes((0, 1 + (_STRIP + 0.05) / size[1], 1, _TREE / size[1])), tree
        )
    canvas.add_bar(ax, size, mesh, _BAR.format("dot"))
    canvas.fit(ax, size)
    fit_names(ax)
    return canvas.finish(ax)


@plot_function()
def gene_set_dotplot(
    adata: AnnData | MuData,
    *,
    gene_sets: Sequence[str] | None = None,
    n_gene_sets: int | None = None,
    cmap: str | Colormap = "vlag",
    vmin: float | None = None,
    vmax: float | None = None,
    max_name_length: int = 50,
    key: str = ATTRIBUTION,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Dot plot of gene sets (rows) in the groups of cells (columns).

    The colour is that of :func:`tosica.pl.gene_set_heatmap`. The area of a dot is what the genes of
    the set that the group expresses more than the baseline add to the label's score together, in
    logits. A black ring marks evidence, at a family-wise error rate of 5 %.

    Parameters
    ----------
    {attributed}
    gene_sets
        Gene sets to show, in this order, of those with evidence in any group; by default as in
        :func:`tosica.pl.gene_set_heatmap`.
    n_gene_sets
        Number of gene sets for each group. ``None``: as many as make about 36 in all, from 1 to 5.
    cmap
        Colour map.
    vmin, vmax
        Values where the colours end, as in :func:`tosica.pl.gene_set_heatmap`.
    {max_name_length}
    {key}
    {figure}

    Returns
    -------
    {returns}

    Raises
    ------
    KeyError
        If there is no such result, or a gene set has no evidence in any group.
    ValueError
        If no gene set has evidence, or ``gene_sets`` is empty or given together with
        ``n_gene_sets``.
    {raises}

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model)
    >>> axes = tosica.pl.gene_set_dotplot(query, n_gene_sets=1, show=False)
    >>> len(axes.get_xticklabels()) == query.obs["tosica_prediction"].nunique()
    True
    """
    canvas = Canvas(**figure)
    shown = _Evidence(adata, key, gene_sets, n_gene_sets)
    if gene_sets is None:
        shown.make_diagonal()
    names = (
        wrap(list(shown.z.index), max_name_length),
        wrap(shown.groups, max_name_length),
    )
    # The legend needs some height.
    cell = min(_DOT, cell_size(*names, _DOT))
    size = max(cell * len(names[1]), 0.9), max(cell * len(names[0]), 2.2)
    ax = canvas.axes((size[0] + 6, size[1] + 4))
    name_cells(ax, *names)
    y, x = (index.ravel() for index in np.indices(shown.z.shape))
    is_evident = shown.has_evidence().ravel()
    edges: Any = {
        "edgecolors": np.where(is_evident, "black", "0.7"),
        "linewidths": np.where(is_evident, 1.0, 0.3),
    }
    added = shown.contribution.to_numpy().clip(0)
    # The largest dot nearly fills its cell.
    area = (0.9 * 72 * _DOT) ** 2 / (added.max() or 1.0)
    norm, z = shown.norm(vmin, vmax), shown.z.to_numpy().ravel()
    dots = ax.scatter(
        x + 0.5, y + 0.5, s=area * added.ravel(), c=z, cmap=cmap, norm=norm, **edges
    )
    bar: Any = canvas.add_bar(ax, size, dots, _BAR.format("ring"))
    # Sizes as contributions.

    def to_contribution(sizes: Any) -> Any:
        return sizes / area

    sizes: Any = dots.legend_elements(
        "sizes", MaxNLocator(3), color="0.6", func=to_contribution
    )
    small: Any = {
        "fontsize": NAME_SIZE,
        "title_fontsize": NAME_SIZE,
        "labelspacing": 0.8,
        "frameon": False,
    }
    place: Any = {"loc": "upper left", "bbox_to_anchor": (-0.3, -0.1)}
    legend = bar.legend(*sizes, title="contribution\n(logits)", **place, **small)
    canvas.fit(ax, size)
    fit_names(ax)
    # In a small figure, dots shrink with their cells.
    room = min(
        1.0, float((inches_of(canvas.figure, ax) / shown.z.shape[::-1]).min() / _DOT)
    )
    dots.set_sizes(dots.get_sizes() * room**2)
    for handle in legend.legend_handles:
        handle.set_markersize(handle.get_markersize() * room)
    return canvas.finish(ax)


class _Evidence:
    """What is drawn of ``tl.attribute``: gene sets × groups of ``z`` and of the contribution."""

    def __init__(
        self,
        adata: AnnData | MuData,
        key: str,
        gene_sets: Sequence[str] | None,
        n_gene_sets: int | None,
    ) -> None:
        record = read_attribution(adata, key)
        self._table = gene_sets_df(adata, similar=True, key=key)
        self.groups = [str(name) for name in self._table["group"].cat.categories]
        known = [str(name) for name in record["z"].index]
        where = f"those with evidence in adata.uns[{key!r}]"
        chosen = choose_gene_sets(
            adata, key, gene_sets, n_gene_sets, known, where, (36, 5)
        )
        rows = [known.index(name) for name in chosen]
        self.z, self.contribution = (
            record[name].iloc[rows].set_axis(self.groups, axis="columns")
            for name in ("z", "contribution")
        )
        self.colors = group_colors(adata, record["groupby"])

    def has_evidence(self) -> NDArray[np.bool_]:
        """Which set has evidence in which group."""
        pairs = set(zip(self._table["gene_set"], self._table["group"], strict=True))
        return np.array(
            [[(name, group) in pairs for group in self.groups] for name in self.z.index]
        )

    def cluster_groups(self) -> dict[str, Any]:
        """Put similar groups side by side, and return their tree."""
        tree = dendrogram(linkage(self.z.T.to_numpy(), method="average"), no_plot=True)
        self.groups = [self.groups[i] for i in tree["leaves"]]
        self.z, self.contribution = self.z[self.groups], self.contribution[self.groups]
        return dict(tree)

    def make_diagonal(self) -> None:
        """Order gene sets by the group in which they are highest."""
        values = self.z.to_numpy()
        order = np.lexsort((-values.max(axis=1), values.argmax(axis=1)))
        self.z, self.contribution = self.z.iloc[order], self.contribution.iloc[order]

    def norm(self, vmin: float | None, vmax: float | None) -> Normalize:
        """Limits of the colours: the given ones, or symmetric around 0."""
        high = min(float(np.abs(self.z.to_numpy()).max()), _MAX_Z) or 1.0
        return Normalize(
            -high if vmin is None else vmin, high if vmax is None else vmax
        )


def _draw_tree(ax: Axes, tree: dict[str, Any]) -> None:
    """Draw a tree whose leaves are the columns of the heatmap."""
    ax.axis("off")
    # scipy puts the leaves at 5, 15, 25 and so on.
    position, height = np.array(tree["icoord"]) / 10, np.array(tree["dcoord"])
    lines = list(np.stack([position, height], axis=-1))
    ax.add_collection(
        LineCollection(lines, colors=plt.rcParams["text.color"], linewidths=0.7)
    )
    ax.set(xlim=(0, len(tree["leaves"])), ylim=(0, 1.02 * height.max()))


def choose_gene_sets(
    adata: AnnData | MuData,
    key: str,
    gene_sets: Sequence[str] | None,
    n_gene_sets: int | None,
    known: list[str],
    where: str,
    default: tuple[int, int],
) -> list[str]:
    """Name the gene sets to show: those that the user asks for, or the first of each group.

    Parameters
    ----------
    adata, key
        Data that were explained, and where.
    gene_sets, n_gene_sets
        What the user asks for.
    known, where
        Gene sets that can be shown, and where these are from.
    default
        Number of gene sets of all groups together, and at most for each, if the user asks for none.

    Raises
    ------
    KeyError
        If a gene set is not known.
    ValueError
        If both are given, or no gene set has evidence.
    """
    if gene_sets is not None:
        if n_gene_sets is not None:
            raise ValueError(
                "gene_sets says which gene sets to show: leave n_gene_sets out."
            )
        return find_gene_sets(gene_sets, known, where)
    table = gene_sets_df(adata, key=key)
    if table.empty:
        raise ValueError(
            f"No gene set has evidence in any group of adata.uns[{key!r}]: these are told by their genes, "
            "which tosica.pl.top_genes draws."
        )
    total, most = default
    n = n_gene_sets or min(most, max(1, total // len(table["group"].cat.categories)))
    return list(
        dict.fromkeys(table.groupby("group", observed=True).head(n)["gene_set"])
    )


# --------------------------------------------------------------------------- confusion

# By default, numbers are written for at most this many rows and columns.
_MAX_NUMBERS = 25


@plot_function()
def confusion(
    adata: AnnData,
    labels_key: str,
    *,
    prediction_key: str = "tosica_prediction",
    normalize: bool = True,
    annotate: bool | None = None,
    cmap: str | Colormap = "mako_r",
    max_name_length: int = 40,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Heatmap of known labels (rows) against predictions (columns).

    The table is that of :func:`tosica.tl.confusion`: labels are in the order of their categories on
    both axes, so that correct predictions are on the diagonal, and ``"Unknown"`` is last.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated and whose labels are known. It is not changed.
    labels_key
        Column of ``adata.obs`` with the known labels.
    prediction_key
        Column of ``adata.obs`` with the predictions.
    normalize
        Show shares of the cells of each row, from 0 to 1, instead of numbers of cells.
    annotate
        Write the numbers into the heatmap, except zeros. ``None`` does so if there are at most 25
        rows and 25 columns and the numbers fit.
    cmap
        Colour map. The default has steadily falling lightness, so it is readable in greyscale.
    {max_name_length}
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
        If cells have no label or no prediction.
    {raises}

    Examples
    --------
    Predictions that are wrong for all stem cells (CD34+) stand for what ``model.annotate`` writes.

    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata = adata[
    ...     adata.obs["bulk_labels"].isin(["CD19+ B", "CD34+", "CD56+ NK"])
    ... ].copy()
    >>> mistaken = adata.obs["bulk_labels"].astype(str).replace({"CD34+": "CD19+ B"})
    >>> adata.obs["tosica_prediction"] = mistaken
    >>> axes = tosica.pl.confusion(adata, "bulk_labels", show=False)
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['CD19+ B', 'CD34+', 'CD56+ NK']
    """
    canvas = Canvas(**figure)
    table = confusion_table(
        adata, labels_key, prediction_key=prediction_key, normalize=normalize
    )
    with_numbers = max(table.shape) <= _MAX_NUMBERS if annotate is None else annotate
    rows, columns = (
        wrap(list(names), max_name_length) for names in (table.index, table.columns)
    )
    # Wide enough for a number of four characters, or for a line of text or two.
    cell = cell_size(
        rows, columns, 0.65 if max(table.shape) <= 4 else 0.42 if with_numbers else 0.19
    )
    size = cell * len(columns), cell * len(rows)
    ax = canvas.axes((size[0] + 6, size[1] + 4))
    name_cells(ax, rows, columns)
    # In a new figure, the cells are made square by its size.
    if canvas.ax is not None or canvas.figsize is not None:
        ax.set_aspect("equal")
    lines: Any = {"edgecolors": "white", "linewidth": 0.5} if with_numbers else {}
    mesh = ax.pcolormesh(
        table.to_numpy(), cmap=cmap, vmin=0, vmax=1 if normalize else None, **lines
    )
    ax.spines[:].set_visible(False)
    ax.set_xlabel(prediction_key, fontsize=TITLE_SIZE)
    ax.set_ylabel(labels_key, fontsize=TITLE_SIZE)
    ticks = MaxNLocator(nbins=5, integer=not normalize)
    canvas.add_bar(
        ax, size, mesh, "share of row" if normalize else "cells", ticks=ticks
    )
    canvas.fit(ax, size)
    fit_names(ax)
    if with_numbers:
        _write_numbers(canvas, ax, table, mesh, drop_if_small=annotate is None)
    return canvas.finish(ax)


def _write_numbers(
    canvas: Canvas,
    ax: Axes,
    table: pd.DataFrame,
    mesh: QuadMesh,
    *,
    drop_if_small: bool,
) -> None:
    """Write numbers as large as fits into the cells: none for zero, so that errors are easy to find."""
    numbers = {
        place: value for place, value in np.ndenumerate(table.to_numpy()) if value
    }
    if table.dtypes.iloc[0].kind == "f":
        texts = [
            f"{value:.2f}" if value >= 0.005 else "<.01" for value in numbers.values()
        ]
    else:
        texts = [str(value) for value in numbers.values()]
    # A digit is 0.64 times as wide as the letters are high.
    room = 0.85 * 72 * inches_of(canvas.figure, ax)[0] / table.shape[1]
    size = min(NAME_SIZE - 0.5, room / 0.64 / max(map(len, texts)))
    if drop_if_small and size < 5:
        return
    for ((row, column), value), text in zip(numbers.items(), texts, strict=True):
        is_dark = np.dot(mesh.to_rgba(value)[:3], (0.21, 0.72, 0.07)) < 0.4
        color = "white" if is_dark else "0.15"
        ax.text(
            column + 0.5,
            row + 0.5,
            text,
            size=size,
            color=color,
            ha="center",
            va="center",
        )
