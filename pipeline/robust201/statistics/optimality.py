"""Optimality of attacks: a score that compares each attack with the best attack on each image, as in AttackBench.

Source: Cinà et al., "AttackBench: Evaluating Gradient-based Attacks for Adversarial Examples", AAAI 2025, equations 4
to 6. Distances are defined as in `statistics.distances`: 0 for misclassified clean images, infinity for images that
were not fooled.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError
from robust201.statistics.distances import smallest_distances


def robustness_area(distances: ArrayLike, largest: float) -> float:
    """Integrate the accuracy over epsilons from 0 to `largest`.

    An image with distance d is classified correctly at epsilons below d, so it adds min(d, `largest`) / N.

    Args:
        distances: (N,) from 0 to infinity.
        largest: largest epsilon.
    """
    return float(np.minimum(np.asarray(distances, np.float64), largest).mean())


def local_optimalities(distances: Mapping[str, ArrayLike]) -> dict[str, float]:
    """Compute the local optimality of attacks on a network, relative to the envelope of all attacks.

    The envelope is the smallest distance of each image over all attacks. Accuracies are integrated from 0 to the
    envelope's largest finite distance. An optimality of 1 means that the attack has the smallest distance on every
    image. An optimality of 0 means that it fools none of the correctly classified images in this range.

    Args:
        distances: distances (N,) of the same images, by attack; more attacks give a better envelope. An image with
            distance 0 for any attack counts as misclassified without a perturbation.

    Returns:
        Optimality in [0, 1] by attack; NaN if no attack fools any image.

    Raises:
        ConfigError: there are no attacks, or the numbers of images differ.
    """
    arrays = {attack: np.asarray(attack_distances, np.float64) for attack, attack_distances in distances.items()}
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1 or shapes == {(0,)}:
        raise ConfigError(
            f"Computing optimality failed: expected distances of the same images for at least one attack, got "
            f"{'shapes ' + ', '.join(map(str, sorted(shapes))) if shapes else 'no attack'}. Evaluate all attacks on "
            "the same images."
        )
    envelope = smallest_distances(list(arrays.values()))
    # Attacks may disagree about misclassified images, for example because rounding differs between batches.
    return {attack: _local_optimality(np.where(envelope > 0, array, 0.0), envelope) for attack, array in arrays.items()}


def global_optimality(local_optimalities_of_networks: Sequence[float]) -> float:
    """Return the mean of an attack's local optimalities over networks."""
    return float(np.mean(local_optimalities_of_networks))


def _local_optimality(distances: NDArray[np.float64], envelope: NDArray[np.float64]) -> float:
    finite_distances = envelope[np.isfinite(envelope)]
    largest = float(finite_distances.max(initial=0.0))
    clean_area = largest * float((envelope > 0).mean())  # area for an attack that fools no image
    envelope_gain = clean_area - robustness_area(envelope, largest)
    return float("nan") if envelope_gain <= 0 else (clean_area - robustness_area(distances, largest)) / envelope_gain
