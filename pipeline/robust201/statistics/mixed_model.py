"""A linear mixed model with a random intercept, for numbers in clusters such as networks with equal initial weights."""

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
"""Sum of squares, relative to that of the values, below which only rounding is left (1e-12 of the values)."""

_LARGEST_SHARE = 1 - 1e-9
"""At a share of 1 the residual variance would be 0, and the likelihood without bound."""


class ContrastEstimate(NamedTuple):
    """A combination of coefficients, with Student's 95 % interval.

    Attributes:
        value: of the combination.
        error: its standard error.
        degrees: degrees of freedom, by Satterthwaite's approximation.
        low: lower end of the interval.
        high: upper end.
        p_value: two-sided, of the hypothesis that it is 0; NaN where the error is 0.
    """

    value: float
    error: float
    degrees: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True, eq=False)
class RandomIntercept:
    """A fitted model: values are design @ coefficients + an intercept of the cluster + a residual.

    All but `n` and `n_clusters` are NaN if the values cannot distinguish clusters from residuals: at least two clusters
    and more values than clusters and coefficients explain are needed.

    Attributes:
        coefficients: (p,) generalised least squares.
        covariance: (p, p) of the coefficients.
        cluster_variance: of the clusters' intercepts; 0 where values of a cluster are no more alike than others.
        residual_variance: of the residuals.
        share: the clusters' share of both variances; NaN if both are 0.
        share_low: lower end of its 95 % interval, by profile likelihood.
        share_high: upper end.
        n: values.
        n_clusters: clusters.
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
    _slopes: tuple[_Floats, _Floats]  # of the covariance, by the variances of clusters and of residuals
    _of_variances: _Floats  # (2, 2) covariance of these variances

    def estimate(self, weights: ArrayLike) -> ContrastEstimate:
        """Estimate a combination of the coefficients, such as the difference of two: (p,) weights."""
        chosen = np.asarray(weights, np.float64)
        variance = float(chosen @ self.covariance @ chosen)
        if self.cluster_variance == 0:
            degrees = float(self.n - len(self.coefficients))
        else:
            slopes = np.array([chosen @ slope @ chosen for slope in self._slopes])
            degrees = 2 * variance**2 / float(slopes @ self._of_variances @ slopes)
        return _make_estimate(float(chosen @ self.coefficients), variance, degrees)


def combine_estimates(estimates: Sequence[ContrastEstimate], weights: ArrayLike) -> ContrastEstimate:
    """Return the weighted sum of independent estimates, with the degrees of freedom of Welch and Satterthwaite."""
    factors = np.asarray(weights, np.float64)
    values = np.array([one.value for one in estimates])
    parts = factors**2 * np.array([one.error**2 for one in estimates])
    total = float(parts.sum())
    lost = float((parts**2 / [one.degrees for one in estimates]).sum())
    degrees = total**2 / lost if lost > 0 else float(sum(one.degrees for one in estimates))
    return _make_estimate(float(factors @ values), total, degrees)


def _make_estimate(value: float, variance: float, degrees: float) -> ContrastEstimate:
    from scipy.special import stdtr, stdtrit

    error = float(np.sqrt(variance))
    half = float(stdtrit(degrees, 0.975)) * error
    p_value = float(2 * stdtr(degrees, -abs(value) / error)) if error > 0 else float("nan")
    return ContrastEstimate(value, error, degrees, value - half, value + half, p_value)


def fit_random_intercept(design: ArrayLike, values: ArrayLike, clusters: ArrayLike) -> RandomIntercept:
    """Fit by restricted maximum likelihood (REML); clusters may be of any sizes, and lack any combination.

    Neither variance is below 0. Where the clusters' is 0, estimates are those of least squares.

    Args:
        design: (n, p) of full column rank, with the intercept if there is one.
        values: (n,).
        clusters: (n,) labels, equal in a cluster.

    Raises:
        ConfigError: shapes do not fit, a number is not finite, or columns of the design depend on each other.

    Source: Patterson and Thompson, "Recovery of inter-block information when block sizes are unequal", Biometrika 58
    (1971), in the spectral form of Crainiceanu and Ruppert, "Likelihood ratio tests in linear mixed models with one
    variance component", JRSS B 66 (2004); degrees of freedom: Fai and Cornelius, "Approximate F-tests of multiple
    degree of freedom hypotheses in generalized least squares analyses of unbalanced split-plot experiments", Journal of
    Statistical Computation and Simulation 54 (1996).
    """
    x, y, labels = np.asarray(design, np.float64), np.asarray(values, np.float64), np.asarray(clusters)
    _check(x, y, labels)
    n, p = x.shape
    n_clusters = len(np.unique(labels))
    together = (labels[:, None] == labels).astype(np.float64)
    # In these directions the design is 0, and values are independent with variance residual + root * cluster.
    contrasts = np.linalg.qr(x, mode="complete")[0][:, p:]
    roots, directions = np.linalg.eigh(contrasts.T @ together @ contrasts)
    roots = np.where(roots > _ROUNDING * n, roots, 0.0)
    squares = (directions.T @ (contrasts.T @ y)) ** 2
    if not (roots > 0).any() or not (roots == 0).any():
        return _unknown(p, n, n_clusters)
    if squares.sum() <= _NO_VARIATION * (y @ y):  # equal values of equal rows: rounding is all that is left
        coefficients: _Floats = np.asarray(np.linalg.lstsq(x, y)[0], np.float64)
        nan, zero = float("nan"), np.zeros((p, p))
        return RandomIntercept(
            coefficients, zero, 0.0, 0.0, nan, nan, nan, n, n_clusters, (zero, zero), np.zeros((2, 2))
        )
    share, low, high = _fit_share(roots, squares)
    total = float((squares / (1 - share + share * roots)).mean())
    of_clusters, of_residuals = share * total, (1 - share) * total
    variance = of_residuals * np.eye(n) + of_clusters * together
    weighted = np.linalg.solve(variance, x)
    covariance: _Floats = np.asarray(np.linalg.inv(x.T @ weighted), np.float64)
    changes = (weighted.T @ together @ weighted, weighted.T @ weighted)
    slopes = (covariance @ changes[0] @ covariance, covariance @ changes[1] @ covariance)
    by_direction = of_residuals + roots * of_clusters
    powers = [float((roots**power / by_direction**2).sum()) / 2 for power in range(3)]
    information = np.array([[powers[2], powers[1]], [powers[1], powers[0]]])
    return RandomIntercept(
        covariance @ (weighted.T @ y),
        covariance,
        of_clusters,
        of_residuals,
        share,
        low,
        high,
        n,
        n_clusters,
        slopes,
        np.linalg.inv(information),
    )


def _check(x: _Floats, y: _Floats, labels: NDArray[Any]) -> None:
    fits = x.ndim == 2 and y.shape == labels.shape == x.shape[:1]
    if not fits or not np.isfinite(x).all() or not np.isfinite(y).all():
        raise ConfigError(
            f"Fitting a mixed model failed for {x.shape} numbers of the design: expected a row, a finite value and a "
            f"cluster for each observation, got {y.shape} values and {labels.shape} clusters. Leave out missing values."
        )
    rank = int(np.linalg.matrix_rank(x))
    if rank < x.shape[1]:
        raise ConfigError(
            f"Fitting a mixed model failed for {x.shape[1]} columns of the design: expected as many that no other ones "
            f"determine, got {rank}. Leave out levels without observations."
        )


def _unknown(p: int, n: int, n_clusters: int) -> RandomIntercept:
    nan, missing = float("nan"), np.full((p, p), np.nan)
    return RandomIntercept(
        missing[0], missing, nan, nan, nan, nan, nan, n, n_clusters, (missing, missing), np.full((2, 2), nan)
    )


def _fit_share(roots: _Floats, squares: _Floats) -> tuple[float, float, float]:
    """Find the clusters' share of the variance that maximises the restricted likelihood, and its interval."""
    from scipy.optimize import brentq, minimize_scalar

    def deviance(share: Any) -> Any:
        scaled = 1 + np.multiply.outer(share, roots - 1)
        return len(roots) * np.log((squares / scaled).mean(axis=-1)) + np.log(scaled).sum(axis=-1)

    grid = np.linspace(0, _LARGEST_SHARE, 101)
    best = int(np.argmin(deviance(grid)))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    share = float(minimize_scalar(deviance, bounds=around, method="bounded", options={"xatol": 1e-12}).x)
    share = min((0.0, share, _LARGEST_SHARE), key=deviance)
    limit = deviance(share) + NORMAL_QUANTILE**2
    ends = []
    for end, whole in ((0.0, 0.0), (_LARGEST_SHARE, 1.0)):
        if deviance(end) <= limit:
            ends.append(whole)
        else:
            ends.append(float(brentq(lambda one: deviance(one) - limit, min(end, share), max(end, share))))
    return share, ends[0], ends[1]
