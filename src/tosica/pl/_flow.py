"""Alluvial plots: from labels to gene sets and genes, and from labels to predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.textpath import text_to_path

from tosica._checks import Fraction
from tosica._obs import ATTRIBUTION, GRAY, UNKNOWN, group_colors
from tosica.get import gene_sets_df, genes_df
from tosica.pl._figure import (
    LINE,
    NAME_SIZE,
    Canvas,
    FigureOptions,
    inches_of,
    plot_function,
    wrap,
)
from tosica.tl import confusion as confusion_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Unpack

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from mudata import MuData
    from numpy.typing import NDArray


# Stands between a label and its genes where no gene set has evidence.
_NO_SET = "no gene set has evidence"


@plot_function()
def flow(
    adata: AnnData | MuData,
    groups: str | Iterable[str] | None = None,
    *,
    n_gene_sets: int | None = None,
    n_genes: int | None = None,
    max_name_length: int = 45,
    key: str = ATTRIBUTION,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Alluvial plot from each label to its gene sets with evidence, and from these to their genes.

    The width of a ribbon is proportional to what the genes of the set, or the gene, add to the
    score of the label, among those that are shown. Ribbons have the colour of the group. Small
    nodes are drawn as high as their name.

    A label without evidence for any gene set is told by its genes alone, and the plot says so. A
    minus stands before those that the group expresses less than the baseline.

    Parameters
    ----------
    {attributed}
    groups
        Groups to show; by default all.
    n_gene_sets, n_genes
        Gene sets for each group and genes for each gene set, at most 8. ``None``: up to 3 and 4,
        and fewer for many groups.
    {max_name_length}
    {key}
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
    {raises}

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model)
    >>> axes = tosica.pl.flow(query, "CD19+ B", show=False)
    >>> axes.texts[0].get_text()
    'CD19+ B'
    """
    canvas = Canvas(**figure)
    genes, gene_sets = (
        genes_df(adata, groups, key=key),
        gene_sets_df(adata, groups, key=key),
    )
    names = list(genes["group"].cat.categories)
    n_gene_sets = n_gene_sets or min(3, max(1, 30 // len(names)))
    n_genes = n_genes or min(4, max(1, 60 // (len(names) * n_gene_sets)))
    colors = group_colors(adata, adata.uns[key]["groupby"])
    paths = [
        _paths(
            of_group, gene_sets[gene_sets["group"] == name][:n_gene_sets], n_genes
        ).assign(group=name)
        for name, of_group in genes.groupby("group", observed=True)
    ]
    table = pd.concat(paths).assign(
        color=lambda paths: [colors[name] for name in paths["group"]]
    )
    to_sets = table.rename(columns={"group": "source", "gene_set": "target"})
    to_sets = (
        to_sets.groupby(["source", "target", "color"], sort=False)[["value"]]
        .sum()
        .reset_index()
    )
    to_genes = table.rename(columns={"gene_set": "source", "gene": "target"})
    sets = _by_sources(to_sets, names)
    found = _by_sources(to_genes, sets)
    columns = [
        _Column(
            "label",
            names,
            wrap(names, max_name_length),
            [colors[name] for name in names],
        ),
        _Column("gene set", sets, wrap(sets, max_name_length), [GRAY] * len(sets)),
        _Column("gene", found, wrap(found, max_name_length), [GRAY] * len(found)),
    ]
    return canvas.finish(_draw_alluvial(canvas, columns, [to_sets, to_genes]))


def _paths(genes: pd.DataFrame, gene_sets: pd.DataFrame, n_genes: int) -> pd.DataFrame:
    """Gene sets of a group, their first genes, and the share of the group that takes this way."""
    if gene_sets.empty:
        # At least a trace, so that a group that nothing speaks for is drawn.
        added = genes["contribution"][:n_genes].clip(lower=1e-6)
        sign = np.where(genes["expression"][:n_genes] < 0, "−", "")
        names = sign + genes["gene"][:n_genes].to_numpy(dtype=object)
        return pd.DataFrame(
            {"gene_set": _NO_SET, "gene": names, "value": added / added.sum()}
        )
    contribution = genes.set_index("gene")["contribution"]
    parts = []
    shares = gene_sets["contribution"] / gene_sets["contribution"].sum()
    for name, leading, share in zip(
        gene_sets["gene_set"], gene_sets["genes"], shares, strict=True
    ):
        added = contribution[str(leading).split(", ")[:n_genes]]
        parts.append(
            pd.DataFrame(
                {
                    "gene_set": name,
                    "gene": added.index,
                    "value": share * added / added.sum(),
                }
            )
        )
    return pd.concat(parts)


@plot_function(min_share=Fraction(one=False))
def label_flow(
    adata: AnnData,
    labels_key: str,
    *,
    prediction_key: str = "tosica_prediction",
    min_share: float = 0.01,
    normalize: bool = True,
    max_name_length: int = 40,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Alluvial plot from each known label, or cluster, to the predictions of its cells.

    The table is that of :func:`tosica.tl.confusion`. Ribbons have the colour of the known label.
    Predictions are in the order of the labels that their cells have.

    Parameters
    ----------
    {adata}
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
    {new_figure}

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
    {raises}

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> axes = tosica.pl.label_flow(
    ...     adata, "phase", prediction_key="bulk_labels", show=False
    ... )
    >>> axes.texts[0].get_text()
    'G1'
    """
    canvas = Canvas(**figure)
    counts = confusion_table(adata, labels_key, prediction_key=prediction_key)
    shares = counts.div(counts.sum(axis=1), axis=0)
    colors, colors_predicted = (
        group_colors(adata, labels_key),
        group_colors(adata, prediction_key),
    )
    table = (shares if normalize else counts).where(
        (shares >= min_share) & (counts > 0)
    )
    table = table.rename_axis("source").reset_index()
    ribbons = table.melt("source", var_name="target", value_name="value").dropna()
    ribbons["color"] = [colors[name] for name in ribbons["source"]]
    known = list(counts.index)
    predicted = sorted(_by_sources(ribbons, known), key=lambda name: name == UNKNOWN)
    columns = [
        _Column(
            labels_key, known, wrap(known, max_name_length), [colors[n] for n in known]
        ),
        _Column(
            prediction_key,
            predicted,
            wrap(predicted, max_name_length),
            [colors_predicted[n] for n in predicted],
        ),
    ]
    return canvas.finish(_draw_alluvial(canvas, columns, [ribbons]))


# --------------------------------------------------------------------------- ribbons

# In inches: gaps between nodes, widths of nodes and of ribbons, around text and around the figure.
_GAP, _NODE, _RIBBON, _TEXT, _MARGIN = 0.045, 0.16, 1.7, 0.07, 0.12

_CURVE = [Path.CURVE4] * 3
_RIBBON_CODES = [Path.MOVETO, *_CURVE, Path.LINETO, *_CURVE, Path.CLOSEPOLY]


class _Column(NamedTuple):
    """Nodes from top to bottom, with the names to write beside them and their colours."""

    title: str
    nodes: list[str]
    names: list[str]
    colors: list[str]

    def least_heights(self) -> NDArray[np.float64]:
        """Least height of each node in inches: that of its name."""
        return LINE * 0.95 * np.array([len(name.splitlines()) for name in self.names])

    def name_width(self) -> float:
        """Inches that the names need, and the title, whose letters are larger and bold."""
        font = FontProperties(size=NAME_SIZE)
        texts = [line for name in self.names for line in name.splitlines()]
        # Measured without a figure, because the size of the figure depends on it. Letters are up
        # to an eighth wider on a screen, where their widths are rounded to whole pixels.
        measure = text_to_path.get_text_width_height_descent
        return (
            1.12
            / 72
            * max(
                measure(text, font, ismath=False)[0]
                for text in [*texts, f"{self.title}MM"]
            )
        )


def _by_sources(ribbons: pd.DataFrame, sources: list[str]) -> list[str]:
    """Order targets by the mean position of their sources, so that few ribbons cross."""
    position = ribbons["source"].map({name: i for i, name in enumerate(sources)})
    moment = (ribbons["value"] * position).groupby(ribbons["target"], sort=False).sum()
    mean = moment / ribbons.groupby("target", sort=False)["value"].sum()
    return [str(name) for name in mean.sort_values(kind="stable").index]


def _draw_alluvial(
    canvas: Canvas, columns: Sequence[_Column], flows: Sequence[pd.DataFrame]
) -> Axes:
    """Draw columns of nodes with ribbons between each and the next, in axes of any size.

    The unit of the axes is the inch. The height of a node is proportional to the flow through it,
    but at least that of its name. Names are left of the first column, and right of the others.
    """
    beside = [column.name_width() + 2 * _TEXT for column in columns]
    # Where nodes begin, and where the ribbons that leave them begin: right of inner names.
    lefts = [_MARGIN + beside[0]]
    for i in range(1, len(columns)):
        names_between = beside[i - 1] if i > 1 else 0.0
        lefts.append(lefts[-1] + _NODE + names_between + _RIBBON)
    starts = [
        left + _NODE + (room if i else 0.0)
        for i, (left, room) in enumerate(zip(lefts, beside, strict=True))
    ]
    top = _MARGIN + 2 * LINE
    width = starts[-1] + _MARGIN
    height = (
        top
        + max(1.5, 1.15 * max((c.least_heights() + _GAP).sum() for c in columns))
        + _MARGIN
    )
    ax = canvas.ax
    if ax is None:
        figure = canvas.new_figure((width, height))
        figure.set_layout_engine("none")
        ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.axis("off")
    # In axes that are smaller than needed, text shrinks with the rest.
    font_size = NAME_SIZE * min(1.0, *(inches_of(canvas.figure, ax) / (width, height)))
    spans = []
    for i, column in enumerate(columns):
        through = (
            flows[max(i - 1, 0)].groupby("target" if i else "source")["value"].sum()
        )
        spans.append(_spans(column, through, top, height - _MARGIN))
    for i, ribbons in enumerate(flows):
        _draw_ribbons(ax, ribbons, spans[i], spans[i + 1], starts[i], lefts[i + 1])
    for i, column in enumerate(columns):
        # Names of an inner column get a background, so that they are not on ribbons.
        background = starts[i] - lefts[i] - _NODE if 0 < i < len(columns) - 1 else 0.0
        _draw_nodes(
            ax, column, spans[i], lefts[i], font_size, background, is_first=i == 0
        )
    return ax


def _draw_nodes(
    ax: Axes,
    column: _Column,
    spans: pd.DataFrame,
    left: float,
    font_size: float,
    background: float,
    *,
    is_first: bool,
) -> None:
    """Draw the nodes of a column, its names on a background of some width, and its title."""
    text: Any = {
        "ha": "right" if is_first else "left",
        "va": "center",
        "linespacing": 1.0,
    }
    x = left - _TEXT if is_first else left + _NODE + _TEXT
    for node, name, color in zip(
        column.nodes, column.names, column.colors, strict=True
    ):
        top, size = spans.loc[[node]].to_numpy(float)[0]
        ax.add_patch(Rectangle((left, top), _NODE, size, color=color, linewidth=0))
        if background:
            ax.add_patch(
                Rectangle(
                    (left + _NODE, top),
                    background,
                    size,
                    color=color,
                    alpha=0.12,
                    linewidth=0,
                )
            )
        ax.text(x, top + size / 2, name, fontsize=font_size, **text)
    x = left + _NODE if is_first else left
    ax.text(
        x,
        _MARGIN + LINE / 2,
        column.title,
        fontsize=font_size + 1,
        fontweight="bold",
        **text,
    )


def _spans(
    column: _Column, through: pd.Series, top: float, bottom: float
) -> pd.DataFrame:
    """Top and bottom of each node: small nodes are as high as a line, others share the rest."""
    room = bottom - top - _GAP * (len(column.nodes) - 1)
    values = through.reindex(column.nodes).fillna(0).to_numpy()
    heights = column.least_heights()
    free = np.ones(len(values), dtype=bool)
    while free.any():
        share = (room - heights[~free].sum()) * values / max(values[free].sum(), 1e-12)
        low = free & (share < heights)
        if not low.any():
            heights[free] = share[free]
            break
        free &= ~low
    tops = top + np.concatenate([[0], np.cumsum(heights + _GAP)[:-1]])
    return pd.DataFrame({"top": tops, "height": heights}, index=column.nodes)


def _draw_ribbons(
    ax: Axes,
    ribbons: pd.DataFrame,
    source_spans: pd.DataFrame,
    target_spans: pd.DataFrame,
    start: float,
    end: float,
) -> None:
    """Draw the ribbons between two columns, from one horizontal position to another."""
    # On both sides, ribbons are in the order of their targets, then of their sources.
    sources, targets = (
        spans.index.get_indexer(pd.Index(ribbons[side]))
        for side, spans in (("source", source_spans), ("target", target_spans))
    )
    ribbons = ribbons.iloc[np.lexsort((sources, targets))]
    edges = []
    for side, spans in (("source", source_spans), ("target", target_spans)):
        values = ribbons.groupby(side)["value"]
        span = spans.loc[ribbons[side]].to_numpy().T
        until = (values.cumsum() / values.transform("sum")).to_numpy()
        size = (ribbons["value"] / values.transform("sum")).to_numpy()
        edges += [span[0] + span[1] * (until - size), span[0] + span[1] * until]
    middle = (start + end) / 2
    for a, b, c, d, color in zip(*edges, ribbons["color"], strict=True):
        upper = [(start, a), (middle, a), (middle, c), (end, c)]
        lower = [(end, d), (middle, d), (middle, b), (start, b)]
        path = Path([*upper, *lower, (start, a)], _RIBBON_CODES)
        ax.add_patch(PathPatch(path, facecolor=color, alpha=0.45, linewidth=0))
