"""How training went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tosica.pl._figure import check_save, finish, own_axes

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's, which can be told apart with any kind of colour vision.
_STYLES = [("#0072b2", "-"), ("#d55e00", "--"), ("#009e73", "-."), ("#cc79a7", ":")]
_WORDS = {
    "train_loss": "training loss",
    "validation_loss": "validation loss",
    "validation_accuracy": "validation accuracy",
}


def training(
    history: Mapping[str, pd.DataFrame],
    *,
    keys: Sequence[str] = ("train_loss", "validation_loss"),
    title: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    show: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    return_fig: bool = False,
) -> Figure | Axes | None:
    """Losses over the epochs.

    The training loss is usually the higher one, because half of the genes and three quarters of
    the gene sets are hidden while the model trains.

    Parameters
    ----------
    history
        ``model.history``: a table for each quantity, one row an epoch.
    keys
        Quantities to draw, of those in ``history``.
    title
        Title of the plot.
    ax
        Axes to draw into, instead of a new figure.
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
    The figure if ``return_fig``, the axes if ``show=False`` or ``ax`` is given, else ``None``.

    Raises
    ------
    KeyError
        If ``history`` lacks a quantity.
    TypeError
        If ``history`` is no mapping, such as the model itself.
    ValueError
        If ``ax`` and ``figsize`` are both given.
    FileNotFoundError
        If the folder of ``save`` does not exist.

    Examples
    --------
    >>> import pandas as pd
    >>> import tosica
    >>> history = {"train_loss": pd.DataFrame({"train_loss": [2.0, 1.5, 1.2]})}
    >>> axes = tosica.pl.training(history, keys=["train_loss"], show=False)
    >>> axes.get_xlabel()
    'epoch'
    """
    path = check_save(save)
    if not hasattr(history, "keys"):
        raise TypeError(
            f"history must be model.history, a dict of tables, not {type(history).__name__}."
        )
    missing = [name for name in keys if name not in history]
    if missing:
        known = ", ".join(map(repr, history.keys()))
        raise KeyError(f"history has no {missing[0]!r}: it holds {known}.")
    figure, ax, own_figure = own_axes(ax, figsize, (4.2, 3.0))
    for i, name in enumerate(keys):
        column = history[name]
        values = np.asarray(column, dtype=float).ravel()
        color, line = _STYLES[i % len(_STYLES)]
        ax.plot(
            np.arange(1, len(values) + 1), values, line, color=color, label=_WORDS.get(name, name)
        )
    ax.set_xlabel("epoch")
    ax.set_ylabel("cross-entropy" if all(name.endswith("loss") for name in keys) else "")
    ax.grid(False)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    if title is not None:
        ax.set_title(title)
    return finish(figure, ax, show=show, save=path, return_fig=return_fig, own_figure=own_figure)
