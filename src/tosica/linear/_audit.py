"""Find wrong labels of the reference, and the directions along which its batches differ."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from scipy.special import softmax
from scvi import settings

from tosica._parallel import thread_map
from tosica.data import BLOCK
from tosica.linear._classifier import MAX_CELLS, MAX_CELLS_CROSS_FIT, LabeledRows, cross_fit, subsample_by_label
from tosica.linear._logistic import RegressionConfig, fit_regressions

if TYPE_CHECKING:
    from numpy.typing import NDArray


def find_label_errors(
    data: LabeledRows, *, min_share: float = 0.07, min_share_of_misclassified: float = 0.4, **flagging: Any
) -> np.ndarray:
    """Find cells with a wrong label, if such cells are frequent.

    Some cells with a right label are flagged as well: hard cells, which are the most informative
    for a network. Hence no cell is returned unless flagged cells are frequent, both among all cells
    and among the misclassified ones. With similar cell types, many cells are misclassified, but few
    of them confidently.

    Parameters
    ----------
    data
        The labelled cells, in order.
    min_share
        Least share of flagged cells among all cells.
    min_share_of_misclassified
        Least share of flagged cells among misclassified cells.
    **flagging
        Passed to :func:`flag_label_errors`.

    Returns
    -------
    Positions of the flagged cells in the reference, in their order, or none.
    """
    is_error, is_misclassified = flag_label_errors(data, **flagging)
    frequent = is_error.mean() > min_share and is_error.sum() > min_share_of_misclassified * is_misclassified.sum()
    return data.cells[is_error] if frequent else data.cells[:0]


def flag_label_errors(
    data: LabeledRows,
    *,
    max_self_confidence: float = 0.05,
    min_confidence: float = 0.5,
    max_share_of_label: float = 0.5,
    min_cells_of_label: int = 5,
    max_cells: int = MAX_CELLS_CROSS_FIT,
    block_size: int = BLOCK,
    C: float = 0.3,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Flag cells whose label is improbable, while another label is probable.

    Probabilities are those of a classifier that was not fitted to the cell (confident learning;
    Northcutt et al., *J. Artif. Intell. Res.* 70, 2021).

    Parameters
    ----------
    data
        The labelled cells, in order.
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
    Whether each cell is confidently predicted to have another label, and whether it is predicted to
    have another label at all, ``(n_cells,)`` each.
    """
    _, codes, sizes = np.unique(data.labels, return_inverse=True, return_counts=True)
    if sizes.max() < 2:
        # No cell can be held out.
        return np.zeros(len(codes), dtype=bool), np.zeros(len(codes), dtype=bool)
    self_confidence, confidence = _cross_fitted_confidence(replace(data, labels=codes), max_cells, block_size, C)
    is_error = (self_confidence < max_self_confidence) & (confidence > min_confidence)
    for code, size in enumerate(sizes):
        flagged = np.flatnonzero((codes == code) & is_error)
        n_flagged = int(max_share_of_label * size) if size >= min_cells_of_label else 0
        by_confidence = np.argsort(self_confidence[flagged], kind="stable")
        is_error[flagged[by_confidence[n_flagged:]]] = False
    return is_error, self_confidence < confidence


def _cross_fitted_confidence(
    data: LabeledRows, max_cells: int, block_size: int, C: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the probability of each cell's own and most probable label, cross-fitted."""
    subsample, n_cells = subsample_by_label(data.labels, max_cells), len(data.cells)
    x, known = data[subsample].expression(), data.labels[subsample]
    self_confidence, confidence = np.empty(n_cells), np.empty(n_cells)
    # Without a nuisance penalty: where labels are wrong, cells differ within labels as between them.
    config = RegressionConfig(C=C, within_class_penalty=0, multinomial=True)
    weights = []
    for held_out, fitted in cross_fit(known, lambda cells: fit_regressions(x[cells], known[cells], config=config)):
        of_fold = subsample[held_out]
        weights.append(fitted.ridge.weights)
        self_confidence[of_fold], confidence[of_fold] = _score_labels(x[held_out], weights[-1], known[held_out])
    # The only cell of a label is in no fold.
    single = subsample[np.bincount(known)[known] == 1]
    self_confidence[single] = confidence[single] = 1.0
    # No regression was fitted to cells outside the subsample.
    rest = np.setdiff1d(np.arange(n_cells), subsample)
    mean = np.mean(weights, axis=0)
    for start in range(0, len(rest), block_size):
        block = rest[start : start + block_size]
        some = data[block]
        self_confidence[block], confidence[block] = _score_labels(some.expression(), mean, some.labels)
    return self_confidence, confidence


def _score_labels(
    x: sp.csr_matrix, weights: NDArray[np.float64], labels: NDArray[np.integer]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the probability of each cell's own and of its most probable label."""
    probability = softmax(x @ weights.T, axis=1)
    return probability[np.arange(len(labels)), labels], probability.max(1)


# --------------------------------------------------------------------------- batches


def find_batch_directions(
    data: LabeledRows,
    batches: NDArray[np.integer],
    *,
    min_cells: int = 3,
    shrinkage: float = 10,
    n_permutations: int = 9,
    max_cells: int = MAX_CELLS,
) -> NDArray[np.floating] | None:
    r"""Find directions along which batches differ within labels, scaled to the typical difference.

    The shift of a label in a batch is its mean there less the average of its means in all batches.
    The principal components of all shifts are returned, as far as they are stronger than the
    strongest one after batches were permuted within labels (parallel analysis; Horn,
    *Psychometrika* 30, 1965).

    Parameters
    ----------
    data
        The cells to use.
    batches
        Batch of each of them as a number, shape ``(n_cells,)``.
    min_cells
        A label has a mean in a batch if it has so many cells there.
    shrinkage
        Shifts are weighted by :math:`n / (n + \text{shrinkage})` for :math:`n` cells.
    n_permutations
        Number of permutations.
    max_cells
        Size of the subsample that is used, balanced over pairs of label and batch. It is larger if
        that is needed for ``shrinkage`` cells of each pair.

    Returns
    -------
    Shape ``(n_directions, n_genes)``, in units of log-normalised expression, with no rows if
    batches differ no more than by chance. For directions :math:`s_i`,
    :math:`\sum_i s_i s_i^\top` is the mean outer product of the weighted shifts along these
    directions. ``None`` if no label has ``min_cells`` cells in two batches.
    """
    pairs, pair, sizes = _pairs(data.labels, batches)
    enough = sizes >= min_cells
    found, n_batches = np.unique(pairs[enough, 0], return_counts=True)
    # The cell's label has enough cells in the cell's batch and in another one.
    comparable = enough[pair] & np.isin(data.labels, found[n_batches > 1])
    if not comparable.any():
        return None
    data, batches = data[comparable], batches[comparable]
    pairs, pair, _ = _pairs(data.labels, batches)
    subsample = subsample_by_label(pair, max(max_cells, int(shrinkage * len(pairs))))
    data, batches = data[subsample], batches[subsample]
    labels, x = data.labels, data.expression()
    shifts = _weighted_shifts(x, labels, batches, shrinkage)
    variances, axes = np.linalg.eigh(_gram_matrix(shifts))
    lengths = np.sqrt(np.maximum(variances, 0))
    rng = np.random.default_rng(settings.seed)

    def strongest(permuted: NDArray[np.integer]) -> float:
        gram = _gram_matrix(_weighted_shifts(x, labels, permuted, shrinkage))
        return float(np.linalg.eigvalsh(gram)[-1]) ** 0.5

    permutations = (_permute_within(labels, batches, rng) for _ in range(n_permutations))
    by_chance = max(thread_map(strongest, permutations), default=0.0)
    # Shifts of identical cells are rounding errors.
    significant = lengths > max(by_chance, 1e-6)
    if len(axes) == len(shifts):
        return axes[:, significant].T @ shifts
    return (axes[:, significant] * lengths[significant]).T


def _permute_within(
    labels: NDArray[np.integer], batches: NDArray[np.integer], rng: np.random.Generator
) -> NDArray[np.integer]:
    """Permute the batches of the cells of each label."""
    permuted = batches.copy()
    for label in np.unique(labels):
        of_label = np.flatnonzero(labels == label)
        permuted[of_label] = rng.permutation(batches[of_label])
    return permuted


def _gram_matrix(shifts: NDArray[np.floating]) -> NDArray[np.floating]:
    """Multiply rows by one another, or columns if these are fewer."""
    n_rows, n_columns = shifts.shape
    return shifts @ shifts.T if n_rows <= n_columns else shifts.T @ shifts


def _pairs(labels: NDArray[np.integer], batches: NDArray[np.integer]) -> tuple[NDArray, NDArray, NDArray]:
    """Find the pairs of label and batch, the pair of each cell, and the cells of each pair."""
    stacked = np.stack([labels, batches], 1)
    pairs, pair, sizes = np.unique(stacked, axis=0, return_inverse=True, return_counts=True)
    return pairs, pair.ravel(), sizes


def _weighted_shifts(
    x: sp.csr_matrix, labels: NDArray[np.integer], batches: NDArray[np.integer], shrinkage: float
) -> NDArray[np.floating]:
    """Compute weighted shifts over the root of their number, ``(n_shifts, n_genes)``."""
    pairs, pair, counts = _pairs(labels, batches)
    sizes = counts[:, None]
    sums = sp.csr_matrix((np.ones(len(pair)), (pair, np.arange(len(pair))))) @ x
    shifts = sums.toarray() / sizes
    for label in np.unique(labels):
        of_label = pairs[:, 0] == label
        shifts[of_label] -= shifts[of_label].mean(0)
    return shifts * np.sqrt(sizes / (sizes + shrinkage) / len(shifts))
