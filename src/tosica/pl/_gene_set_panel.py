"""What plots of gene sets × groups share: which gene sets, their names, scanpy's classes."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scanpy as sc

from tosica._annotated import find_gene_sets, resolve_key
from tosica._groups import read_groups
from tosica.get import attention
from tosica.pl._figure import check_save, finish, own_axes, shorten, text_width, value_name
from tosica.pl._specific_gene_sets import specific_gene_sets

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ALL_GENE_SETS, _MOST_PER_GROUP = 24, 4
# Inches of a cell, and of what scanpy puts beside the cells.
_CELL = {"dotplot": 0.26, "matrixplot": 0.22, "violin": 0.34}
_LEGEND = 1.6
_FONT = 9.0
_MARGIN, _TICK = 0.12, 0.1
_LIMIT = 2.5


class GeneSetPanel:
    """Some gene sets' contributions or attention in groups of cells, ready to be drawn by scanpy.

    Parameters
    ----------
    adata, groupby, gene_sets, n_gene_sets, max_name_length, key
        As in the public functions.
    """

    def __init__(
        self,
        adata: AnnData,
        groupby: str,
        gene_sets: Sequence[str] | None,
        n_gene_sets: int | None,
        *,
        max_name_length: int,
        key: str | None,
    ) -> None:
        key = resolve_key(adata, key)
        by_set = attention(adata, key=key)
        groups = read_groups(adata, groupby)
        if gene_sets is None:
            if n_gene_sets is None:
                n_gene_sets = max(1, _ALL_GENE_SETS // len(groups.categories))
                n_gene_sets = min(_MOST_PER_GROUP, n_gene_sets)
            elif n_gene_sets < 1:
                raise ValueError(f"n_gene_sets must be at least 1, not {n_gene_sets}.")
            shown = specific_gene_sets(adata, groupby, n_gene_sets, key=key)
        elif n_gene_sets is not None:
            raise ValueError("gene_sets says which gene sets to show: leave n_gene_sets out.")
        else:
            where = f"adata.uns[{key!r}]['gene_sets']"
            shown = find_gene_sets(gene_sets, list(by_set.var_names), where)
        by_set = by_set[:, ~by_set.var_names.duplicated()][:, shown].copy()
        self.names = shorten(shown, max_name_length)
        by_set.var_names = self.names
        self.group_names = shorten(list(groups.categories), max_name_length)
        # A column of its own, because scanpy draws categories as they are called.
        by_set.obs = by_set.obs[[]].copy()
        by_set.obs["group"] = pd.Categorical.from_codes(groups.codes, pd.Index(self.group_names))
        self.by_set = by_set
        self._title = partial(value_name, adata, key)

    def draw(
        self,
        kind: str,
        style: dict[str, Any],
        swap_axes: bool,
        ax: Axes | None,
        figsize: tuple[float, float] | None,
        *,
        show: bool | None,
        save: str | os.PathLike[str] | None,
        return_fig: bool,
    ) -> Figure | dict[str, Axes] | None:
        """Draw with the class of scanpy that makes such plots."""
        path = check_save(save)
        names = self._names_outside(swap_axes) if ax is None else (0.0, 0.0)
        place: dict[str, Any] = {"ax": ax, "figsize": None}
        if ax is not None:
            own_axes(ax, figsize, (1, 1))
        elif figsize is None:
            place["figsize"] = self._size(kind, swap_axes)
        else:
            room = (figsize[i] - names[i] - 2 * _MARGIN for i in range(2))
            place["figsize"] = tuple(max(inches, 1.0) for inches in room)
        plot = getattr(self, f"_{kind}")(place)
        plot.style(**(_STYLE[kind] | style))
        if swap_axes:
            plot.swap_axes()
        with warnings.catch_warnings():
            # Distributions without width, such as of a group with few cells.
            warnings.filterwarnings("ignore", category=UserWarning, module="seaborn")
            plot.make_figure()
        axes = plot.get_axes()
        if ax is None:
            _make_room(plot.fig, place["figsize"], names)
        for labels in (
            axes["mainplot_ax"].get_xticklabels(),
            axes["mainplot_ax"].get_yticklabels(),
        ):
            for label in labels:
                label.set_fontsize(_FONT)
        return finish(
            plot.fig, axes, show=show, save=path, return_fig=return_fig, own_figure=ax is None
        )

    def _dotplot(self, place: dict[str, Any]) -> sc.pl.DotPlot:
        return sc.pl.DotPlot(
            self._z_scored(), self.names, "group", expression_cutoff=0, **self._limits(), **place
        ).legend(
            colorbar_title=self._title("mean z-score of"),
            size_title="cells above\naverage (%)",
            width=_LEGEND,
        )

    def _matrixplot(self, place: dict[str, Any]) -> sc.pl.MatrixPlot:
        return sc.pl.MatrixPlot(
            self._z_scored(), self.names, "group", **self._limits(), **place
        ).legend(title=self._title("mean z-score of"), width=_LEGEND)

    def _violin(self, place: dict[str, Any]) -> sc.pl.StackedViolin:
        values = np.asarray(self.by_set.X)
        low, high = np.percentile(values, [0.5, 99.5], axis=0)
        width = np.where(high > low, high - low, 1.0)
        self.by_set.X = np.clip((values - low) / width, 0, 1).astype(np.float32)
        return sc.pl.StackedViolin(self.by_set, self.names, "group", **place).legend(
            title=self._title("median (0 to 1) of"), width=_LEGEND
        )

    def _z_scored(self) -> AnnData:
        values = np.asarray(self.by_set.X, dtype=np.float64)
        deviation = values.std(axis=0)
        scaled = (values - values.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        self.by_set.X = scaled.astype(np.float32)
        return self.by_set

    def _limits(self) -> dict[str, float]:
        """Symmetric around the average, so that white means it."""
        means = [
            np.abs(np.asarray(self.by_set.X)[self.by_set.obs["group"] == name].mean(axis=0)).max()
            for name in self.group_names
        ]
        limit = min(float(max(means)), _LIMIT) or 1.0
        return {"vmin": -limit, "vmax": limit}

    def _size(self, kind: str, swap_axes: bool) -> tuple[float, float]:
        cell = _CELL[kind]
        rows, columns = (
            (self.names, self.group_names) if swap_axes else (self.group_names, self.names)
        )
        width = len(columns) * cell + _LEGEND + 0.4
        return width, max(len(rows) * cell, 1.9 if kind == "dotplot" else 1.2)

    def _names_outside(self, swap_axes: bool) -> tuple[float, float]:
        """Inches that names need left of the cells and below them."""
        rows, columns = self.names, self.group_names
        if not swap_axes:
            rows, columns = columns, rows
        return text_width(rows, _FONT) + _TICK, text_width(columns, _FONT) + _TICK


def _make_room(figure: Figure, size: tuple[float, float], names: tuple[float, float]) -> None:
    """Add room for the names, which scanpy leaves to whoever saves the figure."""
    width, height = size[0] + names[0] + 2 * _MARGIN, size[1] + names[1] + 2 * _MARGIN
    figure.set_size_inches(width, height)
    figure.subplots_adjust(
        left=(names[0] + _MARGIN) / width,
        right=1 - _MARGIN / width,
        bottom=(names[1] + _MARGIN) / height,
        top=1 - _MARGIN / height,
    )


_STYLE: dict[str, dict[str, Any]] = {
    "dotplot": {"cmap": "vlag", "dot_edge_lw": 0.3},
    "matrixplot": {"cmap": "vlag", "edge_lw": 0.2},
    "violin": {"cmap": "viridis", "linewidth": 0.3},
}
