"""The highest-ranked gene sets of each group as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosica.get import rank_gene_sets_df
from tosica.pl._bar_panels import Panel, draw_panels
from tosica.pl._figure import check_save, finish, group_colors, own_axes, shorten

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from typing import Literal

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Rows of all panels to aim at, and the most for one group.
_ALL_ROWS = 90
_MOST_PER_GROUP = 8
_SIGNIFICANT = 0.05
_WITHOUT_COLOR = "#4878a8"
_LABELS = {
    "effect_size": "effect size (SD)",
    "logfoldchange": "log2 fold change",
    "score": "score",
}


def rank_gene_sets(
    adata: AnnData,
    groups: str | Iterable[str] | None = None,
    *,
    n_gene_sets: int | None = None,
    values: Literal["effect_size", "logfoldchange", "score"] = "effect_size",
    n_columns: int | None = None,
    max_name_length: int = 50,
    key: str = "rank_gene_sets",
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
) -> Figure | list[Axes] | Axes | None:
    """Bars of the gene sets that :func:`tosica.tl.rank_gene_sets` ranks first, group by group.

    Bars are pale where the adjusted p-value is above 5 %.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.rank_gene_sets` was run. It is not changed.
    groups
        Groups to show, in this order; by default all.
    n_gene_sets
        Gene sets for each group. ``None``: as many as make about 90 in all, from 1 to 8.
    values
        What the bars show; see :func:`tosica.get.rank_gene_sets_df`. The order is that of the test.
        Of contributions, which have a sign, some have no fold change and so no bar.
    n_columns
        Panels beside each other; by default as many as have room.
    max_name_length
        Longer names are cut in the middle.
    key
        ``key_added`` of :func:`tosica.tl.rank_gene_sets`.
    ax
        Axes to draw a single group into, instead of a new figure.
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
    The figure if ``return_fig``; with ``show=False`` a list of axes, one a group, or ``ax``; else
    ``None``.

    Raises
    ------
    KeyError
        If there is no such result, or no such group in it.
    ValueError
        If ``values`` is unknown, ``ax`` is given for several groups or together with ``figsize``,
        or ``n_gene_sets`` is below 1.
    FileNotFoundError
        If the folder of ``save`` does not exist.

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array([f"term {i}" for i in range(40)])}
    >>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 40), np.float32)
    >>> tosica.tl.rank_gene_sets(adata, "phase")
    >>> len(tosica.pl.rank_gene_sets(adata, n_gene_sets=3, show=False))
    3
    """
    path = check_save(save)
    if values not in _LABELS:
        raise ValueError(f"values must be one of {', '.join(map(repr, _LABELS))}, not {values!r}.")
    table = rank_gene_sets_df(adata, groups, key=key)
    names = list(table["group"].cat.categories)
    if ax is not None:
        own_axes(ax, figsize, (1, 1))
        if len(names) > 1:
            raise ValueError(
                f"ax has room for one group, and there are {len(names)}: pass groups=[...]."
            )
    if n_gene_sets is None:
        n_gene_sets = min(_MOST_PER_GROUP, max(1, _ALL_ROWS // len(names)))
    elif n_gene_sets < 1:
        raise ValueError(f"n_gene_sets must be at least 1, not {n_gene_sets}.")
    params = adata.uns[key].get("params", {})
    colors = _colors(adata, params, names)
    panels = []
    for name in names:
        part = table[table["group"] == name].head(n_gene_sets)
        panels.append(
            Panel(
                shorten([name], max_name_length)[0],
                shorten(list(part["gene_set"]), max_name_length),
                [float(value) for value in part[values]],
                colors.get(name, _WITHOUT_COLOR),
                list(part["pval_adj"] > _SIGNIFICANT),
            )
        )
    figure, axes = draw_panels(panels, _LABELS[values], ax=ax, figsize=figsize, n_columns=n_columns)
    drawn = axes if ax is None else ax
    return finish(figure, drawn, show=show, save=path, return_fig=return_fig, own_figure=ax is None)


def _colors(adata: AnnData, params: dict[str, str], names: list[str]) -> dict[str, str]:
    """Colours of the groups, if the column that they are from is still there."""
    column = params.get("within") or params.get("groupby")
    if column is None or column not in adata.obs:
        return {}
    return group_colors(adata, column)
