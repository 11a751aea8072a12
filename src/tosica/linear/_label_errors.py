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
    from numpy.typing import NDArray


def find_label_errors(
    data: LabeledRows,
    *,
    min_share: float = 0.07,
    min_share_of_misclassified: float = 0.4,
    max_self_confidence: float = 0.05,
    min_confidence: float = 0.5,
    max_share_of_label: float = 0.5,
    min_cells_of_label: int = 5,
    max_cells: int = MAX_CELLS_CROSS_FIT,
    block_size: int = BLOCK,
    C: float = 0.3,
) -> np.ndarray:
    """Find cells with a wrong label, if such cells are frequent: another label is probable, and theirs is not.

    Probabilities are those of a classifier that was not fitted to the cell (confident learning;
    Northcutt et al., *J. Artif. Intell. Res.* 70, 2021). Some cells with a right label are flagged as
    well: hard cells, which are the most informative for a network. Hence no cell is returned unless
    flagged cells are frequent, both among all cells and among the misclassified ones. With similar
    cell types, many cells are misclassified, but few of them confidently.

    Parameters
    ----------
    data
        The labelled cells, in order.
    min_share
        Least share of flagged cells among all cells.
    min_share_of_misclassified
        Least share of flagged cells among misclassified cells.
    max_self_confidence
        Probability of a cell's own label below which it may be flagged.
    min_confidence
        Probability of another label above which it may be flagged.
    max_share_of_label
        Largest share of a label's cells that is flagged: those with the lowest self-confidence.
    min_cells_of_label
        Cells of labels with fewer cells are not flagged.
    max_cells
        Size of the subsample that classifiers are fitted to. Other cells are scored by their mean.
    block_size
        Number of cells that are read at once to score them.
    C
        Inverse strength of the ridge penalty. It is low, so that single wrong labels are not
        fitted.

    Returns
    -------
    Positions of the flagged cells in the reference, in their order, or none.
    """
    _, codes, sizes = np.unique(data.labels, return_inverse=True, return_counts=True)
    if sizes.max() < 2:
        # No cell can be held out.
        return data.cells[:0]
    self_confidence, confidence = _cross_fitted_confidence(
        replace(data, labels=codes), max_cells, block_size, C
    )
    is_error = (self_confidence < max_self_confidence) & (confidence > min_confidence)
    for code, size in enumerate(sizes):
        flagged = np.flatnonzero((codes == code) & is_error)
        max_flagged = int(max_share_of_label * size)
        if size < min_cells_of_label:
            max_flagged = 0
        by_confidence = np.argsort(self_confidence[flagged], kind="stable")
        is_error[flagged[by_confidence[max_flagged:]]] = False
    n_misclassified = (self_confidence < confidence).sum()
    if is_error.mean() <= min_share:
        return data.cells[:0]
    if is_error.sum() <= min_share_of_misclassified * n_misclassified:
        return data.cells[:0]
    return data.cells[is_error]


def _cross_fitted_confidence(
    data: LabeledRows, max_cells: int, block_size: int, C: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the probability of each cell's own and most probable label, cross-fitted."""
    n_cells = len(data.cells)
    subsample = subsample_by_label(data.labels, max_cells)
    x = data[subsample].expression()
    labels = data.labels[subsample]
    # Without a nuisance penalty: where labels are wrong, cells differ within labels as between them.
    config = RegressionConfig(C=C, within_class_penalty=0, multinomial=True)
    # The only cell of a label is in no fold.
    self_confidence = np.ones(n_cells)
    confidence = np.ones(n_cells)

    def fit(cells: NDArray[np.bool_]) -> NDArray[np.float64]:
        return fit_regressions(x[cells], labels[cells], config=config).ridge

    def score(
        cells: NDArray[np.integer], x: sp.csr_matrix, weights: NDArray[np.float64]
    ) -> None:
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
    for offset in range(0, len(outside), block_size):
        block = outside[offset : offset + block_size]
        score(block, data[block].expression(), mean_weights)
    return self_confidence, confidence
