"""Tests in which samples, not cells, are the replicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from tosica.tl._moderated_t import moderated_t

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class SampleMeans:
    """Mean of each of P' columns in each of S samples, and the names of the samples."""

    names: list[str]
    values: NDArray[np.float64]
    """Shape (S, P')."""


class TooFewSamplesError(ValueError):
    """A side of a comparison has a single sample, or none."""


def sample_means(
    values: NDArray[np.floating],
    codes: NDArray[np.integer],
    names: list[str],
    rows: NDArray[np.bool_],
    min_cells: int,
) -> SampleMeans:
    """Average the chosen cells of each sample, of those with at least ``min_cells`` of them.

    Parameters
    ----------
    values
        Shape (n, P').
    codes
        Sample of each cell, shape (n,).
    names
        Names of the samples.
    rows
        Which cells are chosen, shape (n,).
    min_cells
        Fewest cells of a sample.
    """
    sizes = np.bincount(codes[rows], minlength=len(names))
    kept = [code for code in range(len(names)) if sizes[code] >= max(min_cells, 1)]
    means = [values[rows & (codes == code)].mean(axis=0, dtype=np.float64) for code in kept]
    return SampleMeans(
        [names[code] for code in kept],
        np.array(means).reshape(len(kept), values.shape[1]),
    )


def compare_samples(
    tested: SampleMeans, reference: SampleMeans, method: str
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """Test whether the means of samples differ between two sides.

    If every sample has cells on both sides, as where cell types are compared within samples, the
    test is one on the differences within samples. Positive values are compared by their
    logarithm, so that a ratio counts alike wherever it starts from.

    Parameters
    ----------
    tested, reference
        Means of the samples of either side.
    method
        ``"moderated-t"``, ``"t-test"`` or ``"wilcoxon"``.

    Returns
    -------
    Statistics (t, or z of the rank test), two-sided p-values, both of shape (P',), and whether
    samples were paired.

    Raises
    ------
    TooFewSamplesError
        If a side has fewer than two samples.
    """
    if min(len(tested.names), len(reference.names)) < 2:
        raise TooFewSamplesError
    a, b = tested.values, reference.values
    positive = ((a > 0).all(axis=0)) & ((b > 0).all(axis=0))
    a = np.where(positive, np.log2(np.where(positive, a, 1.0)), a)
    b = np.where(positive, np.log2(np.where(positive, b, 1.0)), b)
    paired = set(tested.names) == set(reference.names)
    if paired:
        place = [reference.names.index(name) for name in tested.names]
        scores, pvals = _paired(a - b[place], method)
    else:
        scores, pvals = _unpaired(a, b, method)
    # Where nothing differs and nothing varies, there is nothing to report.
    undefined = ~np.isfinite(scores) | ~np.isfinite(pvals)
    return np.where(undefined, 0.0, scores), np.where(undefined, 1.0, pvals), paired


def _paired(
    differences: NDArray[np.float64], method: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    n = len(differences)
    mean, variance = differences.mean(axis=0), differences.var(axis=0, ddof=1)
    if method == "wilcoxon":
        result = stats.wilcoxon(differences, axis=0, method="auto", zero_method="zsplit")
        return _signed_z(result.pvalue, mean), np.asarray(result.pvalue)
    if method == "t-test":
        with np.errstate(divide="ignore", invalid="ignore"):
            t = mean / np.sqrt(variance / n)
        return t, 2 * stats.t.sf(np.abs(t), n - 1)
    return moderated_t(mean, variance, n - 1, 1 / n)


def _unpaired(
    a: NDArray[np.float64], b: NDArray[np.float64], method: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    n, m = len(a), len(b)
    difference = a.mean(axis=0) - b.mean(axis=0)
    if method == "wilcoxon":
        result = stats.mannwhitneyu(a, b, axis=0)
        return _signed_z(result.pvalue, difference), np.asarray(result.pvalue)
    variances = a.var(axis=0, ddof=1), b.var(axis=0, ddof=1)
    if method == "t-test":
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = variances[0] / n, variances[1] / m
            t = difference / np.sqrt(sum(parts))
            df = sum(parts) ** 2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1))
        return t, 2 * stats.t.sf(np.abs(t), df)
    df = n + m - 2
    pooled = ((n - 1) * variances[0] + (m - 1) * variances[1]) / df
    return moderated_t(difference, pooled, df, 1 / n + 1 / m)


def _signed_z(pvals: NDArray[np.float64], difference: NDArray[np.float64]) -> NDArray[np.float64]:
    return stats.norm.isf(np.asarray(pvals) / 2) * np.sign(difference)
