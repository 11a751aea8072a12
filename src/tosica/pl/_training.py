"""Plot of a training: losses and accuracy over the epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tosica._palette import BLUE, GREEN, ORANGE, PURPLE
from tosica._validation import check_names, check_string, only_known
from tosica.model import TOSICA
from tosica.pl._docs import fill_docs
from tosica.pl._figure import Canvas

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_VALIDATION_LOSS = "validation_loss"
_OF_VALIDATION = (_VALIDATION_LOSS, "validation_accuracy")
_KEYS = ("train_loss", *_OF_VALIDATION)
_QUANTITIES = {
    "train_loss": "training loss",
    _VALIDATION_LOSS: "validation loss",
    "validation_accuracy": "validation accuracy",
}
# A quantity with a line of its own keeps it in every plot.
_STYLES = {
    "train_loss": (BLUE, "-"),
    _VALIDATION_LOSS: (ORANGE, "-"),
    "validation_accuracy": (GREEN, "-"),
}
_OTHER_STYLES = [(PURPLE, "--"), (BLUE, ":"), (ORANGE, "-."), (GREEN, "--")]
_UNITS = {"loss": "cross-entropy", "accuracy": "accuracy"}


@fill_docs()
def training(
    model: TOSICA | Mapping[str, pd.DataFrame],
    *,
    keys: Sequence[str] | None = None,
    title: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
) -> Figure | list[Axes] | Axes | None:
    """Losses and accuracy of the network over the epochs of its training.

    The training loss is usually higher than the validation loss, because half of the genes and
    three quarters of the gene sets are dropped out during training. A dot marks the epoch with the
    lowest validation loss. ``early_stopping=True`` keeps the weights of that epoch, otherwise those
    of the last one are kept. A validation loss that rises long before the end means that fewer
    epochs were enough.

    Parameters
    ----------
    model
        A model that was trained, or its ``history``: a table for each quantity, with one row for
        each epoch.
    keys
        Quantities to draw, of those in the history. By default the losses and, in a panel of its
        own, the accuracy of held-out cells, as far as there are some.
    title
        Title of the plot.
    ax
        Axes to draw into, instead of a new figure. They have one panel, by default the losses.
    {figure}

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
    {ax_raises}

    Examples
    --------
    >>> import pandas as pd
    >>> import tosica
    >>> history = {"train_loss": pd.DataFrame({"train_loss": [2.0, 1.5, 1.2]})}
    >>> axes = tosica.pl.training(history, show=False)
    >>> axes.get_xlabel(), axes.get_ylabel()
    ('epoch', 'cross-entropy')
    """
    canvas = Canvas(ax, figsize, show=show, save=save, return_fig=return_fig)
    check_string("title", title, optional=True)
    history = _history(model)
    panels = _panels(history, keys, one=ax is not None)
    figure_axes = [ax] if ax is not None else _new_axes(canvas, len(panels))
    best = _best_epoch(history)
    n_others = 0
    for panel, (unit, names) in zip(figure_axes, panels.items(), strict=True):
        for name in names:
            style = _STYLES.get(name)
            if style is None:
                style = _OTHER_STYLES[n_others % len(_OTHER_STYLES)]
                n_others += 1
            _draw(panel, history[name], _QUANTITIES.get(name, name), *style)
            if best is not None and name in _OF_VALIDATION:
                label = (
                    f"lowest validation loss: epoch {best}" if name == _VALIDATION_LOSS else None
                )
                value = _values(history[name])[best - 1]
                panel.plot(best, value, "o", color=style[0], markersize=5, label=label)
        panel.set_ylabel(unit)
        if unit == "accuracy":
            panel.yaxis.set_major_formatter(PercentFormatter(1))
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(False)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=9)
    figure_axes[-1].set_xlabel("epoch")
    if title is not None:
        figure_axes[0].set_title(title)
    return canvas.finish(figure_axes[0] if len(figure_axes) == 1 else figure_axes)


def _history(model: Any) -> Mapping[str, pd.DataFrame]:
    """History of a model, or a history itself."""
    if isinstance(model, Mapping):
        return model
    if not isinstance(model, TOSICA):
        raise TypeError(
            "model must be a TOSICA model that was trained, or its history, not "
            f"{type(model).__name__}."
        )
    history = model.history
    if not isinstance(history, Mapping) or not history:
        raise ValueError(
            "The model has no history: train it with model.train(), since models of the original "
            "code keep none, nor do those that another logger was passed to."
        )
    return history


def _panels(
    history: Mapping[str, pd.DataFrame], keys: Sequence[str] | None, *, one: bool
) -> dict[str, list[str]]:
    """Names of the quantities in each panel, by the unit of the panel."""
    if keys is None:
        names = [name for name in _KEYS if name in history]
        if one:
            names = [name for name in names if name.endswith("loss")] or names
    else:
        names = check_names("keys", keys)
    missing = [name for name in names if name not in history]
    if missing:
        raise KeyError(f"The history has no {missing[0]!r}{only_known(missing[0], history)}")
    if not names:
        raise ValueError("There is nothing to draw: name quantities of the history in keys.")
    panels: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        panels.setdefault(_UNITS.get(name.rpartition("_")[2], ""), []).append(name)
    if one and len(panels) > 1:
        raise ValueError(
            "ax has room for one panel, and losses and other quantities take one each: pass "
            "keys=[...] of one kind."
        )
    return panels


def _new_axes(canvas: Canvas, n_panels: int) -> list[Axes]:
    """Panels over one another, which share the epochs."""
    figure = canvas.new_figure((4.4, 1.0 + 2.0 * n_panels), "constrained")
    axes = figure.subplots(n_panels, sharex=True, squeeze=False)
    return list(axes[:, 0])


def _draw(ax: Axes, table: pd.DataFrame, label: str, color: str, line_style: str) -> None:
    values = _values(table)
    # A line of one point would not be seen.
    marker = "o" if len(values) == 1 else ""
    epochs = np.arange(1, len(values) + 1)
    ax.plot(epochs, values, line_style, color=color, marker=marker, label=label)


def _values(table: pd.DataFrame) -> NDArray[np.float64]:
    return np.asarray(table, dtype=float).ravel()


def _best_epoch(history: Mapping[str, pd.DataFrame]) -> int | None:
    """Epoch with the lowest validation loss, if there are several epochs with one."""
    if _VALIDATION_LOSS not in history:
        return None
    loss = _values(history[_VALIDATION_LOSS])
    return int(np.nanargmin(loss)) + 1 if np.isfinite(loss).sum() > 1 else None
