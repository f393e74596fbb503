"""Packed per-image outcomes, with one bit per image; the bit is 1 if the image was classified correctly.

Packed outcomes are uint8 arrays (…, ceil(N / 8)) for N images. Image 0 is the most significant bit of byte 0, as in
`numpy.packbits` and in SQL's bit strings. Bits after image N - 1 are 0.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Packed = NDArray[np.uint8]

_SET_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
"""Number of set bits of each byte."""

_BLOCK_ROWS = 256
"""Number of rows in a block; as float32, a block takes 10 MB for 10,000 images."""


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


def worst_case(evaluations: Sequence[Packed]) -> Packed:
    """Combine outcomes on the same images; an image is correct only if it is correct in every evaluation.

    The evaluations may have different tasks and strengths. Source: worst case over attacks in Croce and Hein, "Reliable
    evaluation of adversarial robustness with an ensemble of diverse parameter-free attacks", ICML 2020.
    """
    combined: Packed = np.bitwise_and.reduce([np.asarray(packed, np.uint8) for packed in evaluations])
    return combined


def attack_success_rates(clean: Packed, attacked: Packed) -> NDArray[np.float64]:
    """Return the fraction of correctly classified clean images that an attack fools, by row; NaN if there are none.

    The fraction is a ratio of two counts over all images, not a mean over batches.
    """
    n_fooled, n_correct = count_correct(clean & ~attacked), count_correct(clean)
    rates = np.full(n_fooled.shape, np.nan)
    np.divide(n_fooled, n_correct, out=rates, where=n_correct > 0)
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
    """Return the number of rows in which each image is correct: (A, B) uint8 to (N,)."""
    counts = np.zeros(n_images, np.int64)
    for block in _split_rows(packed):
        counts += unpack_outcomes(block, n_images).sum(axis=0)
    return counts


def pairwise_agreement(packed: Packed, n_images: int) -> NDArray[np.float64]:
    """Return the fraction of images that both networks of a pair classify correctly or both misclassify.

    Args:
        packed: (A, B) uint8, one row per network.
        n_images: number of images N.

    Returns:
        (A, A) for all pairs, symmetric, with 1 on the diagonal.
    """
    n_correct = count_correct(packed)
    both_correct = np.empty((len(packed), len(packed)))
    # float32 represents integers up to 2**24 exactly, so the order of addition does not matter.
    outcomes = unpack_outcomes(packed, n_images).astype(np.float32)
    for start in range(0, len(packed), _BLOCK_ROWS):
        both_correct[start : start + _BLOCK_ROWS] = outcomes[start : start + _BLOCK_ROWS] @ outcomes.T
    both_wrong = n_images - n_correct[:, None] - n_correct[None, :] + both_correct
    agreement: NDArray[np.float64] = (both_correct + both_wrong) / n_images
    return agreement


def error_consistency(packed: Packed, n_images: int) -> NDArray[np.float64]:
    """Return Cohen's kappa of the outcomes of every pair of networks, which is agreement beyond chance.

    A kappa of 1 means that both networks err on the same images. Kappa is 0 if they agree as often as independent
    networks with these accuracies, and negative if they agree less often. It is NaN if both networks classify all
    images correctly, or both misclassify all images.

    Source: Geirhos, Meding and Wichmann, "Beyond accuracy: quantifying trial-by-trial behaviour of CNNs and humans by
    measuring error consistency", NeurIPS 2020.
    """
    accuracy = count_correct(packed) / n_images
    expected = np.multiply.outer(accuracy, accuracy) + np.multiply.outer(1 - accuracy, 1 - accuracy)
    kappa = np.full(expected.shape, np.nan)
    np.divide(pairwise_agreement(packed, n_images) - expected, 1 - expected, out=kappa, where=expected < 1)
    return kappa


def weighted_counts(packed: Packed, weights: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return weighted counts (D, A) int32 of correct images, from outcomes (A, B) uint8 and weights (N, D).

    Weights must be integers whose sums are below 2**24, because float32 adds these exactly in any order.
    """
    counts = np.empty((weights.shape[1], len(packed)), np.int32)
    for index, block in enumerate(_split_rows(packed)):
        outcomes = unpack_outcomes(block, len(weights)).astype(np.float32)
        counts[:, index * _BLOCK_ROWS : index * _BLOCK_ROWS + len(block)] = (outcomes @ weights).T
    return counts


def _split_rows(packed: Packed) -> Iterator[Any]:
    return (packed[start : start + _BLOCK_ROWS] for start in range(0, len(packed), _BLOCK_ROWS))
