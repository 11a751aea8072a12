"""Evaluation of an annotation against known labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from anndata import AnnData
from sklearn.metrics import accuracy_score, precision_recall_fscore_support

from tosica._constants import HETEROGENEOUS, UNKNOWN
from tosica._groups import read_groups, read_labels
from tosica._logging import format_thousands, logger
from tosica._validation import check_count, check_data, check_flags, check_string
from tosica.tl._confusion import confusion
from tosica.tl._ontology_accuracy import score_terms
from tosica.tl._reliability import (
    calibration_bins,
    expected_calibration_error,
    read_probability,
)

if TYPE_CHECKING:
    from mudata import MuData

_NO_LABEL = (UNKNOWN, HETEROGENEOUS)


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Tables of an evaluation, see :func:`tosica.tl.evaluate`.

    Printed, it shows ``summary`` and ``per_class``.
    """

    summary: pd.DataFrame
    """One row, named by the column that was evaluated, so that several evaluations can be
    concatenated with :func:`pandas.concat`. It has ``n_cells`` (with a known label),
    ``accuracy``, ``balanced_accuracy`` (mean recall of the known labels), ``macro_f1`` (mean F1 of
    the known labels), ``expected_calibration_error`` (:cite:t:`Guo2017`; NaN without
    probabilities) and ``share_unknown`` (cells called "Unknown" or "Heterogeneous"). With
    ``ontology=True`` also ``ontology_accuracy`` (share of cells whose prediction is the known label
    or a kind of it) and ``share_without_term`` (cells whose known or predicted label has no
    term)."""

    per_class: pd.DataFrame
    """One row a known label, with ``n_cells`` (that have it), ``n_predicted`` (cells with this
    prediction), ``precision`` (NaN if there are none), ``recall``, ``f1``, and ``probability``
    (mean of the cells with this prediction, to compare with ``precision``; NaN without such cells
    or probabilities). With ``ontology=True`` also ``ontology_recall`` (share of its cells whose
    prediction is this label or a kind of it)."""

    confusion: pd.DataFrame
    """Table of known labels and predictions, see :func:`tosica.tl.confusion`."""

    calibration: pd.DataFrame | None
    """Accuracy in bins of the probability, without "Unknown", see
    :func:`tosica.tl.reliability`. No rows if all cells are "Unknown"; ``None`` if a column without
    probabilities was evaluated."""

    def __repr__(self) -> str:
        """Summary and table of the classes."""
        row = self.summary.iloc[0]
        shares = ", ".join(
            f"{name.replace('_', ' ')} {row[name]:.3f}"
            for name in self.summary.columns
            if name != "n_cells" and not np.isnan(row[name])
        )
        return (
            f"Evaluation of {self.summary.index[0]!r} on "
            f"{format_thousands(int(row['n_cells']))} cells\n"
            f"{shares}\n{self.per_class.round(3).to_string()}"
        )


def evaluate(
    adata: AnnData | MuData,
    labels_key: str,
    *,
    key: str = "tosica",
    prediction: str | None = None,
    n_bins: int = 10,
    ontology: bool = False,
) -> Evaluation:
    """Compare an annotation with known labels: accuracy, macro-F1, each class, calibration.

    Parameters
    ----------
    adata
        Query, an AnnData or a MuData, that ``model.annotate`` has annotated. It is not changed.
    labels_key
        Column of ``adata.obs`` with the known labels, spelled as in the predictions. Cells without
        one (NaN) are left out; the log says how many.
    key
        ``key_added`` of ``model.annotate``.
    prediction
        Another column of ``adata.obs`` to evaluate, such as ``"tosica_majority_vote"``. There is
        no calibration then, because the probabilities are those of other labels.
    n_bins
        Number of bins of equal width between 0 and 1 for the calibration.
    ontology
        Also score by the Cell Ontology: a prediction is right if its term is that of the known
        label or a kind of it, such as "CD4-positive T cell" for "T cell"; the reverse is wrong. The
        terms of a column ``x`` are read from ``adata.obs["x_ontology_term_id"]``, which
        ``model.annotate`` and :func:`tosica.onto.map_labels` write, or else found by the names of
        the labels. Labels without a term are right only if they are spelled alike. The two columns
        may then use different words for the same cells.

    Returns
    -------
    :class:`~tosica.tl.Evaluation` with the tables ``summary``, ``per_class``, ``confusion`` and
    ``calibration``.

    The predictions "Unknown" and "Heterogeneous" count as wrong, unless they are the known label,
    too. Cells whose known label the model was not trained on count as wrong; the log names such
    labels. Means over labels (``macro_f1``, ``balanced_accuracy``) are over the known labels.
    scikit-learn's default also counts labels that only the predictions have, with a score of 0.

    Raises
    ------
    KeyError
        If a column is missing.
    TypeError
        If ``adata`` is neither AnnData nor MuData, or a column cannot be read as labels.
    ValueError
        If there are no cells, none has a known label, some have no prediction, no known label is a
        prediction or a label of the model, or ``n_bins`` is below 1; if ``ontology=True`` and no
        cell has a term for both labels.

    See Also
    --------
    tosica.pl.confusion, tosica.pl.reliability : two of the tables as plots.

    Examples
    --------
    A prediction that mistakes every stem cell (CD34+) stands for what ``model.annotate`` writes.

    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata = adata[adata.obs["bulk_labels"].isin(["CD19+ B", "CD34+", "CD56+ NK"])].copy()
    >>> mistaken = adata.obs["bulk_labels"].astype(str).replace({"CD34+": "CD19+ B"})
    >>> adata.obs["tosica_prediction"] = mistaken
    >>> adata.obs["tosica_probability"] = 0.9
    >>> evaluation = tosica.tl.evaluate(adata, "bulk_labels")
    >>> evaluation
    Evaluation of 'tosica_prediction' on 139 cells
    accuracy 0.906, balanced accuracy 0.667, macro f1 0.645, ...
                 n_cells  n_predicted  precision  recall     f1  probability
    bulk_labels
    CD19+ B           95          108       0.88     1.0  0.936          0.9
    CD34+             13            0        NaN     0.0  0.000          NaN
    CD56+ NK          31           31       1.00     1.0  1.000          0.9
    >>> int(evaluation.confusion.loc["CD34+", "CD19+ B"])
    13
    """
    check_data(adata, mudata=True)
    check_string("key", key)
    check_count("n_bins", n_bins)
    check_flags(ontology=ontology)
    own = f"{key}_prediction"
    column = own if prediction is None else prediction
    known = read_groups(adata, labels_key, name="labels_key", allow_missing=True)
    labeled = known.codes >= 0
    if not labeled.any():
        raise ValueError(
            f"No cell has a known label: adata.obs[{labels_key!r}] is missing (NaN) in all."
        )
    # All cells are read, so that the message on missing predictions counts all of them.
    predicted = read_groups(adata, column, name="prediction")
    probability = read_probability(adata, key)[labeled] if column == own else None
    obs = pd.DataFrame({labels_key: known[labeled], column: predicted[labeled]})
    cells = AnnData(obs=obs.set_axis(obs.index.astype(str)))
    truth = np.asarray(cells.obs[labels_key]).astype(str)
    called = np.asarray(cells.obs[column]).astype(str)
    scores = score_terms(adata, labels_key, column, labeled) if ontology else None
    _log_labels(adata, labeled, truth, called, labels_key, column, key, ontology)

    table = confusion(cells, labels_key, prediction_key=column)
    labels = list(table.index)
    right = truth == called
    calibration = None
    if probability is not None:
        named = called != UNKNOWN
        calibration = calibration_bins(right[named], probability[named], n_bins)
    precision, recall, f1, n_cells = precision_recall_fscore_support(
        truth, called, labels=labels, average=None, zero_division=np.nan
    )
    per_class = pd.DataFrame(
        {
            "n_cells": n_cells,
            "n_predicted": [int((called == label).sum()) for label in labels],
            "precision": precision,
            "recall": recall,
            "f1": f1,
            "probability": [_mean_probability(probability, called == label) for label in labels],
        },
        index=pd.Index(labels, name=labels_key),
    )
    if scores is not None:
        rights = pd.Series(scores.right).groupby(truth).mean()
        per_class["ontology_recall"] = rights.reindex(labels).to_numpy()
    error = float("nan") if calibration is None else expected_calibration_error(calibration)
    summary = pd.DataFrame(
        {
            "n_cells": len(truth),
            "accuracy": accuracy_score(truth, called),
            "balanced_accuracy": recall.mean(),
            "macro_f1": f1.mean(),
            "expected_calibration_error": error,
            "share_unknown": np.isin(called, _NO_LABEL).mean(),
        },
        index=pd.Index([column]),
    )
    if scores is not None:
        summary["ontology_accuracy"] = scores.right.mean()
        summary["share_without_term"] = (~scores.has_terms).mean()
    return Evaluation(summary, per_class, table, calibration)


def _mean_probability(probability: np.ndarray | None, inside: np.ndarray) -> float:
    if probability is None or not inside.any():
        return float("nan")
    return float(probability[inside].mean())


def _log_labels(
    adata: AnnData | MuData,
    labeled: np.ndarray,
    truth: np.ndarray,
    called: np.ndarray,
    labels_key: str,
    column: str,
    key: str,
    ontology: bool,
) -> None:
    """Log which cells and labels cannot be correct; raise if none can."""
    trained = set(read_labels(adata, key))
    words = set(truth) - {UNKNOWN}
    # With terms, other words are no reason that none is correct.
    if words and not words & (trained | set(called)) and not ontology:
        raise ValueError(
            f"adata.obs[{labels_key!r}] and adata.obs[{column!r}] have no label in common "
            f"({str(truth[0])!r}, {str(called[0])!r}): bring both to the same words."
        )
    n_left_out = int((~labeled).sum())
    if n_left_out:
        logger.info(
            "evaluate: %s of %s cells have no label in .obs[%r] and are left out",
            format_thousands(n_left_out),
            format_thousands(len(labeled)),
            labels_key,
        )
    foreign = sorted(words - trained) if trained else []
    if foreign:
        logger.info(
            "evaluate: the model was not trained on %s, so these cells (%s) count as wrong",
            ", ".join(repr(str(label)) for label in foreign),
            format_thousands(int(np.isin(truth, foreign).sum())),
        )
