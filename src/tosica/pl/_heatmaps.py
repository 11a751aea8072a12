"""Heatmap and dot plot of the evidence for gene sets in groups of cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_rgb
from matplotlib.ticker import MaxNLocator
from scipy.cluster.hierarchy import dendrogram, linkage

from tosica._limits import LIMITS
from tosica._obs import ATTRIBUTION, group_colors, read_attribution
from tosica.get import gene_sets_df
from tosica.pl._figure import Canvas, FigureOptions
from tosica.pl._gene_sets import SET_CONTRIBUTION, choose_gene_sets
from tosica.pl._names import (
    NAME_SIZE,
    cell_size,
    inches_of,
    name_cells,
    wrap,
)
from tosica.pl._plot_function import plot_function

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

    from tosica._types import AnnOrMuData, BoolArray

# Colors end at this z: stronger evidence needs no telling apart.
_MAX_Z = 12.0
# In inches: a cell of the heatmap and of the dot plot, the strip of colors, and the tree.
_CELL = 0.175
_DOT = 0.26
_STRIP = 0.13
_TREE = 0.5


@plot_function()
def gene_set_heatmap(
    adata: AnnOrMuData,
    *,
    gene_sets: Sequence[str] | None = None,
    n_gene_sets: int | None = None,
    cluster_groups: bool = True,
    cmap: str | Colormap = "vlag",
    vmin: float | None = None,
    vmax: float | None = None,
    key: str = ATTRIBUTION,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Heatmap of the evidence for gene sets (rows) in the groups of cells (columns).

    The color is ``z``, the statistic of :func:`tosica.tl.attribute`: how much more the genes of the
    set add to the label's score than other genes do, without the strongest of them. A dot marks
    where this is evidence, at a family-wise error rate of 5 %. The strip has the colors of the
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
        Color map.
    vmin, vmax
        Values where the colors end. By default they are symmetric around 0, so that white is no
        more than other genes, and at most 12. An arrow at the color bar shows that there are
        values beyond.
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
    evidence = _Evidence(adata, key, gene_sets, n_gene_sets, canvas.n_rows(36))
    tree = None
    if cluster_groups and len(evidence.groups) > 2:
        tree = evidence.cluster_groups()
    if gene_sets is None:
        evidence.make_diagonal()
    rows, columns = evidence.names(canvas.line_length(50))
    cell = cell_size(rows, columns, _CELL)
    # The color bar needs some height.
    size = max(cell * len(columns), 0.9), max(cell * len(rows), 1.3)
    ax = canvas.axes((size[0] + 6, size[1] + 4))
    name_cells(ax, rows, columns)
    mesh = ax.pcolormesh(
        evidence.z.to_numpy(), cmap=cmap, norm=evidence.norm(vmin, vmax)
    )
    y, x = np.nonzero(evidence.has_evidence())
    ax.scatter(x + 0.5, y + 0.5, s=7, color="white", edgecolors="black", linewidths=0.5)
    ax.spines[:].set_visible(False)
    strip = ax.inset_axes((0, 1 + 0.03 / size[1], 1, _STRIP / size[1]))
    colors = [to_rgb(evidence.colors[name]) for name in evidence.groups]
    strip.pcolormesh(np.array([colors]))
    strip.axis("off")
    if tree is not None:
        bottom = 1 + (_STRIP + 0.05) / size[1]
        tree_axes = ax.inset_axes((0, bottom, 1, _TREE / size[1]))
        tree_axes.axis("off")
        # scipy puts the leaves at 5, 15, 25 and so on.
        position = np.array(tree["icoord"]) / 10
        height = np.array(tree["dcoord"])
        lines = LineCollection(
            list(np.stack([position, height], axis=-1)),
            colors=plt.rcParams["text.color"],
            linewidths=0.7,
        )
        tree_axes.add_collection(lines)
        tree_axes.set(xlim=(0, len(tree["leaves"])), ylim=(0, 1.02 * height.max()))
    canvas.add_colorbar(ax, size, mesh, _bar_title("dot"))
    canvas.fit(ax, size)
    canvas.fit_names(ax)
    return canvas.finish(ax)


@plot_function()
def gene_set_dotplot(
    adata: AnnOrMuData,
    *,
    gene_sets: Sequence[str] | None = None,
    n_gene_sets: int | None = None,
    cmap: str | Colormap = "vlag",
    vmin: float | None = None,
    vmax: float | None = None,
    key: str = ATTRIBUTION,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Dot plot of gene sets (rows) in the groups of cells (columns).

    The color is that of :func:`tosica.pl.gene_set_heatmap`. The area of a dot is the mean of the violin
    in :func:`tosica.pl.gene_set_violin`: what the genes of the set that cells express more than the
    baseline add to the label's score together, in logits. Nothing is drawn below 0. A
    black ring marks evidence, at a family-wise error rate of 5 %.

    Parameters
    ----------
    {attributed}
    gene_sets
        Gene sets to show, in this order, of those with evidence in any group; by default as in
        :func:`tosica.pl.gene_set_heatmap`.
    n_gene_sets
        Number of gene sets for each group. ``None``: as many as make about 36 in all, from 1 to 5.
    cmap
        Color map.
    vmin, vmax
        Values where the colors end, as in :func:`tosica.pl.gene_set_heatmap`.
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
    evidence = _Evidence(adata, key, gene_sets, n_gene_sets, canvas.n_rows(36))
    if gene_sets is None:
        evidence.make_diagonal()
    rows, columns = evidence.names(canvas.line_length(50))
    # The legend needs some height.
    cell = min(_DOT, cell_size(rows, columns, _DOT))
    size = max(cell * len(columns), 0.9), max(cell * len(rows), 2.2)
    ax = canvas.axes((size[0] + 6, size[1] + 4))
    name_cells(ax, rows, columns)
    y, x = np.indices(evidence.z.shape).reshape(2, -1)
    contribution = evidence.contribution.to_numpy().clip(0).ravel()
    # The largest dot nearly fills its cell.
    area = (0.9 * 72 * _DOT) ** 2 / (contribution.max() or 1.0)
    has_ring = evidence.has_evidence().ravel()
    dots: Any = ax.scatter(
        x + 0.5,
        y + 0.5,
        s=area * contribution,
        c=evidence.z.to_numpy().ravel(),
        cmap=cmap,
        norm=evidence.norm(vmin, vmax),
        edgecolors=np.where(has_ring, "black", "0.7").tolist(),
        linewidths=np.where(has_ring, 1.0, 0.3).tolist(),
    )
    bar = canvas.add_colorbar(ax, size, dots, _bar_title("ring"))
    legend = _add_size_legend(bar, dots, area, NAME_SIZE * canvas.text_scale)
    canvas.fit(ax, size)
    canvas.fit_names(ax)
    # In a small figure, dots shrink with their cells.
    cell_inches = inches_of(canvas.figure, ax) / evidence.z.shape[::-1]
    scale = min(1.0, float(cell_inches.min() / _DOT))
    dots.set_sizes(dots.get_sizes() * scale**2)
    dots.set_linewidths(scale * np.asarray(dots.get_linewidths()))
    for handle in legend.legend_handles:
        handle.set_markersize(handle.get_markersize() * scale)
    return canvas.finish(ax)


def _bar_title(mark: str) -> str:
    """Title of the color bar, with the mark of evidence."""
    return f"evidence (z)\n{mark}: adjusted p ≤ {LIMITS.pvalue:g}"


def _add_size_legend(
    bar: Axes, dots: PathCollection, area: float, font_size: float
) -> Any:
    """Explain the sizes of dots below the color bar; ``area`` is that of one logit."""
    handles, labels = dots.legend_elements(
        "sizes", MaxNLocator(3), color="0.6", func=lambda sizes: np.divide(sizes, area)
    )
    return bar.legend(
        handles,
        labels,
        title=SET_CONTRIBUTION,
        loc="upper left",
        bbox_to_anchor=(-0.3, -0.1),
        fontsize=font_size,
        title_fontsize=font_size,
        labelspacing=0.8,
        frameon=False,
    )


class _Evidence:
    """Gene sets × groups of ``z`` and of the contribution, as ``tl.attribute`` computed them."""

    def __init__(
        self,
        adata: AnnOrMuData,
        key: str,
        gene_sets: Sequence[str] | None,
        n_gene_sets: int | None,
        default_total: int,
    ) -> None:
        record = read_attribution(adata, key)
        self._table = gene_sets_df(adata, similar=True, key=key)
        self.groups = [str(name) for name in self._table["group"].cat.categories]
        available = [str(name) for name in record["z"].index]
        chosen_sets = choose_gene_sets(
            adata,
            key,
            gene_sets,
            n_gene_sets,
            available=available,
            where=f"those with evidence in adata.uns[{key!r}]",
            default_total=default_total,
            default_most=5,
        )
        rows = [available.index(name) for name in chosen_sets]
        # In a file, columns have bars in place of slashes.
        self.z = record["z"].iloc[rows].set_axis(self.groups, axis="columns")
        contribution = record["contribution"].iloc[rows]
        self.contribution = contribution.set_axis(self.groups, axis="columns")
        self.colors = group_colors(adata, record["groupby"])

    def names(self, max_length: int) -> tuple[list[str], list[str]]:
        """Wrapped names of gene sets and groups."""
        return wrap(list(self.z.index), max_length), wrap(self.groups, max_length)

    def has_evidence(self) -> BoolArray:
        """Whether there is evidence for a set in a group, ``(n_sets, n_groups)``."""
        pairs = set(zip(self._table["gene_set"], self._table["group"], strict=True))
        return np.array(
            [[(name, group) in pairs for group in self.groups] for name in self.z.index]
        )

    def cluster_groups(self) -> dict[str, Any]:
        """Put similar groups side by side, and return their tree."""
        tree = dendrogram(linkage(self.z.T.to_numpy(), method="average"), no_plot=True)
        self.groups = [self.groups[i] for i in tree["leaves"]]
        self.z = self.z[self.groups]
        self.contribution = self.contribution[self.groups]
        return dict(tree)

    def make_diagonal(self) -> None:
        """Order gene sets by the group in which they are highest."""
        values = self.z.to_numpy()
        order = np.lexsort((-values.max(axis=1), values.argmax(axis=1)))
        self.z = self.z.iloc[order]
        self.contribution = self.contribution.iloc[order]

    def norm(self, vmin: float | None, vmax: float | None) -> Normalize:
        """Limits of the colors: those that are asked for, or symmetric around 0."""
        limit = min(float(np.abs(self.z.to_numpy()).max()), _MAX_Z) or 1.0
        return Normalize(
            -limit if vmin is None else vmin, limit if vmax is None else vmax
        )
