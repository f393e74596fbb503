"""Kendall's and Spearman's rank correlations of many columns at once, with intervals over architectures.

Both are built from the signs of all pairwise differences, so that one pass over blocks of architectures gives every
coefficient together with its influence values: how much each single architecture moves it. Their standard deviation is
the standard error (the infinitesimal jackknife), the limit of a bootstrap over architectures with ever more draws, and
those of a difference or of a partial correlation follow by the chain rule. Ties are handled as in tau-b and in the
ranks' means.

Source: Kendall, "The treatment of ties in ranking problems", Biometrika 33 (1945); Efron and Tibshirani, "An
Introduction to the Bootstrap", 1993, chapter 21 (influence values); Kendall and Gibbons, "Rank Correlation Methods",
1990, chapter 8 (partial tau).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Floats = NDArray[np.float64]

_BLOCK_BYTES = 64 << 20
"""Size of the signs of a block of rows."""


class Interval(NamedTuple):
    """A coefficient with its 95% interval; all NaN where a column is constant."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Correlations between every two of P columns.

    Attributes:
        values: (P, P) float64 in [-1, 1]; NaN where a column is constant.
        influence: (N, P, P) float32, influence values of each of the N rows; of mean 0 over rows.
    """

    values: _Floats
    influence: NDArray[np.float32]

    def interval(self, first: int, second: int) -> Interval:
        return _interval(float(self.values[first, second]), self.influence[:, first, second])

    def gain(self, measure: int, baseline: int, target: int) -> Interval:
        """Return by how much the absolute correlation of one column with a target exceeds that of another column."""
        signs = np.sign(self.values[[measure, baseline], target])
        moved = signs[0] * self.influence[:, measure, target] - signs[1] * self.influence[:, baseline, target]
        value = abs(self.values[measure, target]) - abs(self.values[baseline, target])
        return _interval(float(value), moved, bound=2.0)

    def partial(self, first: int, second: int, given: Sequence[int]) -> Interval:
        """Return the correlation of two columns with others held fixed, from the inverse of the matrix of all of them.

        NaN where the columns are so dependent that the matrix has no inverse.
        """
        chosen = [first, second, *(column for column in given if column not in (first, second))]
        matrix = self.values[np.ix_(chosen, chosen)]
        if np.isnan(matrix).any() or np.linalg.matrix_rank(matrix) < len(chosen):
            return Interval(np.nan, np.nan, np.nan)
        inverse = np.linalg.inv(matrix)
        value = float(-inverse[0, 1] / np.sqrt(inverse[0, 0] * inverse[1, 1]))
        # d(inverse) = -inverse · d(matrix) · inverse; the coefficient is made of three of its elements.
        moved = -np.einsum("ai,nij,jb->nab", inverse[:2], self.influence[:, chosen][:, :, chosen], inverse[:, :2])
        scale = np.sqrt(inverse[0, 0] * inverse[1, 1])
        slope = -moved[:, 0, 1] / scale - value * (
            moved[:, 0, 0] / (2 * inverse[0, 0]) + moved[:, 1, 1] / (2 * inverse[1, 1])
        )
        return _interval(value, slope)


class RankCorrelations(NamedTuple):
    """Both coefficients of the same columns."""

    kendall: Coefficients
    spearman: Coefficients


def correlate_ranks(columns: ArrayLike) -> RankCorrelations:
    """Compute Kendall's tau-b and Spearman's rho between every two columns, with influence values.

    Args:
        columns: (N, P) numbers without NaN, one row per architecture; N is at least 3.

    Raises:
        ValueError: fewer than 3 rows, or a NaN among the numbers.
    """
    numbers = np.asarray(columns, np.float64)
    if numbers.ndim != 2 or len(numbers) < 3 or np.isnan(numbers).any():
        raise ValueError(f"expected (N, P) numbers of 3 rows or more without NaN, got shape {numbers.shape}")
    n, p = numbers.shape
    codes = np.stack([np.unique(column, return_inverse=True)[1] for column in numbers.T]).astype(np.int32)  # (P, N)
    ranks = np.stack([_mean_signs(column) for column in codes])  # (P, N): mean over k of sign(x_j - x_k)
    concordance = np.empty((n, p, p), np.float32)  # mean over j of sign(x_i - x_j) sign(y_i - y_j)
    pulled = np.empty((n, p, p), np.float32)  # mean over j of sign(x_j - x_i) rank(y_j)
    block = max(1, _BLOCK_BYTES // (4 * n * p))
    for start in range(0, n, block):
        rows = slice(start, min(n, start + block))
        signs = np.sign(codes[:, rows, None] - codes[:, None, :]).astype(np.float32).transpose(1, 0, 2)  # (B, P, N)
        concordance[rows] = signs @ signs.transpose(0, 2, 1) / n
        pulled[rows] = -(signs @ ranks.T.astype(np.float32)) / n
    return RankCorrelations(_kendall(concordance), _spearman(ranks, pulled))


def _mean_signs(codes: NDArray[Any]) -> _Floats:
    """Mean over k of sign(x_j - x_k): the mean rank, centred and scaled to (-1, 1)."""
    counts = np.bincount(codes)
    below = np.cumsum(counts) - counts
    above = len(codes) - below - counts
    means: _Floats = ((below - above) / len(codes))[codes]
    return means


def _kendall(concordance: NDArray[np.float32]) -> Coefficients:
    means = concordance.mean(axis=0, dtype=np.float64)
    return _normalised(means, 2 * (concordance - means.astype(np.float32)))


def _spearman(ranks: _Floats, pulled: NDArray[np.float32]) -> Coefficients:
    products = (ranks.T[:, :, None] * ranks.T[:, None, :]).astype(np.float32)
    means = products.mean(axis=0, dtype=np.float64)
    # A row's own term, and what it does to the ranks of all others, in either column.
    moved = products + pulled + pulled.transpose(0, 2, 1)
    return _normalised(means, moved - moved.mean(axis=0, dtype=np.float64).astype(np.float32))


def _normalised(means: _Floats, moved: NDArray[np.float32]) -> Coefficients:
    """Divide means of products by the square roots of those of a column with itself, in values and influences."""
    own = np.diagonal(means).copy()
    own[own <= 0] = np.nan
    scale: _Floats = np.sqrt(own[:, None] * own[None, :])
    values = np.clip(means / scale, -1, 1)
    own_moved = np.diagonal(moved, axis1=1, axis2=2) / (2 * own).astype(np.float32)
    influence = np.divide(moved, scale, dtype=np.float32)
    influence -= values.astype(np.float32) * (own_moved[:, :, None] + own_moved[:, None, :])
    return Coefficients(values, influence)


def _interval(value: float, influence: NDArray[Any], bound: float = 1.0) -> Interval:
    from scipy.special import ndtri

    n = len(influence)
    error = float(np.sqrt(np.square(influence, dtype=np.float64).sum() / (n * (n - 1))))
    reach = float(ndtri(0.5 + 0.95 / 2)) * error
    if np.isnan(value) or np.isnan(reach):
        return Interval(np.nan, np.nan, np.nan)
    return Interval(value, max(-bound, value - reach), min(bound, value + reach))


def kendall_taus(columns: ArrayLike) -> NDArray[np.float64]:
    """Compute tau-b between every two columns, over the rows where both have a number, equal to SciPy's bit for bit.

    SciPy sorts the numbers of both columns for each pair, and computes a p-value; here each column is ranked once, and
    only the small integers of its ranks are sorted again.

    Args:
        columns: (N, K) numbers; NaN where there is none.

    Returns:
        (K, K) float64 in [-1, 1], symmetric; NaN where a side is constant.
    """
    numbers = np.asarray(columns, np.float64)
    n_rows, n_columns = numbers.shape
    # Ranks from 0, of the smallest type: NumPy sorts 16 bits by radix, in a tenth of the time.
    codes = np.zeros((n_columns, n_rows), np.min_scalar_type(n_rows))
    orders = []  # of each column, the rows with a number, ascending by it
    for code, column in zip(codes, numbers.T, strict=True):
        order = np.argsort(column, kind="stable")[: np.count_nonzero(~np.isnan(column))]  # NaN stands last
        code[order] = np.cumsum(np.diff(column[order], prepend=column[order[:1]]) > 0)
        orders.append(order)
    present = ~np.isnan(numbers.T)
    taus = np.diag([1.0 if code[order].any() else math.nan for code, order in zip(codes, orders, strict=True)])
    for i, j in itertools.combinations(range(n_columns), 2):
        rows = orders[j] if len(orders[i]) == n_rows else orders[j][present[i, orders[j]]]
        rows = rows[np.argsort(codes[i, rows], kind="stable")]  # by x; rows of equal x by y
        taus[i, j] = taus[j, i] = _tau(codes[i, rows], codes[j, rows])
    return taus


def _tau(x: NDArray[Any], y: NDArray[Any]) -> float:
    """Compute tau-b of ranks that are sorted by x, and by y where x is equal."""
    n_pairs = len(x) * (len(x) - 1) // 2
    x_ties, y_ties = _count_ties(x), _count_ties(y)
    if n_pairs in (x_ties, y_ties):
        return math.nan
    both = np.cumsum((x[1:] != x[:-1]) | (y[1:] != y[:-1]))
    both_ties = _count_ties(np.concatenate([[0], both]))
    balance = n_pairs - x_ties - y_ties + both_ties - 2 * _count_inversions(y)
    tau = balance / math.sqrt(n_pairs - x_ties) / math.sqrt(n_pairs - y_ties)
    return min(1.0, max(-1.0, tau))


def _count_ties(ranks: NDArray[Any]) -> int:
    counts = np.bincount(ranks)
    return int(np.vdot(counts, counts - 1)) // 2


def _count_inversions(values: NDArray[Any]) -> int:
    """Count the pairs of positions whose first value is larger than the second.

    Positions are divided into blocks of neighbours, and into buckets of neighbours in order of value. Pairs within a
    block or a bucket are compared; the others follow from how many positions each block has in each bucket.
    """
    size = 4 * math.isqrt(len(values)) // 5 + 1  # comparisons then take about as long as the table of counts
    n_blocks = -(-len(values) // size)
    # The last block is filled up with positions that are last in order of value, too.
    positions: NDArray[Any] = np.arange(n_blocks * size, dtype=np.int16 if n_blocks * size < 1 << 15 else np.int64)
    order = positions.copy()
    order[: len(values)] = np.argsort(values, kind="stable")
    ranks = np.empty_like(positions)
    ranks[order] = positions
    blocks, buckets = positions // size, ranks // size
    in_block = _count_inversions_by_row(ranks.reshape(n_blocks, size))
    in_bucket = _count_inversions_by_row(blocks[order].reshape(n_blocks, size))
    cells = blocks.astype(np.int64) * n_blocks + buckets
    counts = np.bincount(cells, minlength=n_blocks**2).reshape(n_blocks, n_blocks)
    before = np.cumsum(counts, axis=0, dtype=np.int32) - counts.astype(np.int32)  # in earlier blocks, by bucket
    above = before.sum(axis=1, keepdims=True, dtype=np.int32) - before.cumsum(axis=1, dtype=np.int32)
    return in_block + in_bucket + int(np.vdot(counts, above))


def _count_inversions_by_row(rows: NDArray[Any]) -> int:
    columns = np.ascontiguousarray(rows.T)
    return sum(int(np.count_nonzero(columns[:-step] > columns[step:])) for step in range(1, len(columns)))
