"""Neighborhoods of a query: how far they are from their label, in the reference and in the query."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import TruncatedSVD
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from tosica.linear._reference_statistics import MIN_CELLS, TINY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tosica._types import BoolArray, FloatArray, IntArray
    from tosica.linear._reference_statistics import ReferenceStatistics

# Components of the query in which its cells are neighbors, and cells that each needs.
_N_COMPONENTS = 20
_CELLS_PER_COMPONENT = 5
# Cells of a neighborhood. Fifteen are better for types of 20 cells and miss those of four.
_N_NEIGHBORS = 5
# The exact search compares all pairs of cells: one minute for as many.
_MAX_CELLS_EXACT = 100_000
# A graph of fewer neighbors is not connected enough to be searched.
_N_NEIGHBORS_SEARCHED = 15
# Genes that count: a type differs from a similar one in few.
_N_GENES = 20
# Share of a gene's variance within labels that neighborhoods of one label differ by, since a
# neighborhood is no random sample of its label; and least variance, as a share of the median gene's.
_VARIANCE_OF_NEIGHBORHOODS = 0.05
_FLOOR = 0.02
# Most standard deviations of one gene in one cell, as in scanpy's tutorials: a rare gene would otherwise make a
# component of its own.
_MAX_SCALED = 10
# Median and mean absolute deviation to standard deviation, of a normal distribution.
_MAD_TO_SD = 1.4826
_MEAN_DEVIATION_TO_SD = 1.2533
# Cells of a label to estimate its shift from. More hardly change a median.
_MAX_CELLS_SHIFT = 1_000
# Differences of values that are equal but for rounding, as a share of them.
_ROUNDING = float(np.finfo(np.float32).eps)
# Cells whose means are dense at a time.
_BATCH_SIZE = 512


class Neighborhoods(NamedTuple):
    """Each cell of a query with the cells that are nearest in the query's own components."""

    components: FloatArray
    """Shape ``(n_cells, n_components)``."""
    nearest: IntArray
    """Positions of the nearest cells, the cell itself among them, ``(n_cells, n_neighbors)``."""

    def average(self) -> sp.csr_matrix:
        """Build the matrix whose product with values of cells are means over neighborhoods."""
        n_cells, n_neighbors = self.nearest.shape
        weights = np.full(self.nearest.size, 1 / n_neighbors, dtype=np.float32)
        row_starts = np.arange(0, self.nearest.size + 1, n_neighbors)
        return sp.csr_matrix(
            (weights, self.nearest.ravel(), row_starts), shape=(n_cells, n_cells)
        )


class LabelShift(NamedTuple):
    """Difference of a query from the reference in each gene, over its labels."""

    common: FloatArray
    """Median over labels, ``(n_genes,)``."""
    spread: FloatArray
    """Robust standard deviation over labels, ``(n_genes,)``."""


def find_neighborhoods(
    x: sp.csr_matrix, deviations: FloatArray | None = None
) -> Neighborhoods | None:
    """Find the nearest cells of each cell.

    Cells have unit length, since most of a cell's length is its sequencing depth.

    Parameters
    ----------
    x
        Normalized expression of the query, ``(n_cells, n_genes)``.
    deviations
        Standard deviation of each gene within labels, ``(n_genes,)``, to divide by. ``None`` in another batch, whose
        deviations are not known.

    Returns
    -------
    The neighborhoods, or ``None`` if the cells are too few or too alike to have components.
    """
    n_components = min(
        _N_COMPONENTS, x.shape[0] // _CELLS_PER_COMPONENT, x.shape[1] - 1
    )
    if n_components < _CELLS_PER_COMPONENT or sp.linalg.norm(x) == 0:
        return None
    scaled = x.astype(np.float64)
    if deviations is not None:
        scaled = sp.csr_matrix(scaled.multiply(1 / deviations))
        scaled.data = np.minimum(scaled.data, _MAX_SCALED)
    cells = normalize(scaled)
    # The mean of cells of length 1 has length 1 if all are alike.
    if np.linalg.norm(cells.mean(0)) > 1 - _ROUNDING:
        return None
    # This solver's result does not depend on the order of the cells.
    svd = TruncatedSVD(n_components, algorithm="arpack", random_state=0)
    components = svd.fit_transform(cells)
    components -= components.mean(0)
    return Neighborhoods(components, _nearest_cells(components))


def _nearest_cells(components: FloatArray) -> IntArray:
    """Find the nearest cells of each cell, nearly all of them if the cells are many."""
    if len(components) <= _MAX_CELLS_EXACT:
        search = NearestNeighbors(n_neighbors=_N_NEIGHBORS).fit(components)
        return np.asarray(search.kneighbors(components)[1])
    # It compiles its functions for a minute when it is called first.
    from pynndescent import NNDescent

    search = NNDescent(components, n_neighbors=_N_NEIGHBORS_SEARCHED, random_state=0)
    return np.asarray(search.neighbor_graph[0][:, :_N_NEIGHBORS], dtype=np.int64)


def neighborhood_labels(
    neighborhoods: Neighborhoods,
    positions: IntArray,
    probability: FloatArray,
    n_labels: int,
) -> IntArray:
    """Take the label with the largest sum of probabilities in each neighborhood.

    Parameters
    ----------
    neighborhoods
        Of all cells.
    positions
        Position of each cell's label, ``(n_cells,)``.
    probability
        Of that label, ``(n_cells,)``.
    n_labels
        Number of labels.

    Returns
    -------
    Positions, ``(n_cells,)``.
    """
    n_cells = len(positions)
    votes = sp.csr_matrix(
        (probability, (np.arange(n_cells), positions)), shape=(n_cells, n_labels)
    )
    sums = (neighborhoods.average() @ votes).toarray()
    return np.asarray(sums.argmax(1))


def label_shift(
    x: sp.csr_matrix,
    labels: IntArray,
    average: sp.csr_matrix,
    means: FloatArray,
) -> LabelShift:
    """Compare each label's median neighborhood with the label's mean in the reference.

    Parameters
    ----------
    x
        Normalized expression of the query, ``(n_cells, n_genes)``.
    labels
        Position of each neighborhood's label in ``means``, ``(n_cells,)``.
    average
        Matrix of :meth:`Neighborhoods.average`.
    means
        Mean expression of each label in the reference, ``(n_labels, n_genes)``.

    Returns
    -------
    Median and spread of the differences; none if fewer than two labels have enough cells, because a
    batch and a new type look the same in one label.
    """
    differences = []
    for label, mean in enumerate(means):
        cells = np.flatnonzero(labels == label)
        if len(cells) < MIN_CELLS:
            continue
        # Evenly over the cells, since their order may be that of samples.
        step = -(-len(cells) // _MAX_CELLS_SHIFT)
        expression = (average[cells[::step]] @ x).toarray()
        differences.append(np.median(expression, axis=0) - mean)
    if len(differences) < 2:
        no_shift = np.zeros(x.shape[1])
        return LabelShift(no_shift, no_shift)
    common = np.median(differences, axis=0)
    deviation = np.median(np.abs(differences - common), axis=0)
    return LabelShift(common, _MAD_TO_SD * deviation)


def gene_excess(
    x: sp.csr_matrix,
    labels: IntArray,
    average: sp.csr_matrix,
    shift: LabelShift,
    statistics: ReferenceStatistics,
    measured: BoolArray | None = None,
) -> FloatArray:
    r"""Compute how far each neighborhood is from its label in the genes that differ most.

    With the mean :math:`m_g` of gene :math:`g` over :math:`k` neighbors, the label's mean
    :math:`c_g` in the reference, the shift :math:`b_g` that labels share and its spread
    :math:`s_g`, and the variance :math:`v_g` within labels, a gene differs by

    .. math:: z_g = |m_g - c_g - b_g| / \sqrt{v_g / k + s_g^2 + 0.05 v_g + f}.

    The result is :math:`\log(1 + \bar z)` over the 20 genes with the largest :math:`z_g`.

    Parameters
    ----------
    x
        Normalized expression of the query, ``(n_cells, n_genes)``.
    labels
        Position of each neighborhood's label in ``statistics.labels``.
    average
        Matrix of :meth:`Neighborhoods.average`.
    shift
        Of the query.
    statistics
        Of the model's reference.
    measured
        Shape ``(n_genes,)``: ``False`` for genes that the query lacks, which are left out.

    Returns
    -------
    Shape ``(n_cells,)``.
    """
    variance = np.asarray(statistics.variance, dtype=np.float64)
    error = _error_of_means(variance, shift, n_cells=_N_NEIGHBORS)
    if measured is not None:
        error = np.where(measured, error, np.inf)
    n_genes = min(_N_GENES, x.shape[1])
    excess = np.zeros(x.shape[0])
    for rows, means in _means_in_blocks(x, average):
        expected = statistics.means[labels[rows]] + shift.common
        difference = np.abs(means - expected) / error
        largest = np.partition(difference, -n_genes, axis=1)[:, -n_genes:]
        excess[rows] = np.log1p(largest.mean(1))
    return excess


def distance_from_typical(
    neighborhoods: Neighborhoods,
    positions: IntArray,
    unlikeness: FloatArray,
) -> FloatArray:
    """Compute the distance from the query's own typical cells of the nearest label.

    A type that the reference lacks varies in the query's components, whatever the batch. The center
    of a label is the median of its typical cells; distances of the means of neighborhoods are
    Mahalanobis with the covariance of typical cells, in logarithms.

    Parameters
    ----------
    neighborhoods
        Of all cells.
    positions
        Position of each cell's label, ``(n_cells,)``.
    unlikeness
        How unlike its label each cell is, ``(n_cells,)``: the lower half of a label's cells is typical.

    Returns
    -------
    Shape ``(n_cells,)``; zeros if no label has enough cells.
    """
    centers = []
    residuals = []
    for cells in _typical_cells(positions, unlikeness).values():
        components = neighborhoods.components[cells]
        centers.append(np.median(components, axis=0))
        residuals.append(components - centers[-1])
    if not centers:
        return np.zeros(len(positions))
    covariance = LedoitWolf(assume_centered=True).fit(np.vstack(residuals))
    means = neighborhoods.average() @ neighborhoods.components
    distances = [covariance.mahalanobis(means - center) for center in centers]
    return np.log(np.maximum(np.min(distances, axis=0), TINY))


def _typical_cells(positions: IntArray, unlikeness: FloatArray) -> dict[int, IntArray]:
    """Take the lower half of each label's cells, with all that equal the highest; labels of few cells have none."""
    typical: dict[int, IntArray] = {}
    for label in np.unique(positions):
        cells = np.flatnonzero(positions == label)
        if len(cells) >= MIN_CELLS:
            middle = (len(cells) - 1) // 2
            highest = np.partition(unlikeness[cells], middle)[middle]
            typical[int(label)] = cells[unlikeness[cells] <= highest]
    return typical


def contrast_distance(
    x: sp.csr_matrix,
    labels: IntArray,
    average: sp.csr_matrix,
    unlikeness: FloatArray,
    statistics: ReferenceStatistics,
    measured: BoolArray | None = None,
) -> FloatArray:
    """Compare what sets a neighborhood apart from the query with what sets its label apart from the reference.

    What all cells of a query share cancels, and so does how strongly a technology tells types apart. Query and
    reference are the mean of the same labels, each of which counts once; that of a label in the query is the
    mean of its typical neighborhoods. Genes are in standard deviations within labels.

    Parameters
    ----------
    x
        Normalized expression of the query, ``(n_cells, n_genes)``.
    labels
        Position of each neighborhood's label in ``statistics.labels``.
    average
        Matrix of :meth:`Neighborhoods.average`.
    unlikeness
        How unlike its label each cell is, ``(n_cells,)``: the neighborhoods of the lower half are typical.
    statistics
        Of the model's reference.
    measured
        Shape ``(n_genes,)``: ``False`` for genes that the query lacks, which are left out.

    Returns
    -------
    Cosine distance of the two contrasts, ``(n_cells,)``; zeros if fewer than two labels have enough cells.
    """
    typical = _typical_cells(labels, unlikeness)
    if len(typical) < 2:
        return np.zeros(x.shape[0])
    weights = 1 / deviations_within_labels(statistics)
    if measured is not None:
        weights = weights * measured
    centers = [_mean_of(average[cells]) @ x for cells in typical.values()]
    query_center = np.mean(centers, axis=0)
    reference_center = statistics.means[list(typical)].mean(0)
    of_labels = normalize((statistics.means - reference_center) * weights)
    distance = np.zeros(x.shape[0])
    for rows, means in _means_in_blocks(x, average):
        of_neighborhoods = normalize((means - query_center) * weights)
        distance[rows] = 1 - (of_neighborhoods * of_labels[labels[rows]]).sum(1)
    return distance


def _means_in_blocks(
    x: sp.csr_matrix, average: sp.csr_matrix
) -> Iterator[tuple[slice, FloatArray]]:
    """Rows of a block of neighborhoods, and their means: all may not fit in memory as dense rows."""
    for first_row in range(0, x.shape[0], _BATCH_SIZE):
        rows = slice(first_row, first_row + _BATCH_SIZE)
        yield rows, (average[rows] @ x).toarray()


def _mean_of(rows: sp.csr_matrix) -> FloatArray:
    """Mean row, ``(n_columns,)``."""
    return np.asarray(rows.mean(0)).ravel()


def standardize_robustly(values: FloatArray) -> FloatArray:
    """Subtract the median and divide by the median absolute deviation, scaled to a normal's.

    If most values are equal, it is the mean absolute deviation (Iglewicz and Hoaglin, 1993).

    Examples
    --------
    >>> import numpy as np
    >>> standardize_robustly(np.array([1.0, 2.0, 3.0, 4.0, 100.0])).round(2).tolist()
    [-1.35, -0.67, 0.0, 0.67, 65.43]
    """
    deviation = values - np.median(values)
    scale = _MAD_TO_SD * np.median(np.abs(deviation))
    if scale < _ROUNDING * np.abs(deviation).max():
        scale = _MEAN_DEVIATION_TO_SD * np.abs(deviation).mean()
    return np.asarray(deviation / max(float(scale), TINY))


def genes_of_cluster(
    x: sp.csr_matrix,
    label: int,
    shift: LabelShift,
    statistics: ReferenceStatistics,
    highest_means: FloatArray,
    measured: BoolArray | None,
    n_genes: int,
) -> IntArray:
    """Rank the genes that cells express more than their label does in the reference.

    Genes that they express more than any label come first, by the geometric mean of the excess over their label
    and the excess over the label that expresses the gene most: they tell a type that the reference lacks. All
    others, as those of doublets, follow by the excess over the label alone.

    Parameters
    ----------
    x
        Normalized expression of the cluster's cells, ``(n_cells, n_genes)``.
    label
        Position of the cells' label in ``statistics.labels``.
    shift
        Of the query.
    statistics
        Of the model's reference.
    highest_means
        Largest mean of each gene over the labels of the reference, ``(n_genes,)``.
    measured
        Shape ``(n_genes,)``: ``False`` for genes that the query lacks, which are left out.
    n_genes
        Number of genes.

    Returns
    -------
    Positions of at most ``n_genes`` genes.
    """
    variance = np.asarray(statistics.variance, dtype=np.float64)
    error = _error_of_means(variance, shift, n_cells=x.shape[0])
    mean = (np.asarray(x.mean(0)).ravel() - shift.common) / error
    over_label = mean - statistics.means[label] / error
    over_all = mean - highest_means / error
    if measured is not None:
        over_label = over_label * measured
    excess = np.sqrt(np.maximum(over_label, 0) * np.maximum(over_all, 0))
    order = np.lexsort((-over_label, -excess))[:n_genes]
    return order[over_label[order] > 0]


def _error_of_means(
    variance: FloatArray, shift: LabelShift, n_cells: int
) -> FloatArray:
    """Standard error of a gene's mean over cells of a label, in another batch."""
    of_mean = variance / n_cells + _VARIANCE_OF_NEIGHBORHOODS * variance
    return np.sqrt(of_mean + shift.spread**2 + _least_variance(variance))


def deviations_within_labels(statistics: ReferenceStatistics) -> FloatArray:
    """Standard deviation of each gene within labels of the reference, above 0, ``(n_genes,)``."""
    variance = np.asarray(statistics.variance, dtype=np.float64)
    return np.sqrt(variance + _least_variance(variance))


def _least_variance(variance: FloatArray) -> float:
    """Variance that is added to all genes', so that none is 0."""
    varying = variance[variance > 0]
    return _FLOOR * float(np.median(varying)) if len(varying) else TINY
