"""Calibration of probabilities: accuracy in bins, and the expected calibration error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from tosica._constants import UNKNOWN
from tosica._groups import read_groups, read_numbers
from tosica._validation import check_count, check_string

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

_COLUMNS = ["low", "high", "n_cells", "probability", "accuracy", "accuracy_low", "accuracy_high"]


def calibration_bins(
    right: NDArray[np.bool_], probability: NDArray[np.float64], n_bins: int
) -> pd.DataFrame:
    """Compute the accuracy in each bin of the probability.

    Parameters
    ----------
    right
        Whether each cell's label is correct, shape ``(n_cells,)``.
    probability
        Probability of this label, shape ``(n_cells,)``.
    n_bins
        Number of bins of equal width between 0 and 1.

    Returns
    -------
    The table of :func:`tosica.tl.reliability`; no rows if there are no cells.

    Raises
    ------
    TypeError, ValueError
        If ``n_bins`` is not a whole number of at least 1.
    """
    check_count("n_bins", n_bins)
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


def expected_calibration_error(table: pd.DataFrame) -> float:
    """Mean difference between accuracy and probability, weighted by cells :cite:p:`Guo2017`.

    Parameters
    ----------
    table
        The result of :func:`calibration_bins`.

    Returns
    -------
    Between 0 and 1; NaN if the table has no rows.
    """
    if table.empty:
        return float("nan")
    distance = (table["accuracy"] - table["probability"]).abs()
    return float(np.average(distance, weights=table["n_cells"]))


def read_probability(adata: AnnData, key: str) -> NDArray[np.float64]:
    """Read the probability of each cell's best label.

    Raises
    ------
    KeyError
        If the column is missing.
    """
    if f"{key}_probability" not in adata.obs:
        raise KeyError(
            f"adata.obs has no column '{key}_probability': run model.annotate(adata, "
            f"key_added={key!r}) first."
        )
    return read_numbers(adata, f"{key}_probability")


def reliability(
    adata: AnnData, labels_key: str, *, key: str = "tosica", n_bins: int = 10
) -> pd.DataFrame:
    """Compare the accuracy of the labels with their probability, bin by bin.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated and whose labels are known. It is not changed.
        Cells with the prediction "Unknown" are left out.
    labels_key
        Column of ``adata.obs`` with the known labels, spelled as in the predictions.
    key
        ``key_added`` of ``model.annotate``.
    n_bins
        Number of bins of equal width between 0 and 1.

    Returns
    -------
    DataFrame, one row a bin with cells: ``low`` and ``high`` (the bin's bounds), ``n_cells``,
    ``probability`` (mean of the bin's cells), ``accuracy`` (share of correct labels), and
    ``accuracy_low`` and ``accuracy_high`` (95 % interval of Wilson). The expected calibration
    error :cite:p:`Guo2017` is the mean of ``abs(accuracy - probability)``, weighted by ``n_cells``.

    Raises
    ------
    KeyError
        If a column is missing.
    TypeError
        If a column cannot be read as labels.
    ValueError
        If cells have no label, all are "Unknown", or no known label is predicted.

    See Also
    --------
    tosica.pl.reliability : the same as a plot.

    Examples
    --------
    A prediction that is right three times out of four stands for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> wrong = np.arange(adata.n_obs) % 4 == 0
    >>> labels = adata.obs["bulk_labels"].astype(str)
    >>> adata.obs["tosica_prediction"] = labels.where(~wrong, "CD34+")
    >>> adata.obs["tosica_probability"] = 0.75
    >>> table = tosica.tl.reliability(adata, "bulk_labels")
    >>> table[["n_cells", "probability"]].to_numpy().tolist()
    [[700.0, 0.75]]
    """
    check_string("key", key)
    check_count("n_bins", n_bins)
    known = np.asarray(read_groups(adata, labels_key, name="labels_key")).astype(str)
    predicted = np.asarray(read_groups(adata, f"{key}_prediction")).astype(str)
    probability = read_probability(adata, key)
    named = predicted != UNKNOWN
    if not named.any():
        raise ValueError(f"All cells of adata.obs['{key}_prediction'] are {UNKNOWN!r}.")
    if not set(known) & set(predicted[named]):
        raise ValueError(
            f"adata.obs[{labels_key!r}] and adata.obs['{key}_prediction'] have no label in common "
            f"({str(known[0])!r}, {str(predicted[named][0])!r}): bring both to the same words."
        )
    return calibration_bins((known == predicted)[named], probability[named], n_bins)
