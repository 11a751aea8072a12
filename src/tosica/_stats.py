"""Moments of groups of cells, tests between groups and samples, and calibrated probabilities."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from scipy import stats
from scipy.optimize import brentq, minimize_scalar
from scipy.special import digamma, log_softmax, polygamma

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

# The reference of a comparison: all other cells, or the group at a position.
Reference: TypeAlias = Literal["rest"] | int


@dataclass(frozen=True)
class GroupMoments:
    """Mean and variance of each variable in each group of cells."""

    n_cells: NDArray[np.int64]
    """Cells of each group, shape ``(n_groups,)``."""
    mean: NDArray[np.float64]
    """Shape ``(n_groups, n_vars)``."""
    variance: NDArray[np.float64]
    """Around the group's mean, divided by its number of cells, shape ``(n_groups, n_vars)``."""

    def reference_weights(
        self, group: int, reference: Reference
    ) -> NDArray[np.float64]:
        """Weight of each group in the reference of one group, shape ``(n_groups,)``.

        Parameters
        ----------
        group
            Position of the group.
        reference
            ``"rest"``: all other cells. A number: the cells of the group at this position.
        """
        weights = self.n_cells.astype(float)
        if reference == "rest":
            weights[group] = 0
        else:
            weights[np.arange(len(weights)) != reference] = 0
        return weights

    def reference_mean(self, group: int, reference: Reference) -> NDArray[np.float64]:
        """Mean of the reference of one group, shape ``(n_vars,)``."""
        weights = self.reference_weights(group, reference)
        return np.average(self.mean, axis=0, weights=weights)


def group_moments(values: NDArray[np.floating], groups: pd.Categorical) -> GroupMoments:
    """Compute the moments of ``values``, shape ``(n_cells, n_vars)``, in each group.

    Groups must have cells. One group is summed at a time, in float64, so that only a group's rows
    are copied.
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


def standardized_difference(
    moments: GroupMoments, group: int, reference: Reference = "rest"
) -> NDArray[np.float64]:
    """Difference between a group's mean and its reference's, in standard deviations (Cohen's d).

    The deviation is that of the cells of both sides, each around the mean of its side; the
    difference is 0 where nothing varies.

    Parameters
    ----------
    moments
        Moments of all groups.
    group
        Position of the group.
    reference
        Reference of the comparison, see :meth:`GroupMoments.reference_weights`.

    Returns
    -------
    Shape ``(n_vars,)``. The mean itself if there is a single group.
    """
    mean = moments.mean[group]
    if len(moments.n_cells) == 1:
        return mean
    weights = moments.reference_weights(group, reference)
    reference_mean = np.average(moments.mean, axis=0, weights=weights)
    difference = mean - reference_mean
    n_cells = moments.n_cells[group]
    squares = n_cells * moments.variance[group]
    squares += weights @ (moments.variance + (moments.mean - reference_mean) ** 2)
    deviation = np.sqrt(squares / (n_cells + weights.sum()))
    varies = deviation > 1e-9 * np.abs(difference)
    return np.divide(difference, deviation, out=np.zeros_like(difference), where=varies)


def moderated_t(
    difference: NDArray[np.float64],
    variance: NDArray[np.float64],
    df: float,
    scale: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Test differences of means with moderated variances (Smyth, 2004).

    The variances of all variables are taken as draws from one scaled inverse χ² distribution, whose
    parameters are fitted to them. Each variance is then shrunken towards the distribution's center,
    the more the fewer degrees of freedom it has. With a single degree of freedom (three samples in
    all) the fit is rough, and small p-values may be too frequent by a factor of two or three.

    Parameters
    ----------
    difference
        Differences, shape ``(n_vars,)``.
    variance
        Residual variances, shape ``(n_vars,)``.
    df
        Degrees of freedom of the variances, at least 1.
    scale
        Variance of a difference in units of the residual variance, such as 1/n + 1/m.

    Returns
    -------
    t and two-sided p-values, each of shape ``(n_vars,)``; 0 and 1 if no variable varies.
    """
    varies = variance > 0
    if not varies.any():
        return np.zeros_like(difference), np.ones_like(difference)
    # A variance this much smaller than the median is an accident of few samples.
    floor = 1e-5 * np.median(variance[varies])
    floored = np.maximum(variance, floor)
    prior_df, prior_variance = _prior(floored[varies], df)
    if np.isinf(prior_df):
        posterior = np.full_like(floored, prior_variance)
    else:
        posterior = (prior_df * prior_variance + df * floored) / (prior_df + df)
    t = difference / np.sqrt(posterior * scale)
    # At most the degrees of freedom that all residuals have together.
    total = min(prior_df + df, df * int(varies.sum()))
    t = np.where((difference == 0) & ~varies, 0.0, t)
    return t, 2 * stats.t.sf(np.abs(t), total)


def _prior(variance: NDArray[np.float64], df: float) -> tuple[float, float]:
    """Fit degrees of freedom and center of the variances' distribution, by moments of their log."""
    z = np.log(variance) - digamma(df / 2) + np.log(df / 2)
    if len(z) < 3:
        return 0.0, float(np.exp(z.mean()))
    excess = float(z.var(ddof=1) - polygamma(1, df / 2))
    if excess <= 0:
        return np.inf, float(np.exp(z.mean()))
    half = _trigamma_inverse(excess)
    return 2 * half, float(np.exp(z.mean() + digamma(half) - np.log(half)))


def _trigamma_inverse(value: float) -> float:
    """Solve trigamma(x) = value for x; trigamma falls from infinity to 0."""
    low = 1e-8
    high = 1e8
    if value >= polygamma(1, low):
        return low
    if value <= polygamma(1, high):
        return high

    def excess(log_x: float) -> float:
        return float(polygamma(1, np.exp(log_x)) - value)

    return float(np.exp(brentq(excess, np.log(low), np.log(high))))


@dataclass(frozen=True)
class SampleMeans:
    """Mean of each variable in each sample."""

    names: list[str]
    """Names of the samples."""
    values: NDArray[np.float64]
    """Shape ``(n_samples, n_vars)``."""


def sample_means(
    values: NDArray[np.floating],
    codes: NDArray[np.integer],
    names: list[str],
    rows: NDArray[np.bool_],
    min_cells: int,
) -> SampleMeans:
    """Average the selected cells of each sample that has at least ``min_cells`` of them.

    Parameters
    ----------
    values
        Shape ``(n_cells, n_vars)``.
    codes
        Sample of each cell, shape ``(n_cells,)``.
    names
        Names of the samples.
    rows
        Mask of the selected cells, shape ``(n_cells,)``.
    min_cells
        Fewest selected cells of a sample.
    """
    sizes = np.bincount(codes[rows], minlength=len(names))
    samples = np.flatnonzero(sizes >= max(min_cells, 1))
    means = np.empty((len(samples), values.shape[1]))
    for mean, sample in zip(means, samples, strict=True):
        mean[:] = values[rows & (codes == sample)].mean(axis=0, dtype=np.float64)
    return SampleMeans([names[sample] for sample in samples], means)


def compare_samples(
    tested: SampleMeans, reference: SampleMeans, method: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Test whether the means of samples differ between two sides.

    If every sample has cells on both sides, as where cell types are compared, the test is a paired
    one. Variables whose means are all positive are compared by their logarithm, so that the test
    is one of ratios.

    Parameters
    ----------
    tested, reference
        Means of the samples on each side, two at least.
    method
        ``"moderated-t"``, ``"t-test"`` or ``"wilcoxon"``.

    Returns
    -------
    Statistics (t, or z of the rank test) and two-sided p-values, each of shape ``(n_vars,)``.
    """
    a = tested.values.copy()
    b = reference.values.copy()
    is_positive = (a > 0).all(axis=0) & (b > 0).all(axis=0)
    a[:, is_positive] = np.log2(a[:, is_positive])
    b[:, is_positive] = np.log2(b[:, is_positive])
    # Variables that do not vary have no statistic.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        if set(tested.names) == set(reference.names):
            order = [reference.names.index(name) for name in tested.names]
            scores, pvals = _paired(a - b[order], method)
        else:
            scores, pvals = _unpaired(a, b, method)
    # 0 / 0 where the sides are equal and nothing varies.
    undefined = ~np.isfinite(scores) | ~np.isfinite(pvals)
    return np.where(undefined, 0.0, scores), np.where(undefined, 1.0, pvals)


def _paired(
    differences: NDArray[np.float64], method: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean = differences.mean(axis=0)
    if method == "wilcoxon":
        test = stats.wilcoxon(differences, axis=0, method="auto", zero_method="zsplit")
        return _signed_z(test.pvalue, mean), np.asarray(test.pvalue)
    if method == "t-test":
        test = stats.ttest_1samp(differences, 0, axis=0)
        return test.statistic, test.pvalue
    n = len(differences)
    return moderated_t(mean, differences.var(axis=0, ddof=1), n - 1, 1 / n)


def _unpaired(
    a: NDArray[np.float64], b: NDArray[np.float64], method: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    difference = a.mean(axis=0) - b.mean(axis=0)
    if method == "wilcoxon":
        test = stats.mannwhitneyu(a, b, axis=0)
        return _signed_z(test.pvalue, difference), np.asarray(test.pvalue)
    if method == "t-test":
        test = stats.ttest_ind(a, b, axis=0, equal_var=False)
        return test.statistic, test.pvalue
    df = len(a) + len(b) - 2
    squares = (len(a) - 1) * a.var(axis=0, ddof=1) + (len(b) - 1) * b.var(
        axis=0, ddof=1
    )
    return moderated_t(difference, squares / df, df, 1 / len(a) + 1 / len(b))


def _signed_z(
    pvals: NDArray[np.float64], difference: NDArray[np.float64]
) -> NDArray[np.float64]:
    return stats.norm.isf(np.asarray(pvals) / 2) * np.sign(difference)


# --------------------------------------------------------------------------- calibration


def fit_temperature(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    expected: float | None = None,
    spread: float = 0.1,
    max_factor: float = 5.0,
) -> float:
    """Fit the temperature at which ``softmax(logits / temperature)`` is calibrated.

    It maximizes the likelihood of held-out labels. There is one temperature for all labels, so that
    the best label of a cell stays the same (Guo et al., On calibration of modern neural networks,
    ICML 2017).

    Parameters
    ----------
    logits
        Shape ``(n_cells, n_labels)``, of cells that were not trained on.
    labels
        Their labels as numbers, shape ``(n_cells,)``.
    expected
        Median of a log-normal prior of the temperature. Without a prior, a few held-out cells that
        are all right would make the model too confident; thousands of cells outweigh it. By default
        there is no prior.
    spread
        Standard deviation of the logarithm of the temperature in the prior.
    max_factor
        The temperature is at most this many times higher or lower than expected (than 1 without
        prior).

    Returns
    -------
    The temperature of the highest likelihood, or of the highest posterior probability with a prior.

    Examples
    --------
    The first label is right in three of four cells, whatever the logits say:

    >>> import numpy as np
    >>> logits = np.array([[4.0, 0.0]] * 40)
    >>> labels = np.array([0, 0, 0, 1] * 10)
    >>> temperature = fit_temperature(logits, labels)
    >>> round(float(1 / (1 + np.exp(-4 / temperature))), 2)
    0.75
    """
    logits = np.asarray(logits, dtype=np.float64)
    codes = np.asarray(labels)
    cells = np.arange(len(codes))

    def loss(log_temperature: float) -> float:
        log_probabilities = log_softmax(logits / np.exp(log_temperature), axis=1)
        negative_log = -float(log_probabilities[cells, codes].sum())
        if expected is not None:
            deviation = (log_temperature - np.log(expected)) / spread
            negative_log += deviation**2 / 2
        return negative_log

    center = np.log(expected or 1)
    width = np.log(max_factor)
    bounds = (center - width, center + width)
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x))


def conformal_threshold(held_out: ArrayLike, coverage: float) -> float:
    """Find the least probability of labels in a cell's label set.

    This is split conformal prediction with the probability of a label as its score (Sadinle et al.,
    Least ambiguous set-valued classifiers with bounded error levels, JASA 2019): the label sets of
    new cells that are exchangeable with the held-out cells contain the right label with at least
    the given coverage.

    Parameters
    ----------
    held_out
        Probability of the right label of each held-out cell, shape ``(n_cells,)``.
    coverage
        Share of the cells whose label set is to contain the right label.

    Returns
    -------
    The threshold.

    Raises
    ------
    ValueError
        If ``coverage`` does not lie between 0 and 1, or there are too few cells for it.

    Examples
    --------
    With 19 cells, a coverage of 95 % is the lowest probability:

    >>> import numpy as np
    >>> held_out = np.linspace(0.1, 1, 19)
    >>> round(conformal_threshold(held_out, 0.95), 2)
    0.1
    >>> round(conformal_threshold(held_out, 0.9), 2)
    0.15
    """
    scores = np.sort(np.asarray(held_out))
    # Rounded, since 10 * (1 - 0.9) is slightly less than 1.
    rank = math.floor(round((len(scores) + 1) * (1 - coverage), 9))
    if rank == 0:
        needed = math.ceil(round(1 / (1 - coverage), 9)) - 1
        raise ValueError(
            f"coverage={coverage} cannot be promised with {len(scores)} cells to calibrate by: that takes {needed}; "
            "lower coverage, hold out more cells by a smaller train_size, or recalibrate by more labelled cells."
        )
    return float(scores[rank - 1])


def label_sets(
    probabilities: NDArray[np.floating], threshold: float, *, allow_empty: bool
) -> tuple[NDArray[np.bool_], int]:
    """Find the labels whose probability is at least a threshold, for each cell.

    Parameters
    ----------
    probabilities
        Shape ``(n_cells, n_labels)``.
    threshold
        Result of :func:`conformal_threshold`.
    allow_empty
        Whether a set without such a label stays empty. Otherwise it gets the most probable label,
        so that the coverage can only become higher.

    Returns
    -------
    Whether a label is in the set of a cell, ``(n_cells, n_labels)``, and the number of cells without
    a label that reaches the threshold.

    Examples
    --------
    >>> import numpy as np
    >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4]])
    >>> label_sets(probabilities, 0.7, allow_empty=False)[0].tolist()
    [[True, False], [True, False]]
    >>> label_sets(probabilities, 0.7, allow_empty=True)[0].tolist()
    [[True, False], [False, False]]
    """
    inside = np.asarray(probabilities >= threshold)
    empty = np.flatnonzero(~inside.any(1))
    if not allow_empty:
        inside[empty, probabilities[empty].argmax(1)] = True
    return inside, len(empty)
