"""Confusion table of known labels and predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica._constants import UNKNOWN
from tosica._groups import read_groups
from tosica._validation import check_flags

if TYPE_CHECKING:
    from anndata import AnnData


def confusion(
    adata: AnnData,
    labels_key: str,
    *,
    prediction_key: str = "tosica_prediction",
    normalize: bool = False,
) -> pd.DataFrame:
    """Count how many cells of each known label got each prediction.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated and whose labels are known. It is not changed.
    labels_key
        Column of ``adata.obs`` with the known labels.
    prediction_key
        Column of ``adata.obs`` with the predictions.
    normalize
        Divide each row by its sum, so that it has shares of a known label's cells.

    Returns
    -------
    DataFrame, ``(n_known_labels, n_predictions)``: numbers of cells (int64), or shares (float64)
    whose rows sum to 1.

    Rows are the known labels that have cells, in the order of their categories. Columns begin with
    the same labels in the same order, so that correct predictions are on the diagonal and a label
    that was never predicted is a column of zeros; other predictions follow in the order of their
    categories. ``"Unknown"`` comes last in rows and columns. If ``labels_key`` and
    ``prediction_key`` have no label in common, such as clusters and cell types, the columns are the
    predictions only.

    Raises
    ------
    KeyError
        If a column is missing.
    TypeError
        If a column cannot be read as labels.
    ValueError
        If cells have no label or no prediction.

    See Also
    --------
    tosica.pl.confusion : the same as a heatmap.

    Examples
    --------
    A prediction that mistakes every stem cell (CD34+) stands for what ``model.annotate`` writes.

    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata = adata[adata.obs["bulk_labels"].isin(["CD19+ B", "CD34+", "CD56+ NK"])].copy()
    >>> mistaken = adata.obs["bulk_labels"].astype(str).replace({"CD34+": "CD19+ B"})
    >>> adata.obs["tosica_prediction"] = mistaken
    >>> tosica.tl.confusion(adata, "bulk_labels")
    tosica_prediction  CD19+ B  CD34+  CD56+ NK
    bulk_labels
    CD19+ B                 95      0         0
    CD34+                   13      0         0
    CD56+ NK                 0      0        31
    """
    check_flags(normalize=normalize)
    known = read_groups(adata, labels_key, name="labels_key")
    predicted = read_groups(adata, prediction_key, name="prediction_key")
    rows = _unknown_last(list(known.categories))
    predictions = list(predicted.categories)
    shared = set(rows) & set(predictions) - {UNKNOWN}
    columns = [*rows, *(name for name in predictions if name not in rows)]
    columns = _unknown_last(columns if shared else predictions)

    counts = np.zeros((len(rows), len(columns)), dtype=np.int64)
    row_of = pd.Index(rows).get_indexer(known.categories)[known.codes]
    column_of = pd.Index(columns).get_indexer(predicted.categories)[predicted.codes]
    np.add.at(counts, (row_of, column_of), 1)
    table = counts / counts.sum(axis=1, keepdims=True) if normalize else counts
    return pd.DataFrame(
        table,
        index=pd.Index(rows, name=labels_key),
        columns=pd.Index(columns, name=prediction_key),
    )


def _unknown_last(labels: list[str]) -> list[str]:
    return sorted(labels, key=lambda label: label == UNKNOWN)
