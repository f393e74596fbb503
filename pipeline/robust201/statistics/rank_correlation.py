"""Kendall's rank correlations of many columns, with confidence intervals over architectures.

One pass over blocks of architectures computes the signs of all pairwise differences. Every coefficient and its
influence values (the effects of single architectures on the coefficient) follow from these signs. Standard errors are
computed from the standard deviations of the influence values. This method, the infinitesimal jackknife, is the
limit of a bootstrap over architectures. Standard errors of differences and of partial correlations follow from the
chain rule. Ties are handled as in tau-b.

Source: Kendall, "The treatment of ties in ranking problems", Biometrika 33 (1945); Efron and Tibshirani, "An
Introduction to the Bootstrap", 1993, chapter 21 (influence values); Kendall and Gibbons, "Rank Correlation Methods",
1990, chapter 8 (partial tau).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.statistics.intervals import NORMAL_QUANTILE

_Floats = NDArray[np.float64]

_BLOCK_BYTES = 64 << 20
"""Maximum size in bytes of the array of signs of a block of rows."""


class Interval(NamedTuple):
    """A coefficient with its 95% interval; all three are NaN if it is undefined, for example for a constant column."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Correlations between every two of P columns.

    Attributes:
        values: (P, P) float64 in [-1, 1]; NaN if a column is constant.
        influence: (N, P, P) float32, influence values of the N rows, whose mean over rows is 0.
    """

    values: _Floats
    influence: NDArray[np.float32]

    def interval(self, first: int, second: int) -> Interval:
        return _interval(float(self.values[first, second]), self.influence[:, first, second])

    def gain(self, measure: int, baseline: int, target: int) -> Interval:
        """Return |correlation of measure and target| - |correlation of baseline and target|."""
        signs = np.sign(self.values[[measure, baseline], target])
        influence = signs[0] * self.influence[:, measure, target] - signs[1] * self.influence[:, baseline, target]
        value = abs(self.values[measure, target]) - abs(self.values[baseline, target])
        return _interval(float(value), influence, bound=2.0)

    def partial_correlation(self, first: int, second: int, controls: Sequence[int]) -> Interval:
        """Return the partial correlation of two columns, controlled for other columns.

        It is computed from the inverse of the columns' correlation matrix, and is NaN if this matrix is singular.
        """
        columns = [first, second, *(column for column in controls if column not in (first, second))]
        matrix = self.values[np.ix_(columns, columns)]
        if np.isnan(matrix).any() or np.linalg.matrix_rank(matrix) < len(columns):
            return Interval(np.nan, np.nan, np.nan)
        inverse = np.linalg.inv(matrix)
        value = float(-inverse[0, 1] / np.sqrt(inverse[0, 0] * inverse[1, 1]))
        # d(inverse) = -inverse · d(matrix) · inverse, and the coefficient depends on three elements of the inverse.
        inverse_influence = -np.einsum(
            "ai,nij,jb->nab", inverse[:2], self.influence[:, columns][:, :, columns], inverse[:, :2]
        )
        scale = np.sqrt(inverse[0, 0] * inverse[1, 1])
        influence = -inverse_influence[:, 0, 1] / scale - value * (
            inverse_influence[:, 0, 0] / (2 * inverse[0, 0]) + inverse_influence[:, 1, 1] / (2 * inverse[1, 1])
        )
        return _interval(value, influence)


def correlate_ranks(columns: ArrayLike) -> Coefficients:
    """Compute Kendall's tau-b between every two columns, with influence values.

    `columns` are (N, P) numbers without NaN, one row per architecture; N is at least 3.
    """
    column_array = np.asarray(columns, np.float64)
    if column_array.ndim != 2 or len(column_array) < 3 or np.isnan(column_array).any():
        raise ValueError(f"expected numbers (N, P) without NaN, N at least 3, got shape {column_array.shape} or NaN")
    n, p = column_array.shape
    codes = np.stack([np.unique(column, return_inverse=True)[1] for column in column_array.T]).astype(
        np.int32
    )  # (P, N)
    concordance = np.empty((n, p, p), np.float32)  # mean over j of sign(x_i - x_j) sign(y_i - y_j)
    block_rows = max(1, _BLOCK_BYTES // (4 * n * p))
    for start in range(0, n, block_rows):
        rows = slice(start, min(n, start + block_rows))
        signs = np.sign(codes[:, rows, None] - codes[:, None, :]).astype(np.float32).transpose(1, 0, 2)  # (B, P, N)
        concordance[rows] = signs @ signs.transpose(0, 2, 1) / n
    means = concordance.mean(axis=0, dtype=np.float64)
    return _normalise(means, 2 * (concordance - means.astype(np.float32)))


def _normalise(means: _Floats, influence: NDArray[np.float32]) -> Coefficients:
    """Divide covariances by standard deviations, and propagate the influence values by the quotient rule."""
    variances = np.diagonal(means).copy()
    variances[variances <= 0] = np.nan
    scale: _Floats = np.sqrt(variances[:, None] * variances[None, :])
    coefficients = np.clip(means / scale, -1, 1)
    relative_influence = np.diagonal(influence, axis1=1, axis2=2) / (2 * variances).astype(np.float32)
    normalised_influence = np.divide(influence, scale, dtype=np.float32)
    normalised_influence -= coefficients.astype(np.float32) * (
        relative_influence[:, :, None] + relative_influence[:, None, :]
    )
    return Coefficients(coefficients, normalised_influence)


def _interval(value: float, influence: NDArray[Any], bound: float = 1.0) -> Interval:
    n = len(influence)
    standard_error = float(np.sqrt(np.square(influence, dtype=np.float64).sum() / (n * (n - 1))))
    half_width = NORMAL_QUANTILE * standard_error
    if np.isnan(value) or np.isnan(half_width):
        return Interval(np.nan, np.nan, np.nan)
    return Interval(value, max(-bound, value - half_width), min(bound, value + half_width))


def kendall_taus(columns: ArrayLike) -> NDArray[np.float64]:
    """Return tau-b (K, K) between every two columns of an array (N, K), over the rows where neither is NaN.

    Taus of a constant column are NaN.
    """
    import pandas as pd

    frame = pd.DataFrame(np.asarray(columns, np.float64))
    taus: NDArray[np.float64] = frame.corr(method="kendall").to_numpy(copy=True)
    np.fill_diagonal(taus, np.where(frame.nunique() > 1, 1.0, np.nan))
    return taus
