"""Directions in gene expression along which the batches of a reference differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from scvi import settings

from tosica._threads import thread_map
from tosica.linear._subsample import MAX_CELLS, read_normalized, subsample_by_label

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tosica.data import CellMatrix, ModalitySlice


def find_batch_directions(
    rows: CellMatrix,
    cells: NDArray[np.integer],
    labels: NDArray[np.integer],
    batches: NDArray[np.integer],
    modality_slice: ModalitySlice,
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
    rows
        Expression of the reference.
    cells
        Positions of the cells to use.
    labels, batches
        Label and batch of each of them as a number, shape ``(n_cells,)``.
    section
        How expression is normalised.
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
    comparable = _is_comparable(labels, batches, min_cells)
    if not comparable.any():
        return None
    cells, labels, batches = cells[comparable], labels[comparable], batches[comparable]
    pairs, pair = np.unique(np.stack([labels, batches], 1), axis=0, return_inverse=True)
    subsample = subsample_by_label(pair.ravel(), max(max_cells, int(shrinkage * len(pairs))))
    labels, batches = labels[subsample], batches[subsample]
    x = read_normalized(rows, cells[subsample], modality_slice)
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
    """Inner products of the rows, or of the columns if these are fewer."""
    n_rows, n_columns = shifts.shape
    return shifts @ shifts.T if n_rows <= n_columns else shifts.T @ shifts


def _is_comparable(
    labels: NDArray[np.integer], batches: NDArray[np.integer], min_cells: int
) -> NDArray[np.bool_]:
    """Whether a cell's label has enough cells in the cell's batch and in another one."""
    pairs = np.stack([labels, batches], 1)
    _, pair, sizes = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    enough = sizes[pair.ravel()] >= min_cells
    label_of_pair = np.unique(pairs[enough], axis=0)[:, 0]
    found, n_batches = np.unique(label_of_pair, return_counts=True)
    return enough & np.isin(labels, found[n_batches > 1])


def _weighted_shifts(
    x: sp.csr_matrix, labels: NDArray[np.integer], batches: NDArray[np.integer], shrinkage: float
) -> NDArray[np.floating]:
    """Weighted shifts over the root of their number, ``(n_shifts, n_genes)``."""
    pairs, pair = np.unique(np.stack([labels, batches], 1), axis=0, return_inverse=True)
    pair = pair.ravel()
    sizes = np.bincount(pair)[:, None]
    sums = sp.csr_matrix((np.ones(len(pair)), (pair, np.arange(len(pair))))) @ x
    shifts = sums.toarray() / sizes
    for label in np.unique(labels):
        of_label = pairs[:, 0] == label
        shifts[of_label] -= shifts[of_label].mean(0)
    return shifts * np.sqrt(sizes / (sizes + shrinkage) / len(shifts))
