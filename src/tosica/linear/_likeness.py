"""Whether a query is of the reference's genes and tissue, and which labels need genes that it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.stats import norm, spearmanr

from tosica._limits import LIMITS
from tosica.linear._reference_statistics import (
    MIN_CELLS,
    TINY,
    ReferenceStatistics,
    gene_weights,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import scipy.sparse as sp

    from tosica._types import BoolArray, Float32Array, FloatArray, IntArray

# Fewest labels whose differences are compared: two have only one.
_MIN_LABELS = 3
# Cells to draw of each label.
_N_DRAWN = 100


class HeldOutGenes(NamedTuple):
    """Labels that rest on some genes, and the others.

    ``positions`` are those of the cells' labels in ``ReferenceStatistics.labels``, -1 for none, ``(n_cells,)``;
    ``genes`` marks the genes that the labels do not rest on, ``(n_genes,)``.
    """

    positions: IntArray
    genes: BoolArray


def label_likeness(
    sums: FloatArray,
    n_cells: IntArray,
    statistics: ReferenceStatistics,
    weights: FloatArray,
) -> float | None:
    """Correlate what sets the labels of a query apart with what does in the reference.

    Cells of another tissue get labels, too, but by other genes. A batch moves all labels alike, so that it cancels.

    Parameters
    ----------
    sums
        Sum of the normalized expression of each label's cells, missing genes imputed, ``(n_labels, n_genes)``.
    n_cells
        Cells of each label, ``(n_labels,)``.
    statistics
        Statistics of the model's reference.
    weights
        Weight of each gene in the score of each label, ``(n_labels, n_genes)``.

    Returns
    -------
    Correlation, without subtracting means, between what genes add to the score of a label's mean cell less the mean
    over labels, in query and reference; the mean over labels with five cells, by cells. ``None`` for fewer than three
    such labels.
    """
    is_enough = n_cells[statistics.labels] >= MIN_CELLS
    if is_enough.sum() < _MIN_LABELS:
        return None
    labels = statistics.labels[is_enough]
    of_labels = weights[labels] - weights.mean(0)
    query = sums[labels] / n_cells[labels, None]
    query = (query - query.mean(0)) * of_labels
    reference = statistics.means[is_enough].astype(np.float64)
    reference = (reference - reference.mean(0)) * of_labels
    norms = np.linalg.norm(query, axis=1) * np.linalg.norm(reference, axis=1)
    correlations = (query * reference).sum(1) / np.maximum(norms, TINY)
    return float(np.average(correlations, weights=n_cells[labels]))


def permuted_genes_pvalue(
    x: sp.csr_matrix,
    held_out: Sequence[HeldOutGenes],
    statistics: ReferenceStatistics,
    measured: BoolArray | None = None,
) -> float | None:
    r"""Ask how often a query with permuted genes is as like the reference as this one.

    Cells of any tissue express nearly the same genes most, so that the mean cells of query and reference are
    correlated. Nuclei express others than cells do, but labels differ in the same genes, also in genes that the labels
    do not rest on. If neither holds, then the genes have names of other genes.

    With the differences :math:`q_{kg}` and :math:`r_{kg}` of label :math:`k` from the mean over labels in query and
    reference, in standard deviations of gene :math:`g` and less their mean over genes, the second test is that of
    :math:`T = \sum_{kg} q_{kg} r_{kg}`. Over permutations of :math:`n` genes it is normal with mean 0 and variance
    :math:`\sum_{kl} (q_k \cdot q_l)(r_k \cdot r_l) / (n - 1)` (Hoeffding, Ann. Math. Stat. 22, 558, 1951).

    Parameters
    ----------
    x
        Normalized expression of the query, ``(n_cells, n_genes)``.
    held_out
        Labels of the cells by some genes, and the other genes.
    statistics
        Statistics of the model's reference.
    measured
        Shape ``(n_genes,)``: ``False`` for genes that the query lacks, which are left out.

    Returns
    -------
    The smaller of the one-sided p-values of Spearman's correlation of the mean cells and of :math:`T`, times their
    number. There is none of :math:`T` for fewer than two labels with five cells. ``None`` without either, and for fewer
    than 20 cells: with five nuclei and a model of cells, it was 0.4.

    Examples
    --------
    >>> import numpy as np
    >>> import scipy.sparse as sp
    >>> from tosica.linear import fit_statistics
    >>> rng = np.random.default_rng(0)
    >>> cells = rng.poisson(rng.gamma(1, 1, 300), (100, 300)).astype(float)
    >>> reference = fit_statistics(sp.csr_matrix(cells), np.arange(100) % 2)
    >>> query = sp.csr_matrix(cells[:20])
    >>> permuted_genes_pvalue(query, [], reference) < 1e-6
    True
    >>> permuted = query[:, rng.permutation(300)]
    >>> permuted_genes_pvalue(permuted, [], reference) > 0.05
    True
    """
    if x.shape[0] < LIMITS.enough_cells:
        return None
    if measured is None:
        measured = np.ones(x.shape[1], dtype=bool)
    pvalues = []
    mean = np.asarray(x[:, measured].mean(0)).ravel()
    reference = statistics.means[:, measured].mean(0)
    if np.ptp(mean) and np.ptp(reference):
        correlation = spearmanr(mean, reference, alternative="greater")
        pvalues.append(float(correlation.pvalue))
    total = 0.0
    variance = 0.0
    for positions, genes in held_out:
        contrasts = _contrasts(x, positions, genes & measured, statistics)
        if contrasts is not None:
            of_query, of_reference = contrasts
            total += (of_query * of_reference).sum()
            products = (of_query @ of_query.T) * (of_reference @ of_reference.T)
            variance += products.sum() / max(of_query.shape[1] - 1, 1)
    if variance > 0:
        pvalues.append(float(norm.sf(total / np.sqrt(variance))))
    return min(1.0, len(pvalues) * min(pvalues)) if pvalues else None


def _contrasts(
    x: sp.csr_matrix,
    positions: IntArray,
    genes: BoolArray,
    statistics: ReferenceStatistics,
) -> tuple[FloatArray, FloatArray] | None:
    """What sets labels apart in some genes of query and reference, ``(n_labels, n_genes)``, centered over both."""
    n_cells = np.bincount(positions[positions >= 0], minlength=len(statistics.means))
    labels = np.flatnonzero(n_cells >= MIN_CELLS)
    if len(labels) < 2:
        return None
    scale = np.sqrt(gene_weights(statistics.variance, 1.0))[genes]
    of_genes = x[:, genes]
    means = [np.asarray(of_genes[positions == k].mean(0)).ravel() for k in labels]
    of_query = np.array(means) * scale
    of_reference = statistics.means[labels][:, genes] * scale
    return _centered(of_query), _centered(of_reference)


def _centered(values: FloatArray) -> FloatArray:
    values = values - values.mean(0)
    return np.asarray(values - values.mean(1, keepdims=True))


def label_changes(
    statistics: ReferenceStatistics,
    assign: Callable[[Float32Array, bool], IntArray],
    n_labels: int,
) -> Float32Array:
    """Estimate which share of each label's cells gets another label for the genes that a query lacks.

    Cells are drawn around the mean of each label with the variance of each gene within labels, because a model keeps
    no cells.

    Parameters
    ----------
    statistics
        Statistics of the model's reference.
    assign
        Gets the code of the best label of cells ``(n_cells, n_genes)``; the second argument says whether they lack
        the genes.
    n_labels
        Labels of the model.

    Returns
    -------
    Share of the cells with the right label that lose it, ``(n_labels,)``; NaN for labels that the statistics lack, or
    of whose cells none has it.
    """
    rng = np.random.default_rng(0)
    deviation = np.sqrt(np.maximum(statistics.variance, 0))
    changes = np.full(n_labels, np.nan, dtype=np.float32)
    for mean, code in zip(statistics.means, statistics.labels, strict=True):
        noise = rng.standard_normal((_N_DRAWN, len(mean)), dtype=np.float32)
        x = np.maximum(mean + deviation * noise, 0)
        is_right = assign(x, False) == code
        if is_right.any():
            changes[code] = (assign(x, True)[is_right] != code).mean()
    return changes
