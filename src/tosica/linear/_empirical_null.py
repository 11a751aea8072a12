"""p-values of distances from labels, which hold for known cells of another batch, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tosica.linear._reference_statistics import MIN_CELLS, TINY

if TYPE_CHECKING:
    from tosica._types import FloatArray, IntArray
    from tosica.linear._reference_statistics import ReferenceStatistics

# Query and reference are compared at these quantiles: new types have large distances, so that most
# cells below the first are known, unless nine tenths of a label's cells are new.
_LOW, _MIDDLE = 0.1, 0.5
# Fewest labels whose median is the spread of all: two with a new type are no majority of five.
_MIN_SPREADS = 5


def pvalues(scores: FloatArray, reference_scores: FloatArray) -> FloatArray:
    """Compute conformal p-values: the share of reference cells that score at least as high.

    Parameters
    ----------
    scores
        Scores of cells, shape ``(n_cells,)``.
    reference_scores
        Scores of the reference's cells, shape ``(n_reference,)``. The cell itself counts as one more.

    Returns
    -------
    Shape ``(n_cells,)``, above 0. For cells that are exchangeable with those of the reference, at
    most a share ``p`` has a value up to ``p`` (Bates et al., Ann. Stat. 51, 149, 2023).

    Examples
    --------
    >>> import numpy as np
    >>> pvalues(np.array([0.5, 9.0]), np.arange(1, 10)).tolist()
    [1.0, 0.2]
    """
    # Scores that differ by rounding alone are equal.
    ordered = np.sort(np.asarray(reference_scores, np.float32))
    n_lower = np.searchsorted(ordered, np.asarray(scores, np.float32), side="left")
    return (1 + len(ordered) - n_lower) / (len(ordered) + 1)


class EmpiricalNull(NamedTuple):
    """Distances of known cells: what is typical of each label, and how far they spread."""

    locations: FloatArray
    """Typical distance from each label, ``(n_labels,)``."""
    low: float
    """Lowest tenth of ``reference_distances``."""
    spread: float
    """Times that distances spread as far as in the reference, at least 1."""
    reference_distances: FloatArray
    """Distances of the reference's cells, less what the others of their label have typically, ``(n_reference,)``."""

    def standardize(self, distances: FloatArray, nearest: IntArray) -> FloatArray:
        """Make distances from the nearest labels comparable with ``reference_distances``, ``(n_cells,)``."""
        above_low = distances - self.locations[nearest] - self.low
        return self.low + above_low / self.spread

    def pvalues(self, distances: FloatArray, nearest: IntArray) -> FloatArray:
        """Compute the p-values of distances from the nearest labels, ``(n_cells,)`` each.

        They are those of conformal prediction as far as these cells differ from the reference's in
        location and spread alone.
        """
        return pvalues(self.standardize(distances, nearest), self.reference_distances)


def reference_null(statistics: ReferenceStatistics) -> EmpiricalNull:
    """Describe the distances of the reference's cells from their nearest labels.

    Types in which few genes vary together, and types of few cells, are further from their own mean
    than others. A query with more of them would have many small p-values, so that each label has
    its own location: the median of its cells, drawn towards the mean of all labels as far as the
    medians of few cells differ by chance (an empirical Bayes estimate). A label with one cell or
    none has the mean, because its cell may be an outlier, behind which a new type would hide; so a
    tenth of its known cells has a p-value up to 0.05 where labels differ as those of blood do.
    """
    distances = statistics.reference_scores.astype(np.float64)
    nearest = statistics.reference_nearest
    n_cells = np.bincount(nearest, minlength=len(statistics.means))
    # Of others, nobody knows what is typical.
    several = np.flatnonzero(n_cells > 1)
    medians = np.zeros(len(n_cells))
    # A cell is compared with others of its label, as cells of a query are.
    medians_of_others = np.zeros(len(distances))
    for label in several:
        of_label = nearest == label
        medians[label] = np.median(distances[of_label])
        medians_of_others[of_label] = _medians_of_others(distances[of_label])
    residuals = (distances - medians[nearest])[n_cells[nearest] > 1]
    mean = float(np.median(distances))
    # Share of the difference from the mean that is not chance.
    kept = np.zeros(len(n_cells))
    if len(several):
        variance = np.square(residuals).sum() / (len(residuals) - len(several))
        # Variance of the median of normal values.
        of_medians = np.maximum(np.pi / 2 * variance / n_cells[several], TINY)
        between = _variance_between(medians[several], of_medians)
        mean = np.average(medians[several], weights=1 / (of_medians + between))
        kept[several] = between / (of_medians + between)
    locations = mean + kept * (medians - mean)
    residuals = distances - mean - kept[nearest] * (medians_of_others - mean)
    return EmpiricalNull(locations, float(np.quantile(residuals, _LOW)), 1.0, residuals)


def _medians_of_others(values: FloatArray) -> FloatArray:
    """Compute for each of two or more values the median of all others, ``(n_values,)``."""
    rank = np.empty(len(values), dtype=np.int64)
    rank[np.argsort(values, kind="stable")] = np.arange(len(values))
    ordered = np.sort(values)
    n_others = len(values) - 1

    def other(position: int) -> FloatArray:
        return np.where(position < rank, ordered[position], ordered[position + 1])

    return (other((n_others - 1) // 2) + other(n_others // 2)) / 2


def _variance_between(values: FloatArray, variances: FloatArray) -> float:
    """Estimate by how much values vary beyond their own variances (DerSimonian and Laird, 1986)."""
    weights = 1 / variances
    mean = np.average(values, weights=weights)
    excess = weights @ np.square(values - mean) - (len(values) - 1)
    scale = weights.sum() - np.square(weights).sum() / weights.sum()
    return max(float(excess), 0) / max(float(scale), TINY)


def fit_null(
    statistics: ReferenceStatistics,
    distances: FloatArray,
    nearest: IntArray,
    *,
    same_batch: bool = False,
) -> EmpiricalNull:
    """Fit the distances of known cells to a query (an empirical null, Efron, JASA 99, 96, 2004).

    Another batch moves all cells away from the reference, and not all by the same. The distances
    from each label are lowered until the lowest tenth of its cells is as low as the reference's,
    and the spread between there and the median is compared with the reference's. It is the median
    over labels, so that new types under one label or two do not count.

    Parameters
    ----------
    statistics
        Those of the reference.
    distances
        Distances of the query's cells from their nearest labels, ``(n_cells,)``.
    nearest
        Positions of these labels, ``(n_cells,)``.
    same_batch
        Whether the query is of the reference's batch: known cells do not spread further then.

    Returns
    -------
    The distances of known cells of this query. A label with too few cells to tell is moved by the
    median of the others.
    """
    null = reference_null(statistics)
    width = max(float(np.quantile(null.reference_distances, _MIDDLE)) - null.low, TINY)
    residuals = distances - null.locations[nearest]
    excess = np.full(len(null.locations), np.nan)
    spreads = []
    n_reference = np.bincount(statistics.reference_nearest, minlength=len(excess))
    # Of a label with one cell of the reference, nobody knows what is typical.
    for label in np.flatnonzero(n_reference > 1):
        of_label = residuals[nearest == label]
        if len(of_label) >= MIN_CELLS:
            low, middle = np.quantile(of_label, [_LOW, _MIDDLE])
            excess[label] = low - null.low
            spreads.append((middle - low) / width)
    if not spreads:
        return null
    excess[np.isnan(excess)] = np.nanmedian(excess)
    null = null._replace(locations=null.locations + np.maximum(excess, 0))
    if same_batch:
        return null
    # Missing labels vote for no difference.
    spreads += [1.0] * (_MIN_SPREADS - len(spreads))
    return null._replace(spread=max(float(np.median(spreads)), 1.0))
