"""Outcomes of single images, packed: one bit an image, 1 where it was classified correctly.

Packed outcomes are uint8 arrays (…, ceil(N / 8)) for N images: image 0 is the most significant bit of byte 0, as
`numpy.packbits` and the bit strings of SQL have it; bits after image N - 1 are 0.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Packed = NDArray[np.uint8]

_SET_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
"""Bits that are 1 in a byte, by its value."""

_ROWS_AT_ONCE = 256
"""Rows that are unpacked at once: 10 MB of 10,000 images as float32."""


def pack_outcomes(correct: ArrayLike) -> Packed:
    """Pack outcomes (…, N) bool into (…, ceil(N / 8)) uint8."""
    return np.packbits(np.asarray(correct, bool), axis=-1)


def unpack_outcomes(packed: Packed, n_images: int) -> NDArray[np.bool_]:
    """Unpack outcomes (…, ceil(N / 8)) uint8 into (…, N) bool."""
    return np.unpackbits(packed, axis=-1, count=n_images).view(np.bool_)


def count_correct(packed: Packed) -> NDArray[np.int64]:
    """Count the correct images of each row: (…, B) uint8 to (…) int64."""
    counts: NDArray[np.int64] = _SET_BITS[packed].sum(axis=-1, dtype=np.int64)
    return counts


def worst_case(several: Sequence[Packed]) -> Packed:
    """Combine outcomes of the same images: an image is correct only where it is under every one.

    Any tasks and strengths may be among them. Source: the worst case over attacks of Croce and Hein, "Reliable
    evaluation of adversarial robustness with an ensemble of diverse parameter-free attacks", ICML 2020.
    """
    combined: Packed = np.bitwise_and.reduce([np.asarray(packed, np.uint8) for packed in several])
    return combined


def attack_success_rates(clean: Packed, attacked: Packed) -> NDArray[np.float64]:
    """Return the share of originally correct images that an attack turns wrong, by row; NaN where none was correct.

    Both numbers are summed over all images before they are divided; batches are not averaged.
    """
    fooled, correct = count_correct(clean & ~attacked), count_correct(clean)
    rates = np.full(fooled.shape, np.nan)
    np.divide(fooled, correct, out=rates, where=correct > 0)
    return rates


def image_difficulty(packed: Packed, n_images: int) -> NDArray[np.float64]:
    """Return the share of networks that classify each image wrongly.

    Args:
        packed: (A, B) uint8, a row for each network.
        n_images: images N.

    Returns:
        (N,) in [0, 1].
    """
    share: NDArray[np.float64] = 1 - count_by_image(packed, n_images) / len(packed)
    return share


def count_by_image(packed: Packed, n_images: int) -> NDArray[np.int64]:
    """Count the rows of (A, B) uint8 whose bit of an image is set: (N,)."""
    counts = np.zeros(n_images, np.int64)
    for block in _blocks(packed):
        counts += unpack_outcomes(block, n_images).sum(axis=0)
    return counts


def pairwise_agreement(packed: Packed, n_images: int) -> NDArray[np.float64]:
    """Return, for every two networks, the share of images that both classify correctly or both wrongly.

    Args:
        packed: (A, B) uint8, a row for each network.
        n_images: images N.

    Returns:
        (A, A), symmetric, 1 on the diagonal.
    """
    correct = count_correct(packed)
    both = np.empty((len(packed), len(packed)))
    # Counts up to 2**24 are exact in float32, whatever the order of addition.
    every = unpack_outcomes(packed, n_images).astype(np.float32)
    for start in range(0, len(packed), _ROWS_AT_ONCE):
        both[start : start + _ROWS_AT_ONCE] = every[start : start + _ROWS_AT_ONCE] @ every.T
    neither = n_images - correct[:, None] - correct[None, :] + both
    share: NDArray[np.float64] = (both + neither) / n_images
    return share


def error_consistency(packed: Packed, n_images: int) -> NDArray[np.float64]:
    """Return Cohen's kappa between the outcomes of every two networks: agreement beyond that of their accuracies.

    1 means that they err on the same images, 0 that they agree as often as independent networks of their accuracies
    would, below 0 less often; NaN where both are right everywhere or both wrong everywhere.

    Source: Geirhos, Meding and Wichmann, "Beyond accuracy: quantifying trial-by-trial behaviour of CNNs and humans by
    measuring error consistency", NeurIPS 2020.
    """
    accuracy = count_correct(packed) / n_images
    expected = np.multiply.outer(accuracy, accuracy) + np.multiply.outer(1 - accuracy, 1 - accuracy)
    kappa = np.full(expected.shape, np.nan)
    np.divide(pairwise_agreement(packed, n_images) - expected, 1 - expected, out=kappa, where=expected < 1)
    return kappa


def weighted_counts(packed: Packed, weights: NDArray[np.float32]) -> NDArray[np.int32]:
    """Count correct images that count several times: (A, B) uint8 and weights (N, D) to (D, A) int32.

    Weights are whole numbers, their sums below 2**24, which float32 adds up exactly in any order.
    """
    counts = np.empty((weights.shape[1], len(packed)), np.int32)
    for place, block in enumerate(_blocks(packed)):
        rows = unpack_outcomes(block, len(weights)).astype(np.float32)
        counts[:, place * _ROWS_AT_ONCE : place * _ROWS_AT_ONCE + len(block)] = (rows @ weights).T
    return counts


def _blocks(packed: Packed) -> Iterator[Any]:
    return (packed[start : start + _ROWS_AT_ONCE] for start in range(0, len(packed), _ROWS_AT_ONCE))
