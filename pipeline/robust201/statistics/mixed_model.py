"""Linear mixed model with a random intercept, for clustered values such as networks with equal initial weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError
from robust201.statistics.intervals import NORMAL_QUANTILE

_Floats = NDArray[np.float64]

_EIGENVALUE_TOLERANCE = 1e-9
"""Relative size below which an eigenvalue counts as 0."""

_MAX_ROUNDING_RESIDUAL = 1e-24
"""Residual sum of squares that rounding errors of 1e-12 may cause, as a fraction of the values' sum of squares."""

_MAX_SHARE = 1 - 1e-9
"""Maximum fraction of the variance due to clusters; at 1, the residual variance is 0 and the likelihood unbounded."""


class ContrastEstimate(NamedTuple):
    """A linear combination of coefficients, with Student's 95% interval.

    Attributes:
        value: value of the combination.
        standard_error: standard error of the value.
        df: degrees of freedom, from Satterthwaite's approximation.
        low: lower end of the interval.
        high: upper end of the interval.
        p_value: two-sided p-value of the hypothesis that the combination is 0; NaN if the standard error is 0.
    """

    value: float
    standard_error: float
    df: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True, eq=False)
class RandomIntercept:
    """A fitted model: values = design @ coefficients + intercept of the cluster + residual.

    All attributes except `n` and `n_clusters` are NaN if the values do not determine the variances. The variances are
    determined if there are at least two clusters, and more values than the coefficients and the clusters' intercepts
    can fit exactly.

    Attributes:
        coefficients: (p,) generalised least squares estimates.
        covariance: (p, p) covariance of the coefficients.
        cluster_variance: variance of the intercepts; 0 if values in the same cluster are not more similar than values
            in different clusters.
        residual_variance: variance of the residuals.
        share: fraction of the total variance that is due to clusters; NaN if the total variance is 0.
        share_low: lower end of the 95% interval of `share`, from the profile likelihood.
        share_high: upper end of this interval.
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
    _covariance_derivatives: tuple[_Floats, _Floats]  # of `covariance`, by cluster and residual variance
    _variance_covariance: _Floats  # (2, 2) covariance of the estimates of both variances

    def estimate(self, weights: ArrayLike) -> ContrastEstimate:
        """Estimate the weighted sum of the coefficients with weights (p,), such as a difference of two coefficients."""
        factors = np.asarray(weights, np.float64)
        variance = float(factors @ self.covariance @ factors)
        if self.cluster_variance == 0:
            df = float(self.n - len(self.coefficients))
        else:
            derivatives = np.array([factors @ matrix @ factors for matrix in self._covariance_derivatives])
            df = 2 * variance**2 / float(derivatives @ self._variance_covariance @ derivatives)
        return _make_estimate(float(factors @ self.coefficients), variance, df)


def combine_estimates(estimates: Sequence[ContrastEstimate], weights: ArrayLike) -> ContrastEstimate:
    """Return the weighted sum of independent estimates, with Welch-Satterthwaite degrees of freedom."""
    factors = np.asarray(weights, np.float64)
    estimated_values = np.array([estimate.value for estimate in estimates])
    variances = factors**2 * np.array([estimate.standard_error**2 for estimate in estimates])
    total_variance = float(variances.sum())
    squares_per_df = float((variances**2 / [estimate.df for estimate in estimates]).sum())
    df = total_variance**2 / squares_per_df if squares_per_df > 0 else float(sum(estimate.df for estimate in estimates))
    return _make_estimate(float(factors @ estimated_values), total_variance, df)


def _make_estimate(value: float, variance: float, df: float) -> ContrastEstimate:
    from scipy.special import stdtr, stdtrit

    standard_error = float(np.sqrt(variance))
    half_width = float(stdtrit(df, 0.975)) * standard_error
    p_value = float(2 * stdtr(df, -abs(value) / standard_error)) if standard_error > 0 else float("nan")
    return ContrastEstimate(value, standard_error, df, value - half_width, value + half_width, p_value)


def fit_random_intercept(design: ArrayLike, values: ArrayLike, clusters: ArrayLike) -> RandomIntercept:
    """Fit the model by restricted maximum likelihood (REML); the design may be unbalanced.

    Estimated variances are never negative. If the cluster variance is 0, the coefficients are the least squares
    estimates.

    Args:
        design: (n, p) of full column rank, with a column of ones if there is a fixed intercept.
        values: (n,) observations.
        clusters: (n,) cluster labels.

    Raises:
        ConfigError: the shapes do not match, a number is not finite, or columns of the design are linearly dependent.

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
    # The contrasts are orthogonal to the design. Along each of `directions`, the values are independent with variance
    # residual_variance + eigenvalue * cluster_variance.
    contrasts = np.linalg.qr(x, mode="complete")[0][:, p:]
    eigenvalues, directions = np.linalg.eigh(contrasts.T @ same_cluster @ contrasts)
    eigenvalues = np.where(eigenvalues > _EIGENVALUE_TOLERANCE * n, eigenvalues, 0.0)
    squares = (directions.T @ (contrasts.T @ y)) ** 2
    if not (eigenvalues > 0).any() or not (eigenvalues == 0).any():
        return _undetermined_fit(p, n, n_clusters)
    if squares.sum() <= _MAX_ROUNDING_RESIDUAL * (y @ y):  # the design fits the values exactly up to rounding
        coefficients: _Floats = np.asarray(np.linalg.lstsq(x, y)[0], np.float64)
        nan, zero = float("nan"), np.zeros((p, p))
        return RandomIntercept(
            coefficients, zero, 0.0, 0.0, nan, nan, nan, n, n_clusters, (zero, zero), np.zeros((2, 2))
        )
    share, share_low, share_high = _fit_share(eigenvalues, squares)
    total_variance = float((squares / (1 - share + share * eigenvalues)).mean())
    cluster_variance, residual_variance = share * total_variance, (1 - share) * total_variance
    value_covariance = residual_variance * np.eye(n) + cluster_variance * same_cluster
    weighted_design = np.linalg.solve(value_covariance, x)
    covariance: _Floats = np.asarray(np.linalg.inv(x.T @ weighted_design), np.float64)
    derivatives = (weighted_design.T @ same_cluster @ weighted_design, weighted_design.T @ weighted_design)
    covariance_derivatives = (covariance @ derivatives[0] @ covariance, covariance @ derivatives[1] @ covariance)
    direction_variances = residual_variance + eigenvalues * cluster_variance
    power_sums = [float((eigenvalues**power / direction_variances**2).sum()) / 2 for power in range(3)]
    information = np.array([[power_sums[2], power_sums[1]], [power_sums[1], power_sums[0]]])
    return RandomIntercept(
        covariance @ (weighted_design.T @ y),
        covariance,
        cluster_variance,
        residual_variance,
        share,
        share_low,
        share_high,
        n,
        n_clusters,
        covariance_derivatives,
        np.linalg.inv(information),
    )


def _check_design(x: _Floats, y: _Floats, labels: NDArray[Any]) -> None:
    shapes_match = x.ndim == 2 and y.shape == labels.shape == x.shape[:1]
    if not shapes_match or not np.isfinite(x).all() or not np.isfinite(y).all():
        raise ConfigError(
            f"Fitting a mixed model failed for a design of shape {x.shape}: expected a row of the design, a finite "
            f"value and a cluster for each observation, got values of shape {y.shape} and clusters of shape "
            f"{labels.shape}. Remove missing values."
        )
    rank = int(np.linalg.matrix_rank(x))
    if rank < x.shape[1]:
        raise ConfigError(
            f"Fitting a mixed model failed for a design of {x.shape[1]} columns: its rank is only {rank}. "
            "Remove levels without observations."
        )


def _undetermined_fit(p: int, n: int, n_clusters: int) -> RandomIntercept:
    nan, nan_matrix = float("nan"), np.full((p, p), np.nan)
    return RandomIntercept(
        nan_matrix[0],
        nan_matrix,
        nan,
        nan,
        nan,
        nan,
        nan,
        n,
        n_clusters,
        (nan_matrix, nan_matrix),
        np.full((2, 2), nan),
    )


def _fit_share(eigenvalues: _Floats, squares: _Floats) -> tuple[float, float, float]:
    """Return the fraction of the variance due to clusters with the maximum restricted likelihood, and its interval."""
    from scipy.optimize import brentq, minimize_scalar

    def deviance(fraction: Any) -> Any:
        relative_variances = 1 + np.multiply.outer(fraction, eigenvalues - 1)
        log_scale = len(eigenvalues) * np.log((squares / relative_variances).mean(axis=-1))
        return log_scale + np.log(relative_variances).sum(axis=-1)

    grid = np.linspace(0, _MAX_SHARE, 101)
    best_index = int(np.argmin(deviance(grid)))
    neighbours = (grid[max(best_index - 1, 0)], grid[min(best_index + 1, len(grid) - 1)])
    share = float(minimize_scalar(deviance, bounds=neighbours, method="bounded", options={"xatol": 1e-12}).x)
    share = min((0.0, share, _MAX_SHARE), key=deviance)
    limit = deviance(share) + NORMAL_QUANTILE**2
    interval_ends = []
    for bound, end_at_bound in ((0.0, 0.0), (_MAX_SHARE, 1.0)):
        if deviance(bound) <= limit:
            interval_ends.append(end_at_bound)
        else:
            lower, upper = min(bound, share), max(bound, share)
            interval_ends.append(float(brentq(lambda fraction: deviance(fraction) - limit, lower, upper)))
    return share, interval_ends[0], interval_ends[1]
