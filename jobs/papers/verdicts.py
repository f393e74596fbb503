"""Verdicts on a paper's claims, from intervals, and the sample size that would decide an undecided claim."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"

COVERAGE = 0.95
"""Coverage of the intervals. If a claim is about several estimates, this is their joint coverage (Bonferroni)."""


N_REPLICATES = 2000
"""Number of bootstrap samples."""


class Claim(NamedTuple):
    """A paper's claim, with the verdict on our results.

    Attributes:
        claim: the claim, as a sentence.
        place: section, figure or table in the paper.
        published: the paper's numbers.
        ours: our numbers, with intervals.
        data: networks and images from which our numbers were computed.
        verdict: `HOLDS`, `FAILS` or `UNDECIDED`.
        would_decide: for an undecided claim, what would decide it.
    """

    claim: str
    place: str
    published: str
    ours: str
    data: str
    verdict: str
    would_decide: str = ""


class Estimate(NamedTuple):
    """An estimate with its interval, from `n` samples (cells, images or seeds) in each of `groups` groups.

    `n_comparisons` is the number of estimates whose intervals have the joint coverage `COVERAGE`.
    """

    value: float
    low: float
    high: float
    n: int
    groups: int = 1
    n_comparisons: int = 1

    def __str__(self) -> str:
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"

    def __neg__(self) -> "Estimate":
        return self._replace(value=-self.value, low=-self.high, high=-self.low)

    def joint(self, n_comparisons: int) -> "Estimate":
        """Return an estimate of a mean over one group with Student's interval for joint coverage."""
        factor = _quantile(self.n, 1, n_comparisons) / _quantile(self.n, 1, self.n_comparisons)
        half_width = factor * (self.high - self.low) / 2
        low, high = self.value - half_width, self.value + half_width
        return self._replace(low=low, high=high, n_comparisons=n_comparisons)


def judge(estimates: Iterable[Estimate]) -> str:
    """Return the verdict on the claim that all estimated quantities are positive.

    The claim holds if all intervals are above 0, does not hold if one is below 0, and is otherwise undecided.
    """
    estimates = list(estimates)
    if any(estimate.high < 0 for estimate in estimates):
        return FAILS
    return HOLDS if estimates and all(estimate.low > 0 for estimate in estimates) else UNDECIDED


def required_sample_size(estimate: Estimate) -> float:
    """Return the sample size per group at which the interval would exclude 0, if estimate and spread stay the same.

    Returns:
        At least `n` and 2; infinite if the estimate is 0 or the interval is unknown (a single sample).
    """
    half_width = (estimate.high - estimate.low) / 2
    if not half_width < math.inf or estimate.value == 0:
        return math.inf
    groups, n_comparisons = estimate.groups, estimate.n_comparisons
    spread = half_width * math.sqrt(estimate.n) / _quantile(estimate.n, groups, n_comparisons)
    n = max(2, math.ceil((_quantile(10**9, 1, n_comparisons) * spread / estimate.value) ** 2))
    while _quantile(n, groups, n_comparisons) * spread / math.sqrt(n) >= abs(estimate.value):
        n += 1
    return max(n, estimate.n)


def sample_needed(estimates: Iterable[Estimate], noun: str, available: float = math.inf) -> str:
    """Return the sample, such as ``about 150 cells``, that would decide the least certain of these estimates."""
    n = max(required_sample_size(estimate) for estimate in estimates if not (estimate.low > 0 or estimate.high < 0))
    if n > available:
        return f"not even all {available:,.0f} {noun}, if the estimates stay the same"
    return f"about {n:,.0f} {noun}" if n < math.inf else f"more {noun}"


def decide(
    claim: str,
    place: str,
    published: str,
    ours: str,
    data: str,
    estimates: Iterable[Estimate],
    noun: str,
    available: float = math.inf,
) -> Claim:
    """Return the claim that all estimates are positive, with its verdict and the sample that would decide it."""
    estimates = list(estimates)
    verdict = judge(estimates)
    needed = sample_needed(estimates, noun, available) if estimates and verdict == UNDECIDED else ""
    return Claim(claim, place, published, ours, data, verdict, needed)


def mean_estimate(values: ArrayLike, n_comparisons: int = 1) -> Estimate:
    """Return the mean of independent values with Student's interval; it is unknown (NaN) for a single value.

    `n_comparisons` is the number of estimates whose intervals must have the joint coverage `COVERAGE`.
    """
    sample = np.asarray(values, np.float64)
    mean, n = float(sample.mean()), len(sample)
    half_width = _quantile(n, 1, n_comparisons) * sample.std(ddof=1) / math.sqrt(n) if n > 1 else math.nan
    return Estimate(mean, mean - half_width, mean + half_width, n, 1, n_comparisons)


def normal_estimate(value: float, error: float, n: int, n_comparisons: int = 1) -> Estimate:
    """Return an estimate with the interval of a normal distribution, from its standard error."""
    half_width = _quantile(10**9, 1, n_comparisons) * error
    return Estimate(value, value - half_width, value + half_width, n, 1, n_comparisons)


def tau_estimate(x: ArrayLike, y: ArrayLike, n_comparisons: int = 1) -> Estimate:
    """Return Kendall's tau with an interval from the standard error of independent rankings.

    This error is usually larger than that of correlated rankings.
    """
    first, second = (np.asarray(values, np.float64) for values in (x, y))
    n = len(first)
    error = math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1)))
    return normal_estimate(float(stats.kendalltau(first, second).statistic), error, n, n_comparisons)


def bootstrap_estimate(value: float, replicates: ArrayLike, n: int, n_comparisons: int = 1) -> Estimate:
    """Return an estimate with the percentile interval of its bootstrap replicates (NaN is left out)."""
    tail = (1 - COVERAGE) / 2 / n_comparisons
    low, high = np.nanquantile(np.asarray(replicates, np.float64), [tail, 1 - tail])
    return Estimate(value, float(low), float(high), n, 1, n_comparisons)


def bootstrap_difference(
    pairs: ArrayLike, statistic: Callable[[NDArray[np.float64], int], NDArray[np.float64]], n_comparisons: int = 1
) -> Estimate:
    """Return a statistic (a function of values and axis) of the first column minus that of the second.

    The interval comes from bootstrap samples of the rows.
    """
    values = np.asarray(pairs, np.float64)
    samples = np.random.default_rng(0).integers(len(values), size=(N_REPLICATES, len(values)))
    value = float(statistic(values, 0) @ [1, -1])
    return bootstrap_estimate(value, statistic(values[samples], 1) @ [1, -1], len(values), n_comparisons)


def welch_estimate(
    mean: ArrayLike, sd: ArrayLike, n: ArrayLike, weights: ArrayLike = (1, -1), n_comparisons: int = 1
) -> Estimate:
    """Return a contrast of the means of groups with Welch's interval; by default, the first mean minus the second.

    Args:
        mean: mean of each group.
        sd: standard deviation of each group (divisor n - 1).
        n: size of each group, at least 2.
        weights: weight of each group's mean in the contrast.
        n_comparisons: see `mean_estimate`.
    """
    sizes, factors = np.asarray(n, np.float64), np.asarray(weights, np.float64)
    variances = np.square(factors * np.asarray(sd, np.float64)) / sizes
    degrees = variances.sum() ** 2 / np.sum(variances**2 / (sizes - 1))
    half_width = stats.t.ppf(1 - (1 - COVERAGE) / 2 / n_comparisons, degrees) * math.sqrt(variances.sum())
    value = float(factors @ np.asarray(mean, np.float64))
    return Estimate(value, value - half_width, value + half_width, int(sizes.min()), len(sizes), n_comparisons)


def _quantile(n: float, groups: int, n_comparisons: int = 1) -> float:
    return float(stats.t.ppf(1 - (1 - COVERAGE) / 2 / n_comparisons, groups * (n - 1)))
