"""Means and variances of attention in groups of cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


@dataclass(frozen=True)
class GroupMoments:
    """First two moments of each of P' columns in each of K groups."""

    n_cells: NDArray[np.int64]
    """Cells of each group, shape (K,)."""
    mean: NDArray[np.float64]
    """Shape (K, P')."""
    variance: NDArray[np.float64]
    """Around the group's own mean, divided by its number of cells, shape (K, P')."""

    @property
    def variance_within(self) -> NDArray[np.float64]:
        """Variance within groups, pooled over all cells, shape (P',)."""
        return np.average(self.variance, axis=0, weights=self.n_cells)

    @property
    def mean_of_cells(self) -> NDArray[np.float64]:
        """Mean of all cells, shape (P',)."""
        return np.average(self.mean, axis=0, weights=self.n_cells)

    @property
    def variance_of_cells(self) -> NDArray[np.float64]:
        """Variance of all cells: within the groups and between them, shape (P',)."""
        between = np.average((self.mean - self.mean_of_cells) ** 2, axis=0, weights=self.n_cells)
        return self.variance_within + between


def group_moments(values: NDArray[np.floating], groups: pd.Categorical) -> GroupMoments:
    """Moments of ``values``, shape (n, P'), in ``groups`` without unused categories.

    One group at a time, summed in float64, so that only a group's rows are copied.
    """
    codes = np.asarray(groups.codes)
    n_groups = len(groups.categories)
    mean = np.empty((n_groups, values.shape[1]))
    variance = np.empty_like(mean)
    for code in range(n_groups):
        rows = values[codes == code].astype(np.float64)
        mean[code] = rows.mean(axis=0)
        variance[code] = rows.var(axis=0)
    return GroupMoments(np.bincount(codes, minlength=n_groups), mean, variance)
