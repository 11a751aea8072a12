"""What an explanation compares cells with: the reference, moved as the query is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from tosica._settings import only_warnings, query_logger
from tosica.linear import common_shift, subsample_by_label
from tosica.model._query_loader import read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tosica._types import Float32Array, FloatArray, IntArray
    from tosica.linear import ReferenceStatistics
    from tosica.model._query_loader import Minibatch

Baseline: TypeAlias = Literal["shifted", "reference", "mean"]

# Cells in which the shift of a query is measured, as in `annotate`.
_N_CELLS_OF_SHIFT = 2_000
# The excess of the reference counts in full from half of it in the query on: shallower sequencing and
# treatment lower an excess without an end to it. 1, 2, 3 and any at all were compared on Kang.
_TOLERANCE = 2
_TINY = 1e-12


def query_shift(
    batches: Callable[[IntArray], Iterator[Minibatch]],
    codes: IntArray,
    statistics: ReferenceStatistics | None,
) -> Float32Array | None:
    """Measure what all labels of a query differ by from the reference.

    Parameters
    ----------
    batches
        Reads cells at some positions, minibatch by minibatch.
    codes
        Label of each cell in the model, -1 for none, ``(n_cells,)``.
    statistics
        Means of the reference's labels, if the model has them.

    Returns
    -------
    The median difference over labels, ``(n_genes,)``, times the share of its variance that two samples
    of the same cells would not have: nothing for a query of the reference's batch. ``None`` without
    statistics.
    """
    sample = subsample_by_label(codes, _N_CELLS_OF_SHIFT)
    if statistics is None or not len(sample):
        return None
    with only_warnings(query_logger):
        query = read_all(batches(sample))
    shift = common_shift(
        query.x,
        statistics.positions(codes[sample]),
        statistics,
        query.measured,
    )
    return (shift.shift * shift.signal).astype(np.float32)


class ReferenceContrast(NamedTuple):
    """What sets the labels of the reference apart.

    ``excess`` is the mean of each label less the mean over labels, ``(n_labels, n_genes)``, NaN for
    labels without cells. ``deviation`` is the standard deviation within labels, ``(n_genes,)``.
    """

    excess: FloatArray
    deviation: FloatArray

    @classmethod
    def of_statistics(
        cls, statistics: ReferenceStatistics, n_labels: int
    ) -> ReferenceContrast:
        """Take it from the statistics that a model keeps."""
        means = statistics.means.astype(np.float64)
        excess = np.full((n_labels, means.shape[1]), np.nan)
        excess[statistics.labels] = means - means.mean(0)
        return cls(excess, positive_deviation(statistics.variance.astype(np.float64)))


def positive_deviation(variance: FloatArray) -> FloatArray:
    """Standard deviation of genes, 1 for those that do not vary."""
    return np.sqrt(np.where(variance > _TINY, variance, 1))


def share_of_reference(excess: FloatArray, of_reference: FloatArray) -> FloatArray:
    """Compute which share of a group's excess its label has in the reference, too.

    Parameters
    ----------
    excess
        Mean expression of the group less the baseline, ``(n_genes,)``.
    of_reference
        The same of its label in the reference, ``(n_genes,)``; NaN where it is unknown, which counts as
        that of the group.

    Returns
    -------
    ``(n_genes,)``: 0 for genes that either expresses less than the baseline, and at most 2.
    """
    is_higher = excess > 0
    share = np.zeros_like(excess)
    share[is_higher] = of_reference[is_higher] / excess[is_higher]
    share[is_higher & np.isnan(of_reference)] = 1
    return np.clip(share, 0, _TOLERANCE)
