"""Where the variance of accuracies comes from: training seeds, images, draws of an attack."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError


class SeedSummary(NamedTuple):
    """Accuracies of the same architectures trained from several seeds.

    Attributes:
        mean: (A,) mean over the seeds that an architecture has; NaN of none.
        deviation: (A,) standard deviation over seeds (ddof 1); NaN of fewer than two.
        spread: (A,) highest less lowest.
        n_seeds: (A,) seeds that an architecture has.
        pooled: root of the mean variance over seeds, each architecture weighted by its seeds less one; NaN of none.
    """

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    spread: NDArray[np.float64]
    n_seeds: NDArray[np.int64]
    pooled: float


def summarise_seeds(accuracies: ArrayLike) -> SeedSummary:
    """Summarise accuracies (A, S) over training seeds; NaN where an architecture has no training of a seed.

    On the same images, the deviation over seeds holds the seeds' own variance and what each seed happens to get right
    of these images; only outcomes by image divide the two (see `variance_components`).
    """
    held = np.asarray(accuracies, np.float64)
    there = ~np.isnan(held)
    n = there.sum(axis=1)
    mean = np.full(len(held), np.nan)
    np.divide(np.where(there, held, 0).sum(axis=1), n, out=mean, where=n > 0)
    squares = np.where(there, held - mean[:, None], 0) ** 2
    variance = np.full(len(held), np.nan)
    np.divide(squares.sum(axis=1), n - 1, out=variance, where=n > 1)
    spread = np.where(there, held, -np.inf).max(axis=1) - np.where(there, held, np.inf).min(axis=1)
    degrees = int(np.maximum(n - 1, 0).sum())
    pooled = float(np.sqrt(squares.sum() / degrees)) if degrees else float("nan")
    return SeedSummary(mean, np.sqrt(variance), np.where(n > 0, spread, np.nan), n, pooled)


def variance_components(values: ArrayLike, factors: Sequence[str]) -> dict[str, float]:
    """Divide the variance of values among crossed random factors and their interactions.

    Every level of each factor meets every level of the others once, as when each of S networks of one architecture is
    shown the same N images in D draws of an attack: values (S, D, N) of 0 and 1, factors ``("training seed", "draw",
    "image")``. Estimates are those of the analysis of variance: unbiased, and negative by chance where a component is
    near 0, which is left as it is. The interaction of all factors includes all other noise.

    Args:
        values: one axis for each factor, at least two levels on each.
        factors: names of the axes.

    Returns:
        Variance by factor, and by interaction as ``"training seed x image"``. Of the mean over all values, a
        component contributes its variance divided by the product of the levels of its factors.

    Raises:
        ConfigError: axes and names do not fit, or a factor has fewer than two levels.

    Source: Searle, Casella and McCulloch, "Variance Components", 1992, chapter 4.
    """
    held = np.asarray(values, np.float64)
    if held.ndim != len(factors) or not factors or min(held.shape) < 2:
        raise ConfigError(
            f"Dividing variance failed for {', '.join(factors) or 'no factor'}: expected an axis of two levels or more "
            f"for each, got shape {held.shape}. Take more seeds, draws or images."
        )
    axes = range(held.ndim)
    subsets = [set(chosen) for size in range(1, held.ndim + 1) for chosen in itertools.combinations(axes, size)]
    squares = {frozenset(subset): _mean_square(held, subset) for subset in subsets}
    components = {}
    for subset in subsets:
        # Expected mean squares are sums over all larger subsets, so alternating sums of these take the others out.
        larger = (other for other in subsets if subset <= other)
        total = sum((-1) ** (len(other) - len(subset)) * squares[frozenset(other)] for other in larger)
        outside = [held.shape[axis] for axis in axes if axis not in subset]
        components[" x ".join(factors[axis] for axis in sorted(subset))] = float(total / np.prod(outside))
    return components


def _mean_square(held: NDArray[np.float64], subset: set[int]) -> float:
    """Mean square of the effect of some factors, of which effects of fewer factors are taken out."""
    effect = held.mean(axis=tuple(axis for axis in range(held.ndim) if axis not in subset), keepdims=True)
    for axis in subset:
        effect = effect - effect.mean(axis=axis, keepdims=True)
    degrees = np.prod([held.shape[axis] - 1 for axis in subset])
    repeats = np.prod([held.shape[axis] for axis in range(held.ndim) if axis not in subset])
    return float((effect**2).sum() * repeats / degrees)
