"""Annotations compared with known labels: scores, confusion, reliability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import binomtest
from sklearn.metrics import precision_recall_fscore_support

from tosica._obs import (
    HETEROGENEOUS,
    UNKNOWN,
    read_groups,
    read_labels,
    read_probabilities,
)
from tosica._settings import logger
from tosica._text import format_thousands, list_names
from tosica._validate import CellData, validate_params
from tosica.onto._ontology import (
    NO_TERM,
    TERM_SUFFIX,
    is_kind_of,
    match_label,
    read_ontology,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anndata import AnnData

    from tosica._types import AnnOrMuData, BoolArray, FloatArray, ObjectArray

_NO_LABEL = (UNKNOWN, HETEROGENEOUS)
_CALIBRATION_COLUMNS = [
    "low",
    "high",
    "n_cells",
    "probability",
    "accuracy",
    "accuracy_low",
    "accuracy_high",
]


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
        title = f"Evaluation of {self.summary.index[0]!r} on {format_thousands(int(row['n_cells']))} cells"
        return f"{title}\n{shares}\n{self.per_class.round(3).to_string()}"


@validate_params()
def evaluate(
    adata: AnnOrMuData,
    labels_key: str,
    *,
    key: str = "tosica",
    prediction_key: str | None = None,
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
    prediction_key
        Another column of ``adata.obs`` to evaluate, such as ``"tosica_majority_vote"``. There is
        no calibration then, because the probabilities are those of other labels.
    n_bins
        Number of bins of equal width between 0 and 1 for the calibration.
    ontology
        Also score by the Cell Ontology: a prediction is right if its term is that of the known
        label or a kind of it, such as "CD4-positive T cell" for "T cell"; the reverse is right for
        confident answers (the column ``"tosica_confident"``) and wrong for others. The terms of a
        column ``x`` are read from ``adata.obs["x_ontology_term_id"]``, which ``model.annotate`` and
        :func:`tosica.onto.map_labels` write, or else found by the names of the labels. Labels
        without a term are right only if they are spelled alike. The two columns may then use
        different words for the same cells.

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
    >>> adata = adata[
    ...     adata.obs["bulk_labels"].isin(["CD19+ B", "CD34+", "CD56+ NK"])
    ... ].copy()
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
    column = f"{key}_prediction" if prediction_key is None else prediction_key
    trained = read_labels(adata, key)
    truth, predicted, labeled = _read_pairs(
        adata, labels_key, column, trained, "evaluate"
    )
    probability = None
    if column == f"{key}_prediction":
        probability = read_probabilities(adata, key)[labeled]
    terms = None
    if ontology:
        terms = _score_terms(
            adata, labels_key, column, labeled, confident=column == f"{key}_confident"
        )
    true_labels = set(truth.categories) - {UNKNOWN}
    shared = true_labels & {*trained, *predicted.categories}
    # With terms, other words are no reason that none is correct.
    if true_labels and not shared and terms is None:
        raise ValueError(
            f"adata.obs[{labels_key!r}] and adata.obs[{column!r}] have no label in common "
            f"({truth[0]!r}, {predicted[0]!r}): bring both to the same words."
        )
    if trained and terms is None and column == f"{key}_prediction":
        # Labels of broader levels and of votes are no labels of the model and can be right.
        _log_foreign_labels(truth, true_labels - shared)
    is_right = np.asarray(truth) == np.asarray(predicted)
    is_named = np.asarray(predicted != UNKNOWN)
    calibration = None
    if probability is not None:
        calibration = calibration_bins(
            is_right[is_named], probability[is_named], n_bins
        )
    table = _count_pairs(truth, predicted, labels_key, column)
    per_class = _score_classes(truth, predicted, probability, table.index)
    scores = {
        "n_cells": len(truth),
        "accuracy": is_right.mean(),
        "balanced_accuracy": per_class["recall"].mean(),
        "macro_f1": per_class["f1"].mean(),
        "expected_calibration_error": expected_calibration_error(calibration),
        "share_unknown": predicted.isin(_NO_LABEL).mean(),
    }
    if terms is not None:
        is_kind = terms["is_kind"] | is_right
        per_class["ontology_recall"] = (
            is_kind.groupby(np.asarray(truth)).mean().reindex(per_class.index)
        )
        scores["ontology_accuracy"] = is_kind.mean()
        scores["share_without_term"] = (~terms["has_terms"]).mean()
    summary = pd.DataFrame(scores, index=pd.Index([column]))
    return Evaluation(summary, per_class, table, calibration)


def _read_pairs(
    adata: AnnOrMuData,
    labels_key: str,
    prediction_key: str,
    trained: list[str],
    function: str,
) -> tuple[pd.Categorical, pd.Categorical, BoolArray]:
    """Read the known and the predicted label of each cell that has both, and log how many have none.

    Parameters
    ----------
    adata
        The query.
    labels_key, prediction_key
        Columns of ``adata.obs``.
    trained
        Labels of the model, whose spelling of numbers counts.
    function
        Name of the caller, for the log.

    Returns
    -------
    Known and predicted labels of the labeled cells, and which cells these are, ``(n_obs,)``.

    Raises
    ------
    ValueError
        If no cell has a known label, or cells have no prediction.
    """
    # All cells are read, so that the message on missing predictions counts all of them.
    predicted = read_groups(adata, prediction_key, name="prediction_key", known=trained)
    truth = read_groups(
        adata,
        labels_key,
        name="labels_key",
        allow_missing=True,
        known=[*trained, *predicted.categories],
    )
    labeled = np.asarray(truth.codes >= 0)
    if not labeled.any():
        raise ValueError(
            f"No cell has a known label: adata.obs[{labels_key!r}] is missing (NaN) in all."
        )
    if not labeled.all():
        logger.info(
            "%s: %s of %s cells have no label in .obs[%r] and are left out",
            function,
            format_thousands(int((~labeled).sum())),
            format_thousands(len(labeled)),
            labels_key,
        )
    return (
        truth[labeled].remove_unused_categories(),
        predicted[labeled].remove_unused_categories(),
        labeled,
    )


def _log_foreign_labels(truth: pd.Categorical, foreign: set[str]) -> None:
    """Log how many cells have a label that neither the model nor a prediction has."""
    if foreign:
        logger.warning(
            "evaluate: the model was not trained on %s, so these cells (%s) count as wrong",
            list_names(sorted(foreign)),
            format_thousands(int(truth.isin(sorted(foreign)).sum())),
        )


def _score_classes(
    truth: pd.Categorical,
    predicted: pd.Categorical,
    probability: FloatArray | None,
    labels: pd.Index,
) -> pd.DataFrame:
    """Score each known label, and average the probability of the cells that are called so."""
    precision, recall, f1, n_cells = precision_recall_fscore_support(
        np.asarray(truth),
        np.asarray(predicted),
        labels=list(labels),
        average=None,
        zero_division=np.nan,
    )
    of_predicted = pd.Series(probability, range(len(truth)), dtype=float).groupby(
        np.asarray(predicted)
    )
    return pd.DataFrame(
        {
            "n_cells": n_cells,
            "n_predicted": of_predicted.size().reindex(labels, fill_value=0),
            "precision": precision,
            "recall": recall,
            "f1": f1,
            "probability": of_predicted.mean().reindex(labels),
        },
        index=labels,
    )


@validate_params(adata=CellData(mudata=True))
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
        Cells without a known label (NaN) are left out.
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
        If no cell has a known label, or cells have no prediction.

    See Also
    --------
    tosica.pl.confusion : the same as a heatmap.

    Examples
    --------
    A prediction that mistakes every stem cell (CD34+) stands for what ``model.annotate`` writes.

    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata = adata[
    ...     adata.obs["bulk_labels"].isin(["CD19+ B", "CD34+", "CD56+ NK"])
    ... ].copy()
    >>> mistaken = adata.obs["bulk_labels"].astype(str).replace({"CD34+": "CD19+ B"})
    >>> adata.obs["tosica_prediction"] = mistaken
    >>> tosica.tl.confusion(adata, "bulk_labels")
    tosica_prediction  CD19+ B  CD34+  CD56+ NK
    bulk_labels
    CD19+ B                 95      0         0
    CD34+                   13      0         0
    CD56+ NK                 0      0        31
    """
    key = prediction_key.removesuffix("_prediction")
    trained = read_labels(adata, key)
    truth, predicted, _ = _read_pairs(
        adata, labels_key, prediction_key, trained, "confusion"
    )
    counts = _count_pairs(truth, predicted, labels_key, prediction_key)
    return counts.div(counts.sum(axis=1), axis=0) if normalize else counts


def _count_pairs(
    truth: pd.Categorical, predicted: pd.Categorical, labels_key: str, column: str
) -> pd.DataFrame:
    """Count the cells of each known and predicted label."""
    rows = _unknown_last(truth.categories)
    columns = _unknown_last(predicted.categories)
    if set(rows) & set(columns) - {UNKNOWN}:
        columns = _unknown_last(dict.fromkeys([*rows, *columns]))
    counts = pd.crosstab(np.asarray(truth), np.asarray(predicted))
    counts = counts.reindex(index=rows, columns=columns, fill_value=0)
    return counts.rename_axis(index=labels_key, columns=column)


def _unknown_last(labels: Iterable[str]) -> list[str]:
    return sorted(labels, key=lambda label: label == UNKNOWN)


@validate_params(adata=CellData(mudata=True))
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
        If no cell has a known label, all are "Unknown", or no known label is predicted.

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
    table = evaluate(adata, labels_key, key=key, n_bins=n_bins).calibration
    if table is None or table.empty:
        raise ValueError(f"All cells of adata.obs['{key}_prediction'] are {UNKNOWN!r}.")
    return table


def calibration_bins(
    is_right: BoolArray, probability: FloatArray, n_bins: int
) -> pd.DataFrame:
    """Compute the accuracy in each bin of the probability.

    Parameters
    ----------
    is_right
        Whether each cell's label is correct, shape ``(n_cells,)``.
    probability
        Probability of this label, shape ``(n_cells,)``.
    n_bins
        Number of bins of equal width between 0 and 1.

    Returns
    -------
    The table of :func:`tosica.tl.reliability`; no rows if there are no cells.
    """
    edges = np.linspace(0, 1, n_bins + 1)
    bins = np.clip(np.searchsorted(edges, probability, side="left") - 1, 0, n_bins - 1)
    rows = []
    for i in np.unique(bins):
        in_bin = bins == i
        n_cells = int(in_bin.sum())
        n_right = int(is_right[in_bin].sum())
        interval = binomtest(n_right, n_cells).proportion_ci(method="wilson")
        rows.append(
            {
                "low": edges[i],
                "high": edges[i + 1],
                "n_cells": n_cells,
                "probability": probability[in_bin].mean(),
                "accuracy": n_right / n_cells,
                "accuracy_low": interval.low,
                "accuracy_high": interval.high,
            }
        )
    return pd.DataFrame(rows, columns=_CALIBRATION_COLUMNS)


def expected_calibration_error(table: pd.DataFrame | None) -> float:
    """Mean difference between accuracy and probability, weighted by cells :cite:p:`Guo2017`.

    Parameters
    ----------
    table
        The result of :func:`calibration_bins`.

    Returns
    -------
    Between 0 and 1; NaN if there is no table or it has no rows.
    """
    if table is None or table.empty:
        return float("nan")
    distance = (table["accuracy"] - table["probability"]).abs()
    return float(np.average(distance, weights=table["n_cells"]))


def _score_terms(
    adata: AnnOrMuData,
    labels_key: str,
    column: str,
    labeled: BoolArray,
    *,
    confident: bool,
) -> pd.DataFrame:
    """Score predictions by the terms of known and predicted labels.

    Parameters
    ----------
    adata
        The query.
    labels_key, column
        Columns of ``adata.obs`` with known and predicted labels.
    labeled
        Cells to score, ``(n_obs,)``.
    confident
        Whether a prediction is right, too, if the known label is a kind of it.

    Returns
    -------
    Table with the columns ``is_kind``, of the prediction, and ``has_terms``, for both labels.

    Raises
    ------
    ValueError
        If no cell has a term for both.
    """
    truth = _terms(adata, labels_key)[labeled]
    predicted = _terms(adata, column)[labeled]
    has_terms = (truth != NO_TERM) & (predicted != NO_TERM)
    if not has_terms.any():
        columns = {labels_key: truth, column: predicted}
        without = [name for name, terms in columns.items() if (terms == NO_TERM).all()]
        if not without:
            raise ValueError(
                f"ontology=True was given, but no cell has terms for both its labels in adata.obs[{labels_key!r}] and "
                f"adata.obs[{column!r}]: name the terms of the others in tosica.onto.map_labels(..., mapping=...)."
            )
        raise ValueError(
            f"ontology=True was given, but no cell has a term for its label in adata.obs[{without[0]!r}]: "
            f"call tosica.onto.map_labels(adata, {without[0]!r}, mapping={{label: identifier}}) first."
        )
    kinds: dict[tuple[str, str], bool] = {}
    for a, b in set(zip(predicted, truth, strict=True)):
        kinds[a, b] = is_kind_of(a, b) or (confident and is_kind_of(b, a))
    is_kind = [kinds[pair] for pair in zip(predicted, truth, strict=True)]
    return pd.DataFrame({"is_kind": is_kind, "has_terms": has_terms})


def _terms(adata: AnnOrMuData, column: str) -> ObjectArray:
    """Term of each cell's label: from the column that has them, else by the label's name."""
    term_column = f"{column}{TERM_SUFFIX}"
    if term_column in adata.obs:
        groups = read_groups(adata, term_column, name="labels_key", allow_missing=True)
        names = read_ontology().names
        terms = [term if term in names else NO_TERM for term in groups.categories]
    else:
        groups = read_groups(adata, column, name="labels_key", allow_missing=True)
        terms = [match_label(label).term or NO_TERM for label in groups.categories]
    # Cells without a label have the code -1.
    return np.array([*terms, NO_TERM], dtype=object)[groups.codes]
