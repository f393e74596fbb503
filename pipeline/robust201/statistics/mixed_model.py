"""Linear mixed model with a random intercept, for clustered values such as networks with equal initial weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError
from robust201.statistics.intervals import NORMAL_QUANTILE

_Floats = NDArray[np.float64]

_ROUNDING = 1e-9
"""Relative size below which an eigenvalue counts as 0."""

_NO_VARIATION = 1e-24
"""Sum of squares, relative to that of the values, below which it is only rounding error (1e-12 of the values)."""

_MAX_SHARE = 1 - 1e-9
"""At a fraction of 1 the residual variance would be 0, and the likelihood unbounded."""


class ContrastEstimate(NamedTuple):
    """A combination of coefficients, with Student's 95% interval.

    Attributes:
        value: value of the combination.
        error: standard error.
        degrees: degrees of freedom, by Satterthwaite's approximation.
        low: lower end of the interval.
        high: upper end of the interval.
        p_value: two-sided p-value for the hypothesis that the combination is 0; NaN if the error is 0.
    """

    value: float
    error: float
    degrees: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True, eq=False)
class RandomIntercept:
    """A fitted model: values = design @ coefficients + the cluster's intercept + residual.

    All attributes except `n` and `n_clusters` are NaN if the values cannot separate clusters from residuals. This takes
    at least two clusters, and more values than clusters and coefficients can explain.

    Attributes:
        coefficients: (p,) generalised least squares estimates.
        covariance: (p, p) covariance of the coefficients.
        cluster_variance: variance of the clusters' intercepts; 0 if values in a cluster are not more alike than others.
        residual_variance: variance of the residuals.
        share: the clusters' fraction of the total variance; NaN if that is 0.
        share_low: lower end of the fraction's 95% interval, by profile likelihood.
        share_high: upper end.
        n: number of values.
        n_clusters: number of clusters.
    """

    coefficients: _Floats
    covariance: _Floats
    cluster_variance: float
    residual_variance: float
    share: float
    share_low: float
    share_high: float
    n: int
    n_clusters: int
    _slopes: tuple[_Floats, _Floats]  # derivatives of the covariance by the variances of clusters and of residuals
    _variance_covariance: _Floats  # (2, 2) covariance of these variances

    def estimate(self, weights: ArrayLike) -> ContrastEstimate:
        """Estimate a combination of the coefficients, such as the difference of two, from its (p,) weights."""
        factors = np.asarray(weights, np.float64)
        variance = float(factors @ self.covariance @ factors)
        if self.cluster_variance == 0:
            degrees = float(self.n - len(self.coefficients))
        else:
            slopes = np.array([factors @ slope @ factors for slope in self._slopes])
            degrees = 2 * variance**2 / float(slopes @ self._variance_covariance @ slopes)
        return _make_estimate(float(factors @ self.coefficients), variance, degrees)


def combine_estimates(estimates: Sequence[ContrastEstimate], weights: ArrayLike) -> ContrastEstimate:
    """Return the weighted sum of independent estimates, with Welch-Satterthwaite degrees of freedom."""
    factors = np.asarray(weights, np.float64)
    values = np.array([estimate.value for estimate in estimates])
    parts = factors**2 * np.array([estimate.error**2 for estimate in estimates])
    total = float(parts.sum())
    inverse = float((parts**2 / [estimate.degrees for estimate in estimates]).sum())
    degrees = total**2 / inverse if inverse > 0 else float(sum(estimate.degrees for estimate in estimates))
    return _make_estimate(float(factors @ values), total, degrees)


def _make_estimate(value: float, variance: float, degrees: float) -> ContrastEstimate:
    from scipy.special import stdtr, stdtrit

    error = float(np.sqrt(variance))
    half = float(stdtrit(degrees, 0.975)) * error
    p_value = float(2 * stdtr(degrees, -abs(value) / error)) if error > 0 else float("nan")
    return ContrastEstimate(value, error, degrees, value - half, value + half, p_value)


def fit_random_intercept(design: ArrayLike, values: ArrayLike, clusters: ArrayLike) -> RandomIntercept:
    """Fit the model by restricted maximum likelihood (REML); the design may be unbalanced.

    Variances are not negative. If the cluster variance is 0, the estimates are those of least squares.

    Args:
        design: (n, p) of full column rank, including the intercept if there is one.
        values: (n,) observations.
        clusters: (n,) cluster labels.

    Raises:
        ConfigError: shapes do not match, a number is not finite, or columns of the design are linearly dependent.

    Source: Patterson and Thompson, "Recovery of inter-block information when block sizes are unequal", Biometrika 58
    (1971), in the spectral form of Crainiceanu and Ruppert, "Likelihood ratio tests in linear mixed models with one
    variance component", JRSS B 66 (2004); degrees of freedom: Fai and Cornelius, "Approximate F-tests of multiple
    degree of freedom hypotheses in generalized least squares analyses of unbalanced split-plot experiments", Journal of
    Statistical Computation and Simulation 54 (1996).
    """
    x, y, labels = np.asarray(design, np.float64), np.asarray(values, np.float64), np.asarray(clusters)
    _check_design(x, y, labels)
    n, p = x.shape
    n_clusters = len(np.unique(labels))
    same_cluster = (labels[:, None] == labels).astype(np.float64)
    # In these directions the design is 0, and values are independent with variance residual + root * cluster variance.
    contrasts = np.linalg.qr(x, mode="complete")[0][:, p:]
    roots, directions = np.linalg.eigh(contrasts.T @ same_cluster @ contrasts)
    roots = np.where(roots > _ROUNDING * n, roots, 0.0)
    squares = (directions.T @ (contrasts.T @ y)) ** 2
    if not (roots > 0).any() or not (roots == 0).any():
        return _unknown_fit(p, n, n_clusters)
    if squares.sum() <= _NO_VARIATION * (y @ y):  # the design fits the values up to rounding
        coefficients: _Floats = np.asarray(np.linalg.lstsq(x, y)[0], np.float64)
        nan, zero = float("nan"), np.zeros((p, p))
        return RandomIntercept(
            coefficients, zero, 0.0, 0.0, nan, nan, nan, n, n_clusters, (zero, zero), np.zeros((2, 2))
        )
    share, low, high = _fit_share(roots, squares)
    total = float((squares / (1 - share + share * roots)).mean())
    cluster_variance, residual_variance = share * total, (1 - share) * total
    variance = residual_variance * np.eye(n) + cluster_variance * same_cluster
    weighted = np.linalg.solve(variance, x)
    covariance: _Floats = np.asarray(np.linalg.inv(x.T @ weighted), np.float64)
    derivatives = (weighted.T @ same_cluster @ weighted, weighted.T @ weighted)
    slopes = (covariance @ derivatives[0] @ covariance, covariance @ derivatives[1] @ covariance)
    direction_variances = residual_variance + roots * cluster_variance
    powers = [float((roots**power / direction_variances**2).sum()) / 2 for power in range(3)]
    information = np.array([[powers[2], powers[1]], [powers[1], powers[0]]])
    return RandomIntercept(
        covariance @ (weighted.T @ y),
        covariance,
        cluster_variance,
        residual_variance,
        share,
        low,
        high,
        n,
        n_clusters,
        slopes,
        np.linalg.inv(information),
    )


def _check_design(x: _Floats, y: _Floats, labels: NDArray[Any]) -> None:
    shapes_match = x.ndim == 2 and y.shape == labels.shape == x.shape[:1]
    if not shapes_match or not np.isfinite(x).all() or not np.isfinite(y).all():
        raise ConfigError(
            f"Fitting a mixed model failed for {x.shape} numbers of the design: expected a row, a finite value and a "
            f"cluster for each observation, got {y.shape} values and {labels.shape} clusters. Leave out missing values."
        )
    rank = int(np.linalg.matrix_rank(x))
    if rank < x.shape[1]:
        raise ConfigError(
            f"Fitting a mixed model failed for {x.shape[1]} columns of the design: they have rank {rank}. "
            "Leave out levels without observations."
        )


def _unknown_fit(p: int, n: int, n_clusters: int) -> RandomIntercept:
    nan, missing = float("nan"), np.full((p, p), np.nan)
    return RandomIntercept(
        missing[0], missing, nan, nan, nan, nan, nan, n, n_clusters, (missing, missing), np.full((2, 2), nan)
    )


def _fit_share(roots: _Floats, squares: _Floats) -> tuple[float, float, float]:
    """Return the clusters' fraction of the variance that maximises the restricted likelihood, and its interval."""
    from scipy.optimize import brentq, minimize_scalar

    def deviance(share: Any) -> Any:
        scaled = 1 + np.multiply.outer(share, roots - 1)
        return len(roots) * np.log((squares / scaled).mean(axis=-1)) + np.log(scaled).sum(axis=-1)

    grid = np.linspace(0, _MAX_SHARE, 101)
    best = int(np.argmin(deviance(grid)))
    neighbours = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    share = float(minimize_scalar(deviance, bounds=neighbours, method="bounded", options={"xatol": 1e-12}).x)
    share = min((0.0, share, _MAX_SHARE), key=deviance)
    limit = deviance(share) + NORMAL_QUANTILE**2
    ends = []
    for end, limit_value in ((0.0, 0.0), (_MAX_SHARE, 1.0)):
        if deviance(end) <= limit:
            ends.append(limit_value)
        else:
            ends.append(float(brentq(lambda share: deviance(share) - limit, min(end, share), max(end, share))))
    return share, ends[0], ends[1]
