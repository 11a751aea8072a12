"""Alluvial plots: from labels to gene sets and genes, and from labels to predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.textpath import text_to_path

from tosica._obs import ATTRIBUTION, GRAY, UNKNOWN, group_colors
from tosica._validate import Fraction
from tosica.get import gene_sets_df, genes_df
from tosica.pl._figure import Canvas, FigureOptions
from tosica.pl._names import LINE, NAME_SIZE, inches_of, wrap
from tosica.pl._plot_function import plot_function
from tosica.tl import confusion as confusion_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Unpack

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tosica._types import AnnOrMuData, FloatArray


# Stands between a label and its genes where no gene set has evidence.
_NO_SET = "no gene set has evidence"


@plot_function()
def flow(
    adata: AnnOrMuData,
    groups: str | Iterable[str] | None = None,
    *,
    n_gene_sets: int | None = None,
    n_genes: int | None = None,
    key: str = ATTRIBUTION,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Alluvial plot from each label to its gene sets with evidence, and from these to their genes.

    The width of a ribbon is proportional to what the genes of the set, or the gene, add to the
    score of the label, among those that are shown. Ribbons have the color of the group. Small
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
    genes = genes_df(adata, groups, key=key)
    gene_sets = gene_sets_df(adata, groups, key=key)
    group_names = list(genes["group"].cat.categories)
    n_groups = len(group_names)
    if n_gene_sets is None:
        n_gene_sets = min(3, max(1, 30 // n_groups))
    if n_genes is None:
        n_genes = min(4, max(1, 60 // (n_groups * n_gene_sets)))
    colors = group_colors(adata, adata.uns[key]["groupby"])
    tables = []
    for group, genes_of_group in genes.groupby("group", observed=True):
        sets_of_group = gene_sets[gene_sets["group"] == group][:n_gene_sets]
        table = _paths(genes_of_group, sets_of_group, n_genes)
        tables.append(table.assign(group=group, color=colors[str(group)]))
    paths = pd.concat(tables)
    to_sets = (
        paths.rename(columns={"group": "source", "gene_set": "target"})
        .groupby(["source", "target", "color"], sort=False)[["value"]]
        .sum()
        .reset_index()
    )
    to_genes = paths.rename(columns={"gene_set": "source", "gene": "target"})
    set_names = _by_sources(to_sets, group_names)
    gene_names = _by_sources(to_genes, set_names)
    max_name_length = canvas.line_length(45)
    columns = []
    for title, nodes in (
        ("label", group_names),
        ("gene set", set_names),
        ("gene", gene_names),
    ):
        palette = [colors[name] if title == "label" else GRAY for name in nodes]
        columns.append(_Column(title, nodes, wrap(nodes, max_name_length), palette))
    return canvas.finish(_draw_alluvial(canvas, columns, [to_sets, to_genes]))


def _paths(genes: pd.DataFrame, gene_sets: pd.DataFrame, n_genes: int) -> pd.DataFrame:
    """Gene sets of a group, their first genes, and the share of the group that takes this way."""
    if gene_sets.empty:
        genes = genes[:n_genes]
        # At least a trace, so that a group that nothing speaks for is drawn.
        contribution = genes["contribution"].clip(lower=1e-6)
        sign = np.where(genes["expression"] < 0, "−", "")
        return pd.DataFrame(
            {
                "gene_set": _NO_SET,
                "gene": sign + genes["gene"].to_numpy(dtype=object),
                "value": contribution / contribution.sum(),
            }
        )
    contribution_of = genes.set_index("gene")["contribution"]
    shares = gene_sets["contribution"] / gene_sets["contribution"].sum()
    tables = []
    for gene_set, leading_genes, share in zip(
        gene_sets["gene_set"], gene_sets["genes"], shares, strict=True
    ):
        contribution = contribution_of[str(leading_genes).split(", ")[:n_genes]]
        value = share * contribution / contribution.sum()
        tables.append(
            pd.DataFrame(
                {"gene_set": gene_set, "gene": contribution.index, "value": value}
            )
        )
    return pd.concat(tables)


@plot_function(min_share=Fraction(one=False))
def label_flow(
    adata: AnnData,
    labels_key: str,
    *,
    prediction_key: str = "tosica_prediction",
    min_share: float = 0.01,
    normalize: bool = True,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Alluvial plot from each known label, or cluster, to the predictions of its cells.

    The table is that of :func:`tosica.tl.confusion`. Ribbons have the color of the known label.
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
        If cells have no label, ``min_share`` is not between 0 and 1, or all shares are below it.
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
    label_colors = group_colors(adata, labels_key)
    prediction_colors = group_colors(adata, prediction_key)
    values = shares if normalize else counts
    is_drawn = (shares >= min_share) & (counts > 0)
    if not is_drawn.to_numpy().any():
        largest = float(shares.to_numpy().max())
        raise ValueError(
            f"No prediction has min_share={min_share:g} of the cells of a label in adata.obs[{labels_key!r}]: "
            f"lower min_share, since the largest share is {largest:.3g}."
        )
    labels = list(counts.index)
    # By prediction, then by label.
    targets, sources = np.nonzero(is_drawn.to_numpy().T)
    ribbons = pd.DataFrame(
        {
            "source": counts.index[sources],
            "target": counts.columns[targets],
            "value": values.to_numpy()[sources, targets],
            "color": [label_colors[labels[source]] for source in sources],
        }
    )
    predictions = _by_sources(ribbons, labels)
    predictions.sort(key=lambda name: name == UNKNOWN)
    max_name_length = canvas.line_length(40)
    columns = []
    for title, nodes, colors in (
        (labels_key, labels, label_colors),
        (prediction_key, predictions, prediction_colors),
    ):
        palette = [colors[name] for name in nodes]
        columns.append(_Column(title, nodes, wrap(nodes, max_name_length), palette))
    return canvas.finish(_draw_alluvial(canvas, columns, [ribbons]))


# --------------------------------------------------------------------------- columns of nodes

# In inches: between nodes, widths of nodes and of ribbons, around text and around the figure.
_GAP = 0.045
_NODE = 0.16
_RIBBON = 1.7
_TEXT = 0.07
_MARGIN = 0.12


class _Column(NamedTuple):
    """Nodes from top to bottom, with the names to write beside them and their colors."""

    title: str
    nodes: list[str]
    names: list[str]
    colors: list[str]

    def least_heights(self) -> FloatArray:
        """Least height of each node in inches: that of its name."""
        return LINE * 0.95 * np.array([len(name.splitlines()) for name in self.names])

    def name_width(self) -> float:
        """Inches that the names need, and the title, whose letters are larger and bold."""
        texts = [line for name in self.names for line in name.splitlines()]
        # Measured without a figure, because the size of the figure depends on it. Letters are up
        # to an eighth wider on a screen, where their widths are rounded to whole pixels.
        font = FontProperties(size=NAME_SIZE)
        widths = [
            text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]
            for text in (*texts, f"{self.title}MM")
        ]
        return 1.12 / 72 * max(widths)


def _by_sources(ribbons: pd.DataFrame, sources: list[str]) -> list[str]:
    """Order targets by the mean position of their sources, so that few ribbons cross."""
    position = ribbons["source"].map({name: i for i, name in enumerate(sources)})
    moment = (ribbons["value"] * position).groupby(ribbons["target"], sort=False).sum()
    mean = moment / ribbons.groupby("target", sort=False)["value"].sum()
    return [str(name) for name in mean.sort_values(kind="stable").index]


# --------------------------------------------------------------------------- layout


def _draw_alluvial(
    canvas: Canvas, columns: Sequence[_Column], flows: Sequence[pd.DataFrame]
) -> Axes:
    """Draw columns of nodes with ribbons between each and the next, in axes of any size.

    The unit of the axes is the inch. The height of a node is proportional to the flow through it,
    but at least that of its name. Names are left of the first column, and right of the others.
    """
    name_widths = [column.name_width() + 2 * _TEXT for column in columns]
    # Left edges of the nodes, and of the ribbons that leave them: right of inner names.
    lefts = [_MARGIN + name_widths[0]]
    ribbon_lefts = [lefts[0] + _NODE]
    for name_width in name_widths[1:]:
        lefts.append(ribbon_lefts[-1] + _RIBBON)
        ribbon_lefts.append(lefts[-1] + _NODE + name_width)
    top = _MARGIN + 2 * LINE
    width = ribbon_lefts[-1] + _MARGIN
    least_height = max((column.least_heights() + _GAP).sum() for column in columns)
    height = top + max(1.5, 1.15 * least_height) + _MARGIN
    ax = canvas.ax
    if ax is None:
        figure = canvas.new_figure((width, height))
        figure.set_layout_engine("none")
        ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.axis("off")
    # In axes that are smaller than needed, text shrinks with the rest.
    scale = min(1.0, *(inches_of(canvas.figure, ax) / (width, height)))
    spans = []
    for i, column in enumerate(columns):
        # The flow that leaves the first column, or enters another one.
        table, side = (flows[0], "source") if i == 0 else (flows[i - 1], "target")
        through = table.groupby(side)["value"].sum()
        spans.append(_spans(column, through, top, height - _MARGIN))
    for i, ribbons in enumerate(flows):
        _draw_ribbons(
            ax, ribbons, spans[i], spans[i + 1], ribbon_lefts[i], lefts[i + 1]
        )
    for i, column in enumerate(columns):
        is_inner = 0 < i < len(columns) - 1
        _draw_nodes(
            ax,
            column,
            spans[i],
            lefts[i],
            NAME_SIZE * scale,
            # Names of an inner column get a background, so that they are not on ribbons.
            background=name_widths[i] if is_inner else 0.0,
            is_first=i == 0,
        )
    return ax


def _spans(
    column: _Column, through: pd.Series, top: float, bottom: float
) -> pd.DataFrame:
    """Top and height of each node: small nodes are as high as their name, others share the remainder."""
    room = bottom - top - _GAP * (len(column.nodes) - 1)
    values = through.reindex(column.nodes).fillna(0).to_numpy()
    heights = column.least_heights()
    is_free = np.ones(len(values), dtype=bool)
    while is_free.any():
        free_room = room - heights[~is_free].sum()
        shares = free_room * values / max(values[is_free].sum(), 1e-12)
        is_low = is_free & (shares < heights)
        if not is_low.any():
            heights[is_free] = shares[is_free]
            break
        is_free &= ~is_low
    tops = top + np.concatenate([[0], np.cumsum(heights + _GAP)[:-1]])
    return pd.DataFrame({"top": tops, "height": heights}, index=column.nodes)


# --------------------------------------------------------------------------- drawing

_CURVE = [Path.CURVE4] * 3
_RIBBON_CODES = [Path.MOVETO, *_CURVE, Path.LINETO, *_CURVE, Path.CLOSEPOLY]


def _draw_nodes(
    ax: Axes,
    column: _Column,
    spans: pd.DataFrame,
    left: float,
    font_size: float,
    *,
    background: float,
    is_first: bool,
) -> None:
    """Draw the nodes of a column, its names on a background of some width, and its title."""
    right = left + _NODE
    text: Any = {
        "ha": "right" if is_first else "left",
        "va": "center",
        "linespacing": 1.0,
    }
    text_x = left - _TEXT if is_first else right + _TEXT
    for (top, height), name, color in zip(
        spans.to_numpy(float), column.names, column.colors, strict=True
    ):
        ax.add_patch(Rectangle((left, top), _NODE, height, color=color, linewidth=0))
        if background:
            ax.add_patch(
                Rectangle(
                    (right, top),
                    background,
                    height,
                    color=color,
                    alpha=0.12,
                    linewidth=0,
                )
            )
        ax.text(text_x, top + height / 2, name, fontsize=font_size, **text)
    ax.text(
        right if is_first else left,
        _MARGIN + LINE / 2,
        column.title,
        fontsize=font_size + 1,
        fontweight="bold",
        **text,
    )


def _draw_ribbons(
    ax: Axes,
    ribbons: pd.DataFrame,
    source_spans: pd.DataFrame,
    target_spans: pd.DataFrame,
    left: float,
    right: float,
) -> None:
    """Draw the ribbons between two columns, from one horizontal position to another."""
    # On both sides, ribbons are in the order of their targets, then of their sources.
    sources = source_spans.index.get_indexer(pd.Index(ribbons["source"]))
    targets = target_spans.index.get_indexer(pd.Index(ribbons["target"]))
    ribbons = ribbons.iloc[np.lexsort((sources, targets))]
    edges = zip(
        *_ribbon_ends(ribbons, "source", source_spans),
        *_ribbon_ends(ribbons, "target", target_spans),
        ribbons["color"],
        strict=True,
    )
    middle = (left + right) / 2
    for left_top, left_bottom, right_top, right_bottom, color in edges:
        upper = [
            (left, left_top),
            (middle, left_top),
            (middle, right_top),
            (right, right_top),
        ]
        lower = [
            (right, right_bottom),
            (middle, right_bottom),
            (middle, left_bottom),
            (left, left_bottom),
        ]
        path = Path([*upper, *lower, (left, left_top)], _RIBBON_CODES)
        ax.add_patch(PathPatch(path, facecolor=color, alpha=0.45, linewidth=0))


def _ribbon_ends(
    ribbons: pd.DataFrame, side: str, spans: pd.DataFrame
) -> tuple[FloatArray, FloatArray]:
    """Top and bottom of each ribbon at its source or its target, one below the other."""
    values = ribbons.groupby(side)["value"]
    total = values.transform("sum")
    bottom = (values.cumsum() / total).to_numpy()
    top = bottom - (ribbons["value"] / total).to_numpy()
    node_top, node_height = spans.loc[ribbons[side]].to_numpy().T
    return node_top + node_height * top, node_top + node_height * bottom
