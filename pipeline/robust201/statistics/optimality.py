"""Optimality of attacks: how close each one comes to the best attack per image, as in AttackBench.

Source: Cinà et al., "AttackBench: Evaluating Gradient-based Attacks for Adversarial Examples", AAAI 2025, equations 4
to 6. Distances are those of `statistics.distances`: 0 for misclassified clean images, infinity for images that were not
fooled.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError
from robust201.statistics.distances import smallest_distances


def robustness_area(distances: ArrayLike, largest: float) -> float:
    """Integrate the accuracy over epsilons from 0 to the largest.

    An image with distance d is classified correctly at epsilons below d, so it adds d, but at most the whole interval.

    Args:
        distances: (N,) from 0 to infinity.
        largest: upper end of the interval.
    """
    return float(np.minimum(np.asarray(distances, np.float64), largest).mean())


def local_optimalities(distances: Mapping[str, ArrayLike]) -> dict[str, float]:
    """Compute the local optimality of attacks on a network, against the envelope of all attacks.

    The interval ends where the envelope's accuracy reaches 0: at its largest distance, or at its largest finite one if
    no attack fools all images. A value of 1 means that the attack has the smallest distance of every image, and 0 that
    it fools none of the correctly classified images.

    Args:
        distances: (N,) of each attack on the same images; more attacks give a better envelope. An image that has
            distance 0 for one attack counts as misclassified without attack for all.

    Returns:
        Optimality in [0, 1], by attack; NaN if the envelope fools no image.

    Raises:
        ConfigError: there are no attacks, or the numbers of images differ.
    """
    arrays = {name: np.asarray(values, np.float64) for name, values in distances.items()}
    sizes = {array.shape for array in arrays.values()}
    if len(sizes) != 1 or len(next(iter(sizes))) != 1 or sizes == {(0,)}:
        raise ConfigError(
            f"Computing optimality failed: expected distances of the same images for at least one attack, got shapes "
            f"{', '.join(map(str, sorted(sizes))) or 'of no attack'}. Evaluate all attacks on the same images."
        )
    envelope = smallest_distances(list(arrays.values()))
    # Attacks may disagree on which images are misclassified, for instance if batches round outputs differently.
    return {name: _local_optimality(np.where(envelope > 0, array, 0.0), envelope) for name, array in arrays.items()}


def global_optimality(local_optimalities_of_networks: Sequence[float]) -> float:
    """Return the mean of an attack's local optimalities over networks."""
    return float(np.mean(local_optimalities_of_networks))


def _local_optimality(distances: NDArray[np.float64], envelope: NDArray[np.float64]) -> float:
    finite = envelope[np.isfinite(envelope)]
    largest = float(finite.max(initial=0.0))
    clean_area = largest * float((envelope > 0).mean())  # the area of an attack that fools no image
    gain = clean_area - robustness_area(envelope, largest)
    return float("nan") if gain <= 0 else (clean_area - robustness_area(distances, largest)) / gain
