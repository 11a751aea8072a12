"""Curves and histograms: how far to trust a model, its training, and the genes of its mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator, PercentFormatter
from scipy.integrate import trapezoid

from tosica._obs import BLUE, GRAY, GREEN, ORANGE
from tosica._text import format_thousands, only_known
from tosica._validate import InstanceOf, as_names
from tosica.get import mask_coverage as coverage_table
from tosica.model import TOSICA
from tosica.pl._figure import Canvas, FigureOptions
from tosica.pl._names import plain
from tosica.pl._plot_function import plot_function
from tosica.tl import reliability as reliability_table
from tosica.tl._evaluate import expected_calibration_error

if TYPE_CHECKING:
    from typing import Unpack

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from tosica._types import AnnOrMuData, FloatArray, IntArray


@plot_function()
def reliability(
    adata: AnnData,
    labels_key: str,
    *,
    key: str = "tosica",
    n_bins: int = 10,
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Reliability diagram: share of correct labels against the probability of the label.

    Points on the diagonal are well calibrated. Above it the model is underconfident, below it
    overconfident. Error bars are 95 % intervals, bars in the background are shares of the cells.
    The title has the expected calibration error. The table is that of
    :func:`tosica.tl.reliability`.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated and whose labels are known. It is not changed.
    labels_key
        Column of ``adata.obs`` with the known labels, named as the predictions are.
    key
        ``key_added`` of ``model.annotate``.
    n_bins
        Number of bins of equal width between 0 and 1.
    {figure}

    Returns
    -------
    {returns}

    Raises
    ------
    KeyError, TypeError, ValueError
        As :func:`tosica.tl.reliability`.
    {raises}

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.obs["tosica_prediction"] = adata.obs["bulk_labels"]
    >>> adata.obs["tosica_probability"] = 0.95
    >>> axes = tosica.pl.reliability(adata, "bulk_labels", show=False)
    >>> axes.get_title()
    'expected calibration error 5.0 %'
    """
    canvas = Canvas(**figure)
    table = reliability_table(adata, labels_key, key=key, n_bins=n_bins)
    ax = canvas.axes((5.5, 3.6))
    color = plt.rcParams["text.color"]
    ax.bar(
        (table["low"] + table["high"]) / 2,
        table["n_cells"] / table["n_cells"].sum(),
        width=0.92 / n_bins,
        color=color,
        alpha=0.15,
        linewidth=0,
        label="share of cells",
    )
    ax.plot(
        [0, 1],
        [0, 1],
        color=color,
        linewidth=0.8,
        linestyle="--",
        label="perfect calibration",
    )
    interval = table[["accuracy_low", "accuracy_high"]].to_numpy().T
    ax.errorbar(
        table["probability"],
        table["accuracy"],
        yerr=np.abs(interval - table["accuracy"].to_numpy()),
        label="correct labels, with\n95 % interval",
        fmt="o-",
        markersize=4.5,
        linewidth=1.2,
        color=BLUE,
    )
    ax.set(
        xlim=(0, 1), ylim=(0, 1.02), xlabel="probability of the label", ylabel="share"
    )
    ax.set_aspect("equal")
    error = 100 * expected_calibration_error(table)
    ax.set_title(f"expected calibration error {error:.1f} %", fontsize=10)
    plain(ax)
    _add_legend(canvas, ax)
    return canvas.finish(ax)


def _add_legend(canvas: Canvas, ax: Axes, title: str | None = None) -> None:
    """Put the legend beside the axes of a new figure, where it hides nothing."""
    is_new = canvas.ax is None
    ax.legend(
        title=title,
        frameon=False,
        fontsize=9,
        loc="upper left" if is_new else "best",
        bbox_to_anchor=(1, 1) if is_new else None,
    )


# --------------------------------------------------------------------------- faithfulness

_ORDERS = {"genes": (BLUE, "o"), "gene sets": (ORANGE, "s"), "random": (GRAY, "x")}
_CHANGES = {"deletion": "-", "insertion": "--"}


@plot_function()
def faithfulness(
    adata: AnnOrMuData,
    *,
    key: str = "faithfulness",
    **figure: Unpack[FigureOptions],
) -> Figure | Axes | None:
    """Probability of the label against the share of genes that were removed, or added.

    One color for each order in which genes were removed or added. The more faithful the order,
    the faster the probability falls when genes are removed (deletion, solid lines), and the faster
    it rises when they are added to the baseline (insertion, dashed). The legend has the areas under
    the curves.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.faithfulness` was run. It is not changed.
    key
        ``key_added`` of :func:`tosica.tl.faithfulness`.
    {figure}

    Returns
    -------
    {returns}

    Raises
    ------
    KeyError
        If there is no such result.
    {raises}

    Examples
    --------
    >>> import pandas as pd
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> curve = {
    ...     "order": "random",
    ...     "change": "deletion",
    ...     "share": [0.0, 1.0],
    ...     "probability": [0.9, 0.3],
    ... }
    >>> adata.uns["faithfulness"] = {"curves": pd.DataFrame(curve)}
    >>> axes = tosica.pl.faithfulness(adata, show=False)
    >>> axes.get_legend_handles_labels()[1]
    ['deletion, random: 0.600']
    """
    canvas = Canvas(**figure)
    result = adata.uns.get(key)
    if not isinstance(result, Mapping) or "curves" not in result:
        raise KeyError(
            f"adata.uns[{key!r}] holds no result of tosica.tl.faithfulness: "
            f"run tosica.tl.faithfulness(adata, model, key_added={key!r}) first."
        )
    ax = canvas.axes((6.2, 3.4))
    for (change, order), curve in result["curves"].groupby(
        ["change", "order"], observed=True, sort=False
    ):
        color, marker = _ORDERS[order]
        area = trapezoid(curve["probability"], curve["share"])
        ax.plot(
            curve["share"],
            curve["probability"],
            label=f"{change}, {order}: {area:.3f}",
            linestyle=_CHANGES[change],
            marker=marker,
            markersize=4,
            color=color,
        )
    ax.set(
        xlabel="share of genes removed or added",
        ylabel="probability of the label",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    plain(ax)
    _add_legend(canvas, ax, title="first genes first, area")
    return canvas.finish(ax)


# --------------------------------------------------------------------------- training

# Name and color of a quantity.
_QUANTITIES = {
    "train_loss": ("training loss", BLUE),
    "validation_loss": ("validation loss", ORANGE),
    "validation_accuracy": ("validation accuracy", GREEN),
}
_UNITS = {"loss": "cross-entropy", "accuracy": "accuracy"}


@plot_function(
    model=InstanceOf("a TOSICA model that was trained, or its history", TOSICA, Mapping)
)
def training(
    model: TOSICA | Mapping[str, pd.DataFrame],
    *,
    keys: Sequence[str] | None = None,
    **figure: Unpack[FigureOptions],
) -> Figure | list[Axes] | Axes | None:
    """Losses and accuracy of the network over the epochs of its training.

    The training loss is usually higher than the validation loss, because many genes and
    gene sets are dropped out during training. A dot marks the epoch with the
    lowest validation loss. ``early_stopping=True`` keeps the weights of that epoch, otherwise those
    of the last one are kept. A validation loss that rises long before the end means that fewer
    epochs were enough.

    Parameters
    ----------
    model
        A model that was trained, or its ``history``: a table for each quantity, whose index has the
        epochs at which it was measured, counted from 0.
    keys
        Quantities to draw, of those in the history. By default the losses and, in a panel of its
        own, the accuracy of held-out cells, as far as there are some.
    ax
        Axes to draw into, instead of a new figure. They have one panel, by default the losses.
    {new_figure}

    Returns
    -------
    The figure if ``return_fig``; with ``show=False`` the axes, as a list if there are several
    panels, or ``ax``; else ``None``.

    Raises
    ------
    KeyError
        If the history lacks a quantity.
    TypeError
        If ``model`` is neither a model nor a history.
    ValueError
        If the model has no history, because it was not trained or is one of the original code; if
        there is nothing to draw, or ``ax`` is given for several panels.
    {raises}

    Examples
    --------
    >>> import pandas as pd
    >>> import tosica
    >>> history = {"train_loss": pd.DataFrame({"train_loss": [2.0, 1.5, 1.2]})}
    >>> axes = tosica.pl.training(history, show=False)
    >>> axes.get_xlabel(), axes.get_ylabel()
    ('epoch', 'cross-entropy')
    """
    canvas = Canvas(**figure)
    history = model if isinstance(model, Mapping) else model.history
    if not isinstance(history, Mapping) or not history:
        raise ValueError(
            "The model has no history: train it with model.train(), since models of the original "
            "code keep none, nor do those that another logger was passed to."
        )
    values_of = {name: _by_epoch(values) for name, values in history.items()}
    panels = _panels(values_of, keys)
    if keys is None and canvas.ax is not None:
        panels = dict([next(iter(panels.items()))])
    canvas.only_one(len(panels), "panel", "pass keys=[...] of one kind")
    # Panels over one another, which share the epochs.
    axes = canvas.panels(len(panels), 1, (4.4, 2.5), sharex=True)
    loss = values_of.get("validation_loss", pd.Series(dtype=float))
    best = None
    if np.isfinite(loss).sum() > 1:
        best = int(loss.index[int(np.nanargmin(loss.to_numpy()))])
    for ax, (unit, names) in zip(axes, panels.items(), strict=True):
        for name in names:
            _draw_quantity(ax, name, values_of[name], best)
        ax.set_ylabel(unit)
        if unit == "accuracy":
            ax.yaxis.set_major_formatter(PercentFormatter(1))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        plain(ax)
        ax.legend(frameon=False, fontsize=9)
    axes[-1].set_xlabel("epoch")
    return canvas.finish(axes[0] if len(axes) == 1 else axes)


def _by_epoch(values: Any) -> pd.Series:
    """Values of a quantity by the epoch, counted from 1. Validation may skip epochs."""
    table = pd.DataFrame(values)
    rows = pd.RangeIndex(1, len(table) + 1)
    epochs = table.index + 1 if table.index.dtype.kind == "i" else rows
    # scvi-tools counts anew in a second training.
    if not epochs.is_monotonic_increasing:
        epochs = rows
    return pd.Series(table.to_numpy(dtype=float).ravel(), epochs)


def _draw_quantity(ax: Axes, name: str, values: pd.Series, best: int | None) -> None:
    """Draw a curve over the epochs, and a dot at the best one if it is of the validation."""
    label, color = _QUANTITIES.get(name, (name, None))
    [line] = ax.plot(
        values.index,
        values,
        color=color,
        # A line of one point would not be seen.
        marker="o" if len(values) == 1 else "",
        label=label,
    )
    if best is None or best not in values.index or not name.startswith("validation"):
        return
    text = f"lowest validation loss: epoch {best}" if "loss" in name else None
    ax.plot(best, values[best], "o", color=line.get_color(), markersize=5, label=text)


def _panels(
    history: Mapping[str, Any], keys: Sequence[str] | None
) -> dict[str, list[str]]:
    """Name the quantities of each panel, by the unit of the panel."""
    default = [name for name in _QUANTITIES if name in history]
    names = default if keys is None else as_names(keys)
    missing = [name for name in names if name not in history]
    if missing:
        raise KeyError(
            f"The history has no {missing[0]!r}{only_known(missing[0], history)}"
        )
    if not names:
        raise ValueError(
            "There is nothing to draw: name quantities of the history in keys."
        )
    panels: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        unit = _UNITS.get(name.rpartition("_")[2], "")
        panels.setdefault(unit, []).append(name)
    return panels


# --------------------------------------------------------------------------- mask


@plot_function()
def mask_coverage(
    adata: AnnData, *, key: str = "tosica_mask", **figure: Unpack[FigureOptions]
) -> Figure | list[Axes] | Axes | None:
    """Coverage of the genes by a mask, and sizes and overlaps of its gene sets.

    Three panels of the table of :func:`tosica.get.mask_coverage`: number of genes that the largest
    gene sets cover together; histogram of the sizes of the gene sets; histogram of the Jaccard
    index of each gene set with its most similar one. A mask that is easy to interpret rises steeply
    in the first panel and has low values in the third.

    Parameters
    ----------
    adata
        Data that :func:`tosica.pp.build_mask` gave a mask. It is not changed.
    key
        ``key_added`` of :func:`tosica.pp.build_mask`.
    ax
        Axes to draw the first panel into, instead of a new figure.
    {new_figure}

    Returns
    -------
    {returns_panels}

    Raises
    ------
    KeyError
        If there is no mask.
    ValueError
        If the mask cannot be read.
    {raises}

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> tosica.pp.build_mask(adata)
    >>> axes = tosica.pl.mask_coverage(adata, show=False)
    >>> axes[0].get_xlabel()
    'gene sets, largest first'
    """
    canvas = Canvas(**figure)
    table = coverage_table(adata, key=key)
    axes = canvas.panels(3, 3, (3.5, 3.2))
    _draw_coverage(axes[0], np.append(0, table["n_covered"]), adata.n_vars)
    if canvas.ax is not None:
        return canvas.finish(axes)
    sizes = table["n_genes"].to_numpy()
    # Bins of whole numbers, because bins of other widths would hold unequal numbers of sizes.
    width = max(1, int(np.ceil((sizes.max() - sizes.min() + 1) / 30)))
    edges = np.arange(sizes.min(), sizes.max() + width + 1, width) - 0.5
    title = f"median {np.median(sizes):g} genes (dashed)"
    _draw_histogram(axes[1], sizes, edges, "genes in a set", title)
    overlaps = table["max_jaccard"].to_numpy()
    label = "genes shared with the nearest set\n(Jaccard index)"
    title = f"median {np.median(overlaps):.2f} (dashed)"
    _draw_histogram(axes[2], overlaps, np.linspace(0, 1, 21), label, title)
    axes[2].set_xlim(0, 1)
    return canvas.finish(axes)


def _draw_coverage(ax: Axes, covered: IntArray, n_genes: int) -> None:
    n_sets = len(covered) - 1
    ax.axhline(n_genes, color="0.5", linewidth=1, linestyle="--")
    ax.text(
        0.98 * n_sets, 1.02 * n_genes, "all genes", ha="right", va="bottom", fontsize=8
    )
    ax.fill_between(range(n_sets + 1), covered, color=BLUE, alpha=0.2)
    ax.plot(covered, color=BLUE)
    ax.set(
        xlim=(0, n_sets),
        ylim=(0, 1.12 * n_genes),
        xlabel="gene sets, largest first",
        ylabel="genes covered",
    )
    ax.set_title(f"{covered[-1] / n_genes:.0%} of {format_thousands(n_genes)} genes")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    plain(ax)


def _draw_histogram(
    ax: Axes, values: NDArray[Any], edges: FloatArray, x_label: str, title: str
) -> None:
    ax.hist(values, bins=edges.tolist(), color=BLUE)
    ax.axvline(float(np.median(values)), color="0.3", linewidth=1, linestyle="--")
    ax.set(xlabel=x_label, ylabel="gene sets", title=title)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5))
    plain(ax)
