"""The t-test whose variances borrow strength from each other, for few replicates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A variance this much smaller than the middle one is an accident of few samples.
_SMALLEST_VARIANCE = 1e-5


def moderated_t(
    difference: NDArray[np.float64],
    variance: NDArray[np.float64],
    df: float,
    scale: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Test differences of means with moderated variances (Smyth, 2004).

    The variances of all P' variables are taken as draws from one scaled inverse χ² distribution,
    whose parameters are fitted to them, and each is moved towards its centre as far as its few
    degrees of freedom allow. With a single degree of freedom (three samples in all) that fit is
    rough, and small p-values may be too frequent by a factor of two or three.

    Parameters
    ----------
    difference
        Shape (P',).
    variance
        Residual variances, shape (P',).
    df
        Their degrees of freedom, at least 1.
    scale
        Variance of a difference in units of the residual variance, such as 1/n + 1/m.

    Returns
    -------
    t and two-sided p-values, shape (P',). Where nothing varies at all, 0 and 1.
    """
    varies = variance > 0
    if not varies.any():
        return np.zeros_like(difference), np.ones_like(difference)
    floor = _SMALLEST_VARIANCE * np.median(variance[varies])
    floored = np.maximum(variance, floor)
    prior_df, prior_variance = _prior(floored[varies], df)
    if np.isinf(prior_df):
        posterior = np.full_like(floored, prior_variance)
    else:
        posterior = (prior_df * prior_variance + df * floored) / (prior_df + df)
    t = difference / np.sqrt(posterior * scale)
    # No more freedom than all residuals together have.
    total = min(prior_df + df, df * int(varies.sum()))
    t = np.where((difference == 0) & ~varies, 0.0, t)
    return t, 2 * stats.t.sf(np.abs(t), total)


def _prior(variance: NDArray[np.float64], df: float) -> tuple[float, float]:
    """Degrees of freedom and centre of the variances' distribution, by moments of their log."""
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
    low, high = 1e-8, 1e8
    if value >= polygamma(1, low):
        return low
    if value <= polygamma(1, high):
        return high
    return float(
        np.exp(brentq(lambda x: polygamma(1, np.exp(x)) - value, np.log(low), np.log(high)))
    )
