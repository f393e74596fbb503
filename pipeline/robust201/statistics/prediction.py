"""Predictions of a Gaussian process with conformal intervals, and the choice of the next points to observe.

The search among cells uses them to predict accuracies, and to choose the cells to evaluate next.

All columns of targets share one kernel, which is the sum of a linear kernel, a squared exponential kernel and noise.
The parameters of the kernel maximise the likelihood and are fitted with scikit-learn. For a fixed kernel, leave-one-out
predictions have a closed form (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, section 5.4.2),
so jackknife+ needs no further fits (Barber, Candès, Ramdas and Tibshirani, "Predictive inference with the jackknife+",
Annals of Statistics 49, 2021).
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]

MAX_KERNEL_POINTS = 300
"""Maximum number of observations for fitting the kernel; if there are more, a random subset is used.

The fitting time is proportional to the cube of this number.
"""

_BLOCK_ROWS = 2_000
"""Number of rows per block of predictions, to limit memory."""


@dataclass(frozen=True, eq=False)
class IntervalPredictions:
    """Predictions of M points in C columns.

    Attributes:
        value: (M, C) predictions.
        low: (M, C) lower ends of the jackknife+ intervals; minus infinity if there are too few observations.
        high: (M, C) upper ends; infinity if there are too few observations.
    """

    value: _Floats
    low: _Floats
    high: _Floats


class GaussianProcess:
    """A Gaussian process for standardised targets.

    Attributes:
        noise: variance of the noise of an observation, in units of the prior variance of standardised targets.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed
        self.noise = 0.0

    def fit(self, points: _Floats, targets: _Floats, variances: _Floats | None = None) -> Self:
        """Fit the process.

        Args:
            points: (n, F) features.
            targets: (n, C), without constant columns.
            variances: (n, C) known variances of the targets, such as squared standard errors. They are divided by the
                variances of the columns, averaged over columns, and added to the noise.
        """
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

        self._points = points
        self._mean, self._scale = targets.mean(axis=0), targets.std(axis=0)
        standardised = (targets - self._mean) / self._scale
        known_variances = np.zeros(len(points)) if variances is None else (variances / self._scale**2).mean(axis=1)
        signal_kernel = ConstantKernel(0.1, (1e-6, 1e2)) * DotProduct(sigma_0=1.0, sigma_0_bounds="fixed")
        signal_kernel += ConstantKernel(1.0, (1e-4, 1e3)) * RBF(3.0, (0.3, 100.0))
        kernel: Any = signal_kernel + WhiteKernel(0.1, (1e-6, 2.0))
        kernel_rows = np.random.default_rng(self._seed).permutation(len(points))[:MAX_KERNEL_POINTS]
        process = GaussianProcessRegressor(kernel, alpha=known_variances[kernel_rows] + 1e-8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # raised if a parameter is at its bound
            process.fit(points[kernel_rows], standardised[kernel_rows])
        self._kernel = process.kernel_.k1
        self.noise = float(process.kernel_.k2.noise_level)
        covariance = self._kernel(points) + np.diag(known_variances + self.noise + 1e-8)
        self._inverse_covariance: _Floats = np.linalg.inv(covariance)
        self._targets = standardised
        self._weights: _Floats = self._inverse_covariance @ standardised
        self._residuals: _Floats = self._weights / np.diag(self._inverse_covariance)[:, None]
        return self

    def predict(self, points: _Floats) -> _Floats:
        """Return the predictions (M, C) at points (M, F)."""
        values: _Floats = self._kernel(points, self._points) @ self._weights
        predictions: _Floats = values * self._scale + self._mean
        return predictions

    def predict_leave_one_out(self) -> _Floats:
        """Return the predictions (n, C) of each observation from all other observations."""
        predictions: _Floats = (self._targets - self._residuals) * self._scale + self._mean
        return predictions

    def predict_intervals(self, points: _Floats, level: float) -> IntervalPredictions:
        """Predict with jackknife+ intervals, whose coverage is at least 2 * level - 1, and usually about `level`."""
        value = self.predict(points)
        low, high = np.empty_like(value), np.empty_like(value)
        for start in range(0, len(points), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            influence = self._kernel(points[rows], self._points) @ self._inverse_covariance  # (m, n)
            for column in range(value.shape[1]):
                residuals = self._residuals[:, column]
                point_predictions = (value[rows, column] - self._mean[column]) / self._scale[column]
                # (m, n) predictions of each point without each observation
                leave_one_out = point_predictions[:, None] - influence * residuals
                ends = jackknife_plus_intervals(leave_one_out, np.abs(residuals), level)
                low[rows, column], high[rows, column] = (end * self._scale[column] + self._mean[column] for end in ends)
        return IntervalPredictions(value, low, high)

    def posterior_covariance(self, points: _Floats) -> _Floats:
        """Return the posterior covariance (M, M) at points, in units of the prior variance of standardised targets."""
        cross_covariance = self._kernel(points, self._points)
        covariance: _Floats = self._kernel(points) - cross_covariance @ self._inverse_covariance @ cross_covariance.T
        return covariance

    def standardise(self, values: _Floats) -> _Floats:
        """Return values (M, C) in the units of the standardised targets."""
        standardised: _Floats = (values - self._mean) / self._scale
        return standardised


def jackknife_plus_intervals(leave_one_out: _Floats, residuals: _Floats, level: float) -> tuple[_Floats, _Floats]:
    """Return the lower and upper ends (m,) of jackknife+ intervals.

    Args:
        leave_one_out: (m, n) predictions of each point without each of n observations.
        residuals: (n,) absolute residual of each observation, predicted without this observation.
        level: nominal coverage, 1 - alpha.
    """
    n_observations = len(residuals)
    rank = math.ceil(level * (n_observations + 1) - 1e-9)
    if rank > n_observations:
        infinite = np.full(len(leave_one_out), np.inf)
        return -infinite, infinite
    low = np.partition(leave_one_out - residuals, n_observations - rank, axis=1)[:, n_observations - rank]
    high = np.partition(leave_one_out + residuals, rank - 1, axis=1)[:, rank - 1]
    return low, high


def choose_for_ranking(covariance: _Floats, is_candidate: NDArray[np.bool_], noise: float, count: int) -> list[int]:
    """Choose points one by one, always the point that most reduces the sum of the variances of all points.

    The variances do not depend on observed values, so all points can be chosen before any is observed. Source: Cohn,
    "Neural network exploration using optimal experiment design", Neural Networks 9 (1996).

    Args:
        covariance: (M, M) posterior covariance of the values at the points; modified in place.
        is_candidate: (M,) bool, whether each point may be chosen.
        noise: variance of the noise of an observation.
        count: number of points, at most the number of candidates.
    """
    is_available, chosen_points = is_candidate.copy(), []
    for _ in range(count):
        reduction = np.einsum("ij,ij->j", covariance, covariance) / (np.diag(covariance) + noise)
        chosen_points.append(_choose_and_observe(covariance, np.where(is_available, reduction, -np.inf), noise))
        is_available[chosen_points[-1]] = False
    return chosen_points


def choose_for_best(
    mean: _Floats, covariance: _Floats, is_candidate: NDArray[np.bool_], noise: float, count: int, *, width: float = 2.0
) -> list[int]:
    """Choose points one by one by upper confidence bounds; each chosen point is then treated as observed.

    Source: Desautels, Krause and Burdick, "Parallelizing exploration-exploitation tradeoffs in Gaussian process bandit
    optimization", JMLR 15 (2014).

    Args:
        mean: (M,) predictions, in the units of the covariance.
        covariance: (M, M) posterior covariance of the values at the points; modified in place.
        is_candidate: (M,) bool, whether each point may be chosen.
        noise: variance of the noise of an observation.
        count: number of points, at most the number of candidates.
        width: distance of the bound from the prediction, in standard deviations.
    """
    is_available, chosen_points = is_candidate.copy(), []
    for _ in range(count):
        bound = mean + width * np.sqrt(np.maximum(np.diag(covariance), 0))
        chosen_points.append(_choose_and_observe(covariance, np.where(is_available, bound, -np.inf), noise))
        is_available[chosen_points[-1]] = False
    return chosen_points


def _choose_and_observe(covariance: _Floats, scores: _Floats, noise: float) -> int:
    """Return the point with the highest score, and update the covariance as if the point had been observed."""
    point = int(np.argmax(scores))
    column = covariance[:, point].copy()
    covariance -= np.outer(column, column / (column[point] + noise))
    return point
