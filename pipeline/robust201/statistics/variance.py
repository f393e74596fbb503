"""Sources of the variance of accuracies: training seeds, images, and random draws of an attack."""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError
from robust201.statistics.groups import summarise_group


def summarise_seeds(accuracies: ArrayLike) -> tuple[NDArray[np.float64], float]:
    """Summarise accuracies (A, S) of A architectures over training seeds; NaN for missing training runs.

    On the same images, the deviation over seeds includes the variance between seeds and each seed's chance successes on
    these images; only per-image outcomes can separate the two (see `variance_components`).

    Returns:
        The standard deviation (A,) of each architecture over its seeds (ddof 1), NaN for fewer than two; and the root
        of the mean variance, weighted by the number of seeds minus one, NaN if no architecture has two.
    """
    numbers = np.asarray(accuracies, np.float64)
    seeds = summarise_group(numbers)
    squares = np.where(np.isnan(numbers), 0, numbers - seeds.mean[:, None]) ** 2
    degrees = int(np.maximum(seeds.size - 1, 0).sum())
    pooled = float(np.sqrt(squares.sum() / degrees)) if degrees else float("nan")
    return seeds.deviation, pooled


def variance_components(values: ArrayLike, factors: Sequence[str]) -> dict[str, float]:
    """Estimate the variance components of crossed random factors and their interactions.

    Every level of each factor is combined once with every level of the others. For example, each of S networks of an
    architecture is evaluated on the same N images with D random draws of an attack: values (S, D, N) of 0 and 1, and
    factors ``("training seed", "draw", "image")``. Estimates are those of the analysis of variance: unbiased, and
    possibly negative for a component near 0. The interaction of all factors includes all other noise.

    Args:
        values: one axis per factor, with at least two levels each.
        factors: names of the axes.

    Returns:
        Variance by factor, and by interaction as ``"training seed x image"``. To the variance of the mean over all
        values, a component contributes its variance divided by the product of its factors' levels.

    Raises:
        ConfigError: axes and names do not match, or a factor has fewer than two levels.

    Source: Searle, Casella and McCulloch, "Variance Components", 1992, chapter 4.
    """
    numbers = np.asarray(values, np.float64)
    if numbers.ndim != len(factors) or not factors or min(numbers.shape) < 2:
        raise ConfigError(
            f"Dividing variance failed for {', '.join(factors) or 'no factor'}: expected an axis with at least two "
            f"levels for each, got shape {numbers.shape}. Take more seeds, draws or images."
        )
    axes = range(numbers.ndim)
    subsets = [set(subset) for size in range(1, numbers.ndim + 1) for subset in itertools.combinations(axes, size)]
    squares = {frozenset(subset): _mean_square(numbers, subset) for subset in subsets}
    components = {}
    for subset in subsets:
        # Expected mean squares are sums over all larger subsets, so alternating sums isolate a component.
        larger = (other for other in subsets if subset <= other)
        total = sum((-1) ** (len(other) - len(subset)) * squares[frozenset(other)] for other in larger)
        other_levels = [numbers.shape[axis] for axis in axes if axis not in subset]
        components[" x ".join(factors[axis] for axis in sorted(subset))] = float(total / np.prod(other_levels))
    return components


def _mean_square(numbers: NDArray[np.float64], subset: set[int]) -> float:
    """Return the mean square of an interaction, after removing the effects of fewer factors."""
    effect = numbers.mean(axis=tuple(axis for axis in range(numbers.ndim) if axis not in subset), keepdims=True)
    for axis in subset:
        effect = effect - effect.mean(axis=axis, keepdims=True)
    degrees = np.prod([numbers.shape[axis] - 1 for axis in subset])
    repeats = np.prod([numbers.shape[axis] for axis in range(numbers.ndim) if axis not in subset])
    return float((effect**2).sum() * repeats / degrees)
