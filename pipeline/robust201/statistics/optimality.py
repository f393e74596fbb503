"""Optimality of attacks: how near they come to the best attack of each image, as AttackBench ranks them.

Source: Cinà et al., "AttackBench: Evaluating Gradient-based Attacks for Adversarial Examples", AAAI 2025, equations 4
to 6. Distances are those of `statistics.distances`: 0 for images that are wrong as they are, infinity for those that
were not fooled.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError
from robust201.statistics.distances import smallest_distances


def robustness_area(distances: ArrayLike, largest: float) -> float:
    """Integrate the accuracy over epsilons from 0 to the largest.

    An image of distance d is right at the epsilons below d, so it adds d, or all of the interval if d is beyond it.

    Args:
        distances: (N,) 0 to infinity.
        largest: end of the interval.
    """
    return float(np.minimum(np.asarray(distances, np.float64), largest).mean())


def local_optimalities(distances: Mapping[str, ArrayLike]) -> dict[str, float]:
    """Compute the local optimality of attacks on one network, against the envelope of all of them.

    The interval ends where the envelope's accuracy reaches 0: at its largest distance, or at its largest finite one if
    no attack fools all images. 1 means that the attack has the smallest distance of every image, 0 that it fools none
    of those that are right as they are.

    Args:
        distances: (N,) of each attack, of the same images; the more attacks, the nearer the envelope is to the truth.
            An image of distance 0 for one attack is wrong as it is, and counts as such for all.

    Returns:
        By attack, in [0, 1]; NaN where the envelope fools nothing.

    Raises:
        ConfigError: no attack, or other numbers of images.
    """
    arrays = {name: np.asarray(values, np.float64) for name, values in distances.items()}
    sizes = {array.shape for array in arrays.values()}
    if len(sizes) != 1 or len(next(iter(sizes))) != 1 or sizes == {(0,)}:
        raise ConfigError(
            f"Computing optimality failed: expected distances of the same images by one attack or more, got shapes "
            f"{', '.join(map(str, sorted(sizes))) or 'of no attack'}. Evaluate all attacks on the same images."
        )
    envelope = smallest_distances(list(arrays.values()))
    # An attack may not notice that an image is wrong as it is, as where outputs are rounded otherwise in its batches.
    return {name: _local_optimality(np.where(envelope > 0, array, 0.0), envelope) for name, array in arrays.items()}


def global_optimality(by_network: Sequence[float]) -> float:
    """Average an attack's local optimalities over networks."""
    return float(np.mean(by_network))


def _local_optimality(distances: NDArray[np.float64], envelope: NDArray[np.float64]) -> float:
    finite = envelope[np.isfinite(envelope)]
    largest = float(finite.max(initial=0.0))
    nothing = largest * float((envelope > 0).mean())  # the area of an attack that fools no image
    gain = nothing - robustness_area(envelope, largest)
    return float("nan") if gain <= 0 else (nothing - robustness_area(distances, largest)) / gain
