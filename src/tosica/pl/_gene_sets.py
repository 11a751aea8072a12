"""Gene sets in groups of cells: heatmap and dots of the evidence, violins and an embedding of cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import scanpy as sc
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_rgb
from matplotlib.ticker import MaxNLocator
from scipy.cluster.hierarchy import dendrogram, linkage

from tosica._checks import Integer, Names, String, as_names
from tosica._limits import LIMITS
from tosica._obs import ATTRIBUTION, find_gene_sets, read_attribution, read_groups
from tosica.get import contributions, gene_sets_df
from tosica.pl._figure import (
    LINE,
    NAME_SIZE,
    TITLE_SIZE,
    Canvas,
    FigureOptions,
    fit_names,
    group_colors,
    inches_of,
    line_count,
    plot_function,
)
from tosica.pl._names import wrap

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from mudata import MuData
    from numpy.typing import NDArray

# Colours end at this z: stronger evidence needs no telling apart.
_MAX_Z = 12.0
# In inches: a cell of the dot plot, the strip of colours, and the tree.
_DOT, _STRIP, _TREE = 0.26, 0.13, 0.5
# Groups with fewer cells have no distribution: each of their cells is a dot.
MIN_CELLS = 5
# Groups with a legend of normal font size; more get a small one.
_MAX_LEGEND = 20


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
    where this is evidence, at a false discovery rate of 5 %. The strip has the colours of the
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
    cell = max(0.175, LINE * line_count(wrap([*shown.z.index, *shown.groups], max_name_length)))
    ax, size = _new_table(canvas, shown, (cell, cell), max_name_length, above=_STRIP + (_TREE if tree else 0) + 0.1)
    mesh = ax.pcolormesh(shown.z.to_numpy(), cmap=cmap, norm=shown.norm(vmin, vmax))
    rows, columns = np.nonzero(shown.has_evidence())
    ax.scatter(columns + 0.5, rows + 0.5, s=7, color="white", edgecolors="black", linewidths=0.5)
    ax.spines[:].set_visible(False)
    strip = ax.inset_axes((0, 1 + 0.03 / size[1], 1, _STRIP / size[1]))
    strip.pcolormesh(np.array([[to_rgb(shown.colors[name]) for name in shown.groups]]))
    strip.axis("off")
    if tree is not None:
        _draw_tree(ax.inset_axes((0, 1 + (_STRIP + 0.05) / size[1], 1, _TREE / size[1])), tree)
    _add_bar(canvas, ax, size, mesh, "dot")
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
    logits. A black ring marks evidence, at a false discovery rate of 5 %.

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
    ax, size = _new_table(canvas, shown, (_DOT, _DOT), max_name_length)
    rows, columns = (index.ravel() for index in np.indices(shown.z.shape))
    added = shown.contribution.to_numpy().clip(0)
    # The largest dot nearly fills its cell.
    area = (0.9 * 72 * _DOT) ** 2 / (added.max() or 1.0)
    dots = ax.scatter(
        columns + 0.5,
        rows + 0.5,
        s=area * added.ravel(),
        c=shown.z.to_numpy().ravel(),
        cmap=cmap,
        norm=shown.norm(vmin, vmax),
        edgecolors=np.where(shown.has_evidence().ravel(), "black", "0.7"),
        linewidths=np.where(shown.has_evidence().ravel(), 1.0, 0.3),
    )
    bar = _add_bar(canvas, ax, size, dots, "ring")
    legend = bar.legend(
        *dots.legend_elements("sizes", MaxNLocator(3), color="0.6", func=lambda sizes: sizes / area),
        title="contribution\n(logits)",
        loc="upper left",
        bbox_to_anchor=(-0.3, -0.1),
        borderpad=0,
        handletextpad=0.4,
        labelspacing=0.8,
        frameon=False,
        fontsize=NAME_SIZE,
        title_fontsize=NAME_SIZE,
    )
    canvas.fit(ax, size)
    fit_names(ax)
    # In a small figure, dots shrink with their cells.
    room = min(1.0, float((inches_of(canvas.figure, ax) / shown.z.shape[::-1]).min() / _DOT))
    dots.set_sizes(dots.get_sizes() * room**2)
    for handle in legend.legend_handles:
        handle.set_markersize(handle.get_markersize() * room)  # type: ignore[union-attr]
    return canvas.finish(ax)


class _Evidence:
    """What is drawn of ``tl.attribute``: gene sets × groups of ``z`` and of the contribution."""

    def __init__(
        self, adata: AnnData | MuData, key: str, gene_sets: Sequence[str] | None, n_gene_sets: int | None
    ) -> None:
        record = read_attribution(adata, key)
        self._table = gene_sets_df(adata, similar=True, key=key)
        self.groups = [str(name) for name in self._table["group"].cat.categories]
        known = [str(name) for name in record["z"].index]
        where = f"those with evidence in adata.uns[{key!r}]"
        chosen = choose_gene_sets(adata, key, gene_sets, n_gene_sets, known, where, (36, 5))
        rows = [known.index(name) for name in chosen]
        self.z, self.contribution = (
            record[name].iloc[rows].set_axis(self.groups, axis="columns") for name in ("z", "contribution")
        )
        self.colors = group_colors(adata, record["groupby"])

    def has_evidence(self) -> NDArray[np.bool_]:
        """Which set has evidence in which group."""
        pairs = set(zip(self._table["gene_set"], self._table["group"], strict=True))
        return np.array([[(name, group) in pairs for group in self.groups] for name in self.z.index])

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
        return Normalize(-high if vmin is None else vmin, high if vmax is None else vmax)


def _new_table(
    canvas: Canvas, shown: _Evidence, cell: tuple[float, float], max_name_length: int, above: float = 0.0
) -> tuple[Axes, tuple[float, float]]:
    """Make axes of named unit cells, and say how many inches they should have."""
    rows, columns = (wrap(list(names), max_name_length) for names in (shown.z.index, shown.groups))
    # The colour bar and the legend need some height.
    size = max(cell[0] * len(columns), 0.9), max(cell[1] * len(rows), 2.2)
    ax = canvas.axes((size[0] + 4, size[1] + above + 3))
    ax.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=90)
    ax.tick_params(labelsize=NAME_SIZE, length=2)
    ax.grid(False)
    return ax, size


def _add_bar(canvas: Canvas, ax: Axes, size: tuple[float, float], drawn: Any, mark: str) -> Axes:
    """Add a short colour bar beside the first rows, with arrows where there are values beyond."""
    low, high = drawn.get_array().min() < drawn.norm.vmin, drawn.get_array().max() > drawn.norm.vmax
    width, height = size if canvas.ax is None else inches_of(canvas.figure, ax)
    bar = canvas.figure.colorbar(
        drawn,
        ax=ax,
        extend={(True, True): "both", (True, False): "min", (False, True): "max"}.get((low, high), "neither"),
        # 0.15 × 1.3 inches, a little away from the cells.
        fraction=0.15 / width,
        pad=0.12 / width,
        shrink=min(1.0, 1.3 / height),
        aspect=1.3 / 0.15,
        anchor=(0, 1),
    )
    bar.ax.set_title(f"evidence (z)\n{mark}: adjusted p ≤ {LIMITS.pvalue:g}", fontsize=NAME_SIZE, loc="left")
    bar.ax.tick_params(labelsize=NAME_SIZE - 1)
    bar.outline.set_visible(False)  # type: ignore[operator]
    return bar.ax


def _draw_tree(ax: Axes, tree: dict[str, Any]) -> None:
    """Draw a tree whose leaves are the columns of the heatmap."""
    ax.axis("off")
    # scipy puts the leaves at 5, 15, 25 and so on.
    position, height = np.array(tree["icoord"]) / 10, np.array(tree["dcoord"])
    lines = list(np.stack([position, height], axis=-1))
    ax.add_collection(LineCollection(lines, colors=plt.rcParams["text.color"], linewidths=0.7))
    ax.set(xlim=(0, len(tree["leaves"])), ylim=(0, 1.02 * height.max()))


@plot_function()
def gene_set_violin(
    adata: AnnData | MuData,
    groupby: str,
    *,
    gene_sets: Sequence[str] | None = None,
    n_gene_sets: int | None = None,
    n_columns: int | None = None,
    max_name_length: int = 36,
    key: str = ATTRIBUTION,
    **figure: Unpack[FigureOptions],
) -> Figure | list[Axes] | Axes | None:
    """Violin plots of what gene sets add in the cells of each group, with a panel for each gene set.

    A violin is the distribution over the cells of a group and has its colour; the dot is the
    median, and the thick line spans the quartiles. Groups of fewer than five cells are drawn as
    dots only. The dashed line is at 0: no contribution.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.attribute` was run with ``cells=True``. It is not changed.
    groupby
        Column of ``adata.obs`` with the groups, such as ``"tosica_prediction"``.
    gene_sets
        Gene sets to show, in this order; by default the first of each group that was explained, as
        in :func:`tosica.get.gene_sets_df`.
    n_gene_sets
        Number of gene sets for each group. ``None``: as many as make about 9 in all, at most 2.
    n_columns
        Panels side by side; by default at most 3.
    {max_name_length}
    {key}
    ax
        Axes to draw a single gene set into, instead of a new figure.
    {new_figure}

    Returns
    -------
    {returns_panels}

    Raises
    ------
    KeyError
        If there is no such result for each cell, or ``groupby`` or a gene set is missing.
    TypeError
        If ``groupby`` cannot be read as groups.
    ValueError
        If cells have no group, ``gene_sets`` is empty or given together with ``n_gene_sets``, or
        ``ax`` is given for several gene sets.
    {raises}

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model, cells=True)
    >>> gene_set = query.uns["tosica_attribution"]["gene_sets"][0]
    >>> axes = tosica.pl.gene_set_violin(query, "phase", gene_sets=gene_set, show=False)
    >>> [label.get_text() for label in axes[0].get_yticklabels()]
    ['G1', 'G2M', 'S']
    """
    canvas = Canvas(**figure)
    groups = read_groups(adata, groupby)
    by_set = _contributions(adata, key)
    where = f"adata.uns[{key!r}]['gene_sets']"
    shown = choose_gene_sets(adata, key, gene_sets, n_gene_sets, list(by_set.var_names), where, (9, 2))
    canvas.only_one(len(shown), "gene set", "pass gene_sets=[...]")
    names = wrap(list(groups.categories), max_name_length)
    height = max(0.24, LINE * line_count(names)) * (len(names) + 0.4)
    axes = canvas.panels(len(shown), n_columns or 3, (3.5, height + 1), sharey=True)
    colors = group_colors(adata, groupby)
    for panel, name, title in zip(axes, shown, wrap(shown, max_name_length), strict=True):
        values = np.asarray(by_set[:, name].X, dtype=np.float64)[:, 0]
        for position, group in enumerate(groups.categories):
            _draw_violin(panel, values[groups == group], position, colors[group])
        panel.axvline(0, color=plt.rcParams["text.color"], linewidth=0.8, linestyle="--", zorder=0)
        panel.set_title(title, fontsize=TITLE_SIZE, linespacing=1.05)
        panel.set_yticks(range(len(names)), names, fontsize=NAME_SIZE, linespacing=1.0)
        panel.set_ylim(len(names) - 0.4, -0.6)
        panel.tick_params(axis="y", length=0)
        panel.tick_params(axis="x", labelsize=NAME_SIZE)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.grid(False)
    label = axes[0].set_xlabel if len(axes) == 1 else canvas.figure.supxlabel
    label("contribution (logits)", fontsize=NAME_SIZE)
    canvas.fit(axes[0], (2.2, height))
    return canvas.finish(axes if canvas.ax is None else canvas.ax)


def _draw_violin(ax: Axes, cells: NDArray[np.float64], position: int, color: str) -> None:
    """Draw a violin for the cells of a group, or dots if they are few."""
    edge = plt.rcParams["text.color"]
    if len(cells) < MIN_CELLS:
        few: Any = {"markerfacecolor": color, "markeredgecolor": edge, "markeredgewidth": 0.5}
        ax.plot(cells, np.full(len(cells), position), "o", markersize=4.5, **few)
        return
    violin: Any = ax.violinplot([cells], [position], orientation="horizontal", widths=0.85, showextrema=False)
    for body in violin["bodies"]:
        body.set(facecolor=color, edgecolor=edge, linewidth=0.5, alpha=0.85)
    low, median, high = np.percentile(cells, [25, 50, 75])
    ax.plot([low, high], [position, position], color=edge, linewidth=2.2)
    ax.plot([median], [position], "o", markersize=3.5, color=plt.rcParams["axes.facecolor"], markeredgecolor=edge)


@plot_function(color=Names(), basis=String(), n_columns=Integer())
def umap(
    adata: AnnData | MuData,
    color: str | Sequence[str],
    *,
    basis: str = "umap",
    n_columns: int = 3,
    cmap: str = "viridis",
    max_name_length: int = 38,
    key: str = ATTRIBUTION,
    **kwargs: Any,
) -> Figure | list[Axes] | Axes | None:
    """What gene sets add in each cell, and columns of ``adata.obs``, on a UMAP.

    This is :func:`scanpy.pl.embedding` on :func:`tosica.get.contributions`, with wrapped names.

    Parameters
    ----------
    adata
        Data with an embedding in ``adata.obsm`` and, for gene sets, the result of
        :func:`tosica.tl.attribute` with ``cells=True``. It is not changed.
    color
        Gene set, column of ``adata.obs``, or a list of both.
    basis
        Embedding to draw, ``adata.obsm[f"X_{basis}"]``.
    n_columns
        Panels side by side.
    cmap
        Colour map of gene sets and numeric columns.
    {max_name_length}
    {key}
    ax
        Axes to draw a single panel into, instead of a new figure.
    {new_figure}
    **kwargs
        Passed to :func:`scanpy.pl.embedding`, such as ``size`` or ``vmax="p99"``.

    Returns
    -------
    {returns_panels}

    Raises
    ------
    KeyError
        If there is no such result for each cell, no such embedding, or no gene set or column of
        such a name.
    ValueError
        If ``ax`` is given for several panels.
    {raises}

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model, cells=True)
    >>> gene_set = query.uns["tosica_attribution"]["gene_sets"][0]
    >>> axes = tosica.pl.umap(query, ["bulk_labels", gene_set], show=False)
    >>> axes[1].get_title() == gene_set
    True
    """
    figure: Any = {name: kwargs.pop(name) for name in list(kwargs) if name in FigureOptions.__annotations__}
    canvas = Canvas(**figure)
    colors = as_names(color)
    if f"X_{basis}" not in adata.obsm:
        raise KeyError(f"adata.obsm has no 'X_{basis}': run scanpy.pp.neighbors and scanpy.tl.{basis} first.")
    of_sets = [name for name in colors if name not in adata.obs]
    cells = sc.AnnData(obs=adata.obs.copy(), obsm={f"X_{basis}": adata.obsm[f"X_{basis}"]})
    if of_sets or not colors:
        by_set = _contributions(adata, key)
        where = f"adata.uns[{key!r}]['gene_sets'], and no such column in adata.obs"
        cells = by_set[:, find_gene_sets(of_sets, list(by_set.var_names), where)].copy()
    canvas.only_one(len(colors), "panel", "name one color")
    groups = [n for n in colors if n in adata.obs and adata.obs[n].dtype.kind not in "fiu"]
    for name in groups:
        cells.obs[name] = cells.obs[name].astype("category")
        cells.uns[f"{name}_colors"] = list(group_colors(adata, name).values())
    axes = canvas.panels(len(colors), n_columns, (5.0, 3.6))
    for panel, name, title in zip(axes, colors, wrap(colors, max_name_length), strict=True):
        is_large = name in groups and cells.obs[name].nunique() > _MAX_LEGEND
        options = {
            "frameon": False,
            "size": min(60.0, 120_000 / cells.n_obs),
            "legend_fontsize": 5.5 if is_large else 8,
        }
        sc.pl.embedding(cells, basis, color=name, title=title, ax=panel, show=False, cmap=cmap, **options | kwargs)
        # A vector file of many dots could not be opened: they are an image in it.
        for dots in panel.collections:
            dots.set_rasterized(True)
        panel.set_title(title, fontsize=TITLE_SIZE)
        bar = panel.collections[0].colorbar if name in of_sets else None
        if bar is not None:
            bar.set_label("contribution (logits)", fontsize=8)
    canvas.fit(axes[0], (3.2, 3.2))
    return canvas.finish(axes if canvas.ax is None else canvas.ax)


# --------------------------------------------------------------------------- which gene sets


def _contributions(adata: AnnData | MuData, key: str) -> AnnData:
    """Cells × gene sets of ``tl.attribute``; of sets with the same name, only the first is drawn."""
    read_attribution(adata, key)
    by_set = contributions(adata, key=key)
    return by_set[:, ~by_set.var_names.duplicated()]


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
            raise ValueError("gene_sets says which gene sets to show: leave n_gene_sets out.")
        return find_gene_sets(gene_sets, known, where)
    table = gene_sets_df(adata, key=key)
    if table.empty:
        raise ValueError(
            f"No gene set has evidence in any group of adata.uns[{key!r}]: these are told by their genes, "
            "which tosica.pl.top_genes draws."
        )
    total, most = default
    n = n_gene_sets or min(most, max(1, total // len(table["group"].cat.categories)))
    return list(dict.fromkeys(table.groupby("group", observed=True).head(n)["gene_set"]))
