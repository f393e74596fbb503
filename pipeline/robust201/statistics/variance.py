"""Sources of the variance of accuracies: training seeds, images, and random numbers of an attack."""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError
from robust201.statistics.groups import summarise_group


def summarise_seeds(accuracies: ArrayLike) -> tuple[NDArray[np.float64], float]:
    """Summarise accuracies (A, S) of A architectures over S training seeds; NaN means a missing training run.

    The deviation over seeds is due both to the seeds and to the sampling of the images. Only per-image outcomes can
    separate these two effects (see `variance_components`).

    Returns:
        The standard deviation (A,) of each architecture over its seeds (ddof 1), and the pooled standard deviation of
        all architectures. The first is NaN for an architecture with fewer than two seeds, and the second is NaN if
        there are only such architectures.
    """
    accuracy_array = np.asarray(accuracies, np.float64)
    seed_summary = summarise_group(accuracy_array)
    squares = np.where(np.isnan(accuracy_array), 0, accuracy_array - seed_summary.mean[:, None]) ** 2
    df = int(np.maximum(seed_summary.size - 1, 0).sum())
    pooled_deviation = float(np.sqrt(squares.sum() / df)) if df else float("nan")
    return seed_summary.deviation, pooled_deviation


def variance_components(values: ArrayLike, factors: Sequence[str]) -> dict[str, float]:
    """Estimate the variance components of crossed random factors and their interactions.

    Every combination of levels has one value. For example, each of S networks of an architecture is evaluated on the
    same N images with D seeds of a random attack; this gives values (S, D, N) of 0 and 1, and the factors
    ``("training seed", "draw", "image")``. The estimates are those of the analysis of variance, which are unbiased, so
    the estimate of a component near 0 may be negative. The interaction of all factors also includes the residual noise.

    Args:
        values: one axis per factor, with at least two levels each.
        factors: names of the axes.

    Returns:
        Variance of each factor, and of each interaction, such as ``"training seed x image"``, by name. The contribution
        of a component to the variance of the overall mean is its variance divided by the product of the numbers of
        levels of its factors.

    Raises:
        ConfigError: the numbers of axes and names differ, or a factor has fewer than two levels.

    Source: Searle, Casella and McCulloch, "Variance Components", 1992, chapter 4.
    """
    value_array = np.asarray(values, np.float64)
    if value_array.ndim != len(factors) or not factors or min(value_array.shape) < 2:
        raise ConfigError(
            f"Estimating variance components failed for {', '.join(factors) or 'no factor'}: expected an axis with at "
            f"least two levels for each factor, got shape {value_array.shape}. Use more seeds, draws or images."
        )
    axes = range(value_array.ndim)
    subsets = [set(subset) for size in range(1, value_array.ndim + 1) for subset in itertools.combinations(axes, size)]
    mean_squares = {frozenset(subset): _mean_square(value_array, subset) for subset in subsets}
    components = {}
    for subset in subsets:
        # The expected mean squares are sums over all larger subsets, so an alternating sum isolates a component.
        supersets = (superset for superset in subsets if subset <= superset)
        total = sum((-1) ** (len(superset) - len(subset)) * mean_squares[frozenset(superset)] for superset in supersets)
        other_levels = [value_array.shape[axis] for axis in axes if axis not in subset]
        components[" x ".join(factors[axis] for axis in sorted(subset))] = float(total / np.prod(other_levels))
    return components


def _mean_square(values: NDArray[np.float64], subset: set[int]) -> float:
    """Return the mean square of an interaction, without the effects of interactions of fewer factors."""
    effect = values.mean(axis=tuple(axis for axis in range(values.ndim) if axis not in subset), keepdims=True)
    for axis in subset:
        effect = effect - effect.mean(axis=axis, keepdims=True)
    df = np.prod([values.shape[axis] - 1 for axis in subset])
    n_repeats = np.prod([values.shape[axis] for axis in range(values.ndim) if axis not in subset])
    return float((effect**2).sum() * n_repeats / df)
