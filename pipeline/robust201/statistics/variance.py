"""Where the variance of accuracies comes from: training seeds, images, draws of an attack."""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError
from robust201.statistics.groups import summarise_group


def summarise_seeds(accuracies: ArrayLike) -> tuple[NDArray[np.float64], float]:
    """Summarise accuracies (A, S) of A architectures over training seeds; NaN where there is no training of a seed.

    On the same images, the deviation over seeds holds the seeds' own variance and what each seed happens to get right
    of these images; only outcomes by image divide the two (see `variance_components`).

    Returns:
        The standard deviation of each architecture over its seeds (ddof 1), (A,), NaN of fewer than two; and the root
        of the mean variance, each architecture weighted by its seeds less one, NaN of none.
    """
    numbers = np.asarray(accuracies, np.float64)
    seeds = summarise_group(numbers)
    squares = np.where(np.isnan(numbers), 0, numbers - seeds.mean[:, None]) ** 2
    degrees = int(np.maximum(seeds.size - 1, 0).sum())
    pooled = float(np.sqrt(squares.sum() / degrees)) if degrees else float("nan")
    return seeds.deviation, pooled


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
    numbers = np.asarray(values, np.float64)
    if numbers.ndim != len(factors) or not factors or min(numbers.shape) < 2:
        raise ConfigError(
            f"Dividing variance failed for {', '.join(factors) or 'no factor'}: expected an axis of two levels or more "
            f"for each, got shape {numbers.shape}. Take more seeds, draws or images."
        )
    axes = range(numbers.ndim)
    subsets = [set(chosen) for size in range(1, numbers.ndim + 1) for chosen in itertools.combinations(axes, size)]
    squares = {frozenset(subset): _mean_square(numbers, subset) for subset in subsets}
    components = {}
    for subset in subsets:
        # Expected mean squares are sums over all larger subsets, so alternating sums of these take the others out.
        larger = (other for other in subsets if subset <= other)
        total = sum((-1) ** (len(other) - len(subset)) * squares[frozenset(other)] for other in larger)
        outside = [numbers.shape[axis] for axis in axes if axis not in subset]
        components[" x ".join(factors[axis] for axis in sorted(subset))] = float(total / np.prod(outside))
    return components


def _mean_square(numbers: NDArray[np.float64], subset: set[int]) -> float:
    """Mean square of the effect of some factors, of which effects of fewer factors are taken out."""
    effect = numbers.mean(axis=tuple(axis for axis in range(numbers.ndim) if axis not in subset), keepdims=True)
    for axis in subset:
        effect = effect - effect.mean(axis=axis, keepdims=True)
    degrees = np.prod([numbers.shape[axis] - 1 for axis in subset])
    repeats = np.prod([numbers.shape[axis] for axis in range(numbers.ndim) if axis not in subset])
    return float((effect**2).sum() * repeats / degrees)
