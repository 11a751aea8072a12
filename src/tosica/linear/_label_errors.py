"""Find wrong labels of the reference by cross-validation (confident learning)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import softmax

from tosica.data import BLOCK
from tosica.linear._classifier import (
    MAX_CELLS_CROSS_FIT,
    LabeledRows,
    cross_fit,
    subsample_by_label,
)
from tosica.linear._logistic import RegressionConfig, fit_regressions

if TYPE_CHECKING:
    import scipy.sparse as sp

    from tosica._types import BoolArray, FloatArray, IntArray


# Least share of flagged cells among all cells, and among misclassified ones.
_MIN_SHARE = 0.07
_MIN_SHARE_OF_MISCLASSIFIED = 0.4
# A cell may be flagged if its own label is less probable, and another label is more probable.
_MAX_SELF_CONFIDENCE = 0.05
_MIN_CONFIDENCE = 0.5
# Largest share of a label's cells that is flagged: those with the lowest self-confidence.
_MAX_SHARE_OF_LABEL = 0.5
# Cells of labels with fewer cells are not flagged.
_MIN_CELLS_OF_LABEL = 5
# Without a nuisance penalty: where labels are wrong, cells differ within labels as between them. The
# ridge penalty is strong, so that single wrong labels are not fitted.
_CONFIG = RegressionConfig(C=0.3, within_class_penalty=0, multinomial=True)


def find_label_errors(data: LabeledRows) -> IntArray:
    """Find cells with a wrong label, if such cells are frequent: another label is probable, and theirs is not.

    Probabilities are those of a classifier that was not fitted to the cell (confident learning;
    Northcutt et al., *J. Artif. Intell. Res.* 70, 2021). Some cells with a right label are flagged as
    well: hard cells, which are the most informative for a network. Hence no cell is returned unless
    flagged cells are frequent, both among all cells and among the misclassified ones. With similar
    cell types, many cells are misclassified, but few of them confidently.

    Parameters
    ----------
    data
        The labeled cells, in order.

    Returns
    -------
    Positions of the flagged cells in the reference, in their order, or none.
    """
    _, codes, sizes = np.unique(data.labels, return_inverse=True, return_counts=True)
    if sizes.max() < 2:
        # No cell can be held out.
        return data.cells[:0]
    self_confidence, confidence = _cross_fitted_confidence(replace(data, labels=codes))
    is_error = (self_confidence < _MAX_SELF_CONFIDENCE) & (confidence > _MIN_CONFIDENCE)
    for code, size in enumerate(sizes):
        flagged = np.flatnonzero((codes == code) & is_error)
        max_flagged = int(_MAX_SHARE_OF_LABEL * size)
        if size < _MIN_CELLS_OF_LABEL:
            max_flagged = 0
        by_confidence = np.argsort(self_confidence[flagged], kind="stable")
        is_error[flagged[by_confidence[max_flagged:]]] = False
    n_misclassified = (self_confidence < confidence).sum()
    if is_error.mean() <= _MIN_SHARE:
        return data.cells[:0]
    if is_error.sum() <= _MIN_SHARE_OF_MISCLASSIFIED * n_misclassified:
        return data.cells[:0]
    return data.cells[is_error]


def _cross_fitted_confidence(
    data: LabeledRows,
) -> tuple[FloatArray, FloatArray]:
    """Compute the probability of each cell's own and most probable label, cross-fitted.

    Classifiers are fitted to a subsample. Other cells are scored by their mean.
    """
    n_cells = len(data.cells)
    subsample = subsample_by_label(data.labels, MAX_CELLS_CROSS_FIT)
    x = data[subsample].expression()
    labels = data.labels[subsample]
    # The only cell of a label is in no fold.
    self_confidence = np.ones(n_cells)
    confidence = np.ones(n_cells)

    def fit(cells: BoolArray) -> FloatArray:
        return fit_regressions(x[cells], labels[cells], config=_CONFIG).ridge

    def score(cells: IntArray, x: sp.csr_matrix, weights: FloatArray) -> None:
        probabilities = softmax(x @ weights.T, axis=1)
        rows = np.arange(len(cells))
        self_confidence[cells] = probabilities[rows, data.labels[cells]]
        confidence[cells] = probabilities.max(1)

    fold_weights = []
    for fold, weights in cross_fit(labels, fit):
        score(subsample[fold], x[fold], weights)
        fold_weights.append(weights)
    # No regression was fitted to cells outside the subsample.
    mean_weights = np.mean(fold_weights, axis=0)
    outside = np.setdiff1d(np.arange(n_cells), subsample)
    for offset in range(0, len(outside), BLOCK):
        block = outside[offset : offset + BLOCK]
        score(block, data[block].expression(), mean_weights)
    return self_confidence, confidence
