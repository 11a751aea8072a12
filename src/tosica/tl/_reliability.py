"""Whether probabilities mean what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tosica._constants import UNKNOWN
from tosica.get._read_groups import read_groups
from tosica.tl._calibration_bins import calibration_bins, read_probability

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData


def reliability(
    adata: AnnData, labels_key: str, *, key: str = "tosica", n_bins: int = 10
) -> pd.DataFrame:
    """Hold the share of right labels against the probability that was given for them.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated and whose labels are known. It is not changed.
        Cells that were called "Unknown" have no label that could be right, and are left out.
    labels_key
        Column of ``adata.obs`` with the known labels, in the words of the predictions.
    key
        ``key_added`` of ``model.annotate``.
    n_bins
        Number of bins of equal width between 0 and 1.

    Returns
    -------
    DataFrame, one row a bin with cells: ``low`` and ``high`` (the bin's bounds), ``n_cells``,
    ``probability`` (mean of the bin's cells), ``accuracy`` (share of right labels), and
    ``accuracy_low`` and ``accuracy_high`` (95 % interval of Wilson). The expected calibration
    error :cite:p:`Guo2017` is the mean of ``abs(accuracy - probability)``, weighted by ``n_cells``.

    Raises
    ------
    KeyError
        If a column is missing.
    TypeError
        If a column cannot be read as labels.
    ValueError
        If cells have no label, all are "Unknown", or no known label is ever predicted.

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
    known = np.asarray(read_groups(adata, labels_key)).astype(str)
    predicted = np.asarray(read_groups(adata, f"{key}_prediction")).astype(str)
    probability = read_probability(adata, key)
    named = predicted != UNKNOWN
    if not named.any():
        msg = f"All cells of adata.obs['{key}_prediction'] are {UNKNOWN!r}."
        raise ValueError(msg)
    if not set(known) & set(predicted[named]):
        msg = (
            f"adata.obs[{labels_key!r}] and adata.obs['{key}_prediction'] have no label in common "
            f"({str(known[0])!r}, {str(predicted[named][0])!r}): bring both to the same words."
        )
        raise ValueError(msg)
    return calibration_bins((known == predicted)[named], probability[named], n_bins)
