"""Packed per-image outcomes: one bit per image, 1 if it was classified correctly.

Packed outcomes are uint8 arrays (…, ceil(N / 8)) for N images: image 0 is the most significant bit of byte 0, as
in `numpy.packbits` and in bit strings of SQL; bits after image N - 1 are 0.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Packed = NDArray[np.uint8]

_SET_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
"""Number of set bits, by the byte's value."""

_ROWS_AT_ONCE = 256
"""Number of rows to unpack together: 10 MB for 10,000 images as float32."""


def pack_outcomes(correct: ArrayLike) -> Packed:
    """Pack outcomes (…, N) bool into (…, ceil(N / 8)) uint8."""
    return np.packbits(np.asarray(correct, bool), axis=-1)


def unpack_outcomes(packed: Packed, n_images: int) -> NDArray[np.bool_]:
    """Unpack outcomes (…, ceil(N / 8)) uint8 into (…, N) bool."""
    return np.unpackbits(packed, axis=-1, count=n_images).view(np.bool_)


def count_correct(packed: Packed) -> NDArray[np.int64]:
    """Count the correct images in each row: (…, B) uint8 to (…) int64."""
    counts: NDArray[np.int64] = _SET_BITS[packed].sum(axis=-1, dtype=np.int64)
    return counts


def worst_case(several: Sequence[Packed]) -> Packed:
    """Combine outcomes on the same images: an image is correct only if it is correct in every evaluation.

    Tasks and strengths may be mixed. Source: the worst case over attacks of Croce and Hein, "Reliable evaluation of
    adversarial robustness with an ensemble of diverse parameter-free attacks", ICML 2020.
    """
    combined: Packed = np.bitwise_and.reduce([np.asarray(packed, np.uint8) for packed in several])
    return combined


def attack_success_rates(clean: Packed, attacked: Packed) -> NDArray[np.float64]:
    """Return the fraction of initially correct images that an attack fools, by row; NaN if none was correct.

    Both counts are sums over all images; fractions are not averaged over batches.
    """
    fooled, correct = count_correct(clean & ~attacked), count_correct(clean)
    rates = np.full(fooled.shape, np.nan)
    np.divide(fooled, correct, out=rates, where=correct > 0)
    return rates


def image_difficulty(packed: Packed, n_images: int) -> NDArray[np.float64]:
    """Return the fraction of networks that misclassify each image.

    Args:
        packed: (A, B) uint8, one row per network.
        n_images: number of images N.

    Returns:
        (N,) in [0, 1].
    """
    difficulty: NDArray[np.float64] = 1 - count_by_image(packed, n_images) / len(packed)
    return difficulty


def count_by_image(packed: Packed, n_images: int) -> NDArray[np.int64]:
    """Count the rows (A, B) uint8 in which each image's bit is set: (N,)."""
    counts = np.zeros(n_images, np.int64)
    for block in _blocks(packed):
        counts += unpack_outcomes(block, n_images).sum(axis=0)
    return counts


def pairwise_agreement(packed: Packed, n_images: int) -> NDArray[np.float64]:
    """Return, for every two networks, the fraction of images that both classify correctly or both misclassify.

    Args:
        packed: (A, B) uint8, one row per network.
        n_images: number of images N.

    Returns:
        (A, A), symmetric, 1 on the diagonal.
    """
    correct = count_correct(packed)
    both = np.empty((len(packed), len(packed)))
    # float32 represents integers up to 2**24 exactly, so the order of addition does not matter.
    unpacked = unpack_outcomes(packed, n_images).astype(np.float32)
    for start in range(0, len(packed), _ROWS_AT_ONCE):
        both[start : start + _ROWS_AT_ONCE] = unpacked[start : start + _ROWS_AT_ONCE] @ unpacked.T
    neither = n_images - correct[:, None] - correct[None, :] + both
    agreement: NDArray[np.float64] = (both + neither) / n_images
    return agreement


def error_consistency(packed: Packed, n_images: int) -> NDArray[np.float64]:
    """Return Cohen's kappa between the outcomes of every two networks: agreement beyond that expected from accuracies.

    1 means that they err on the same images, 0 that they agree as often as independent networks with their accuracies,
    and below 0 less often. It is NaN if both networks classify all images correctly, or both misclassify all.

    Source: Geirhos, Meding and Wichmann, "Beyond accuracy: quantifying trial-by-trial behaviour of CNNs and humans by
    measuring error consistency", NeurIPS 2020.
    """
    accuracy = count_correct(packed) / n_images
    expected = np.multiply.outer(accuracy, accuracy) + np.multiply.outer(1 - accuracy, 1 - accuracy)
    kappa = np.full(expected.shape, np.nan)
    np.divide(pairwise_agreement(packed, n_images) - expected, 1 - expected, out=kappa, where=expected < 1)
    return kappa


def weighted_counts(packed: Packed, weights: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return weighted counts of correct images: (A, B) uint8 and weights (N, D) to (D, A) int32.

    Weights are integers with sums below 2**24, which float32 adds exactly in any order.
    """
    counts = np.empty((weights.shape[1], len(packed)), np.int32)
    for index, block in enumerate(_blocks(packed)):
        rows = unpack_outcomes(block, len(weights)).astype(np.float32)
        counts[:, index * _ROWS_AT_ONCE : index * _ROWS_AT_ONCE + len(block)] = (rows @ weights).T
    return counts


def _blocks(packed: Packed) -> Iterator[Any]:
    return (packed[start : start + _ROWS_AT_ONCE] for start in range(0, len(packed), _ROWS_AT_ONCE))
