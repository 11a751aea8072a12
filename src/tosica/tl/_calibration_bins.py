"""Probabilities in bins, held against what was right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import binomtest

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray


def calibration_bins(
    right: NDArray[np.bool_], probability: NDArray[np.float64], n_bins: int
) -> pd.DataFrame:
    """Count in each bin of the probability how many labels are right.

    Parameters
    ----------
    right
        Whether each cell's label is right, shape (n,).
    probability
        Probability that was given for it, shape (n,).
    n_bins
        Number of bins of equal width between 0 and 1.

    Returns
    -------
    The table that :func:`tosica.tl.reliability` describes; no rows if there are no cells.

    Raises
    ------
    ValueError
        If ``n_bins`` is under 1.
    """
    if n_bins < 1:
        msg = f"n_bins must be at least 1, not {n_bins}."
        raise ValueError(msg)
    edges = np.linspace(0, 1, n_bins + 1)
    bins = np.clip(np.searchsorted(edges, probability, side="left") - 1, 0, n_bins - 1)
    rows = []
    for i in np.unique(bins):
        inside = bins == i
        n_right = int(right[inside].sum())
        interval = binomtest(n_right, int(inside.sum())).proportion_ci(method="wilson")
        rows.append(
            (
                edges[i],
                edges[i + 1],
                int(inside.sum()),
                probability[inside].mean(),
                n_right / inside.sum(),
                interval.low,
                interval.high,
            )
        )
    return pd.DataFrame(rows, columns=_COLUMNS)


_COLUMNS = ["low", "high", "n_cells", "probability", "accuracy", "accuracy_low", "accuracy_high"]


def expected_calibration_error(table: pd.DataFrame) -> float:
    """Mean distance of accuracy and probability, weighted by cells :cite:p:`Guo2017`.

    Parameters
    ----------
    table
        What :func:`calibration_bins` made.

    Returns
    -------
    Between 0 and 1; NaN of a table without rows.
    """
    if table.empty:
        return float("nan")
    distance = (table["accuracy"] - table["probability"]).abs()
    return float(np.average(distance, weights=table["n_cells"]))


def read_probability(adata: AnnData, key: str) -> NDArray[np.float64]:
    """Probability of each cell's best label, as ``model.annotate`` wrote it.

    Raises
    ------
    KeyError
        If the column is missing.
    """
    if f"{key}_probability" not in adata.obs:
        msg = (
            f"adata.obs has no column '{key}_probability'; "
            f"model.annotate(adata, key_added={key!r}) writes it."
        )
        raise KeyError(msg)
    return adata.obs[f"{key}_probability"].to_numpy(dtype=np.float64)
