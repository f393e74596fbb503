"""Packed per-image outcomes, with one bit per image; the bit is 1 if the image was classified correctly.

Packed outcomes are uint8 arrays (…, ceil(N / 8)) for N images. Image 0 is the most significant bit of byte 0, as in
`numpy.packbits` and in SQL's bit strings. Bits after image N - 1 are 0.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Packed = NDArray[np.uint8]

_SET_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
"""Number of set bits of each byte."""


def pack_outcomes(correct: ArrayLike) -> Packed:
    """Pack outcomes (…, N) bool into (…, ceil(N / 8)) uint8."""
    return np.packbits(np.asarray(correct, bool), axis=-1)


def unpack_outcomes(packed: Packed, n_images: int) -> NDArray[np.bool_]:
    """Unpack outcomes (…, ceil(N / 8)) uint8 into (…, N) bool."""
    return np.unpackbits(packed, axis=-1, count=n_images).view(np.bool_)


def count_correct(packed: Packed) -> NDArray[np.int64]:
    """Count the correct images in each row: (…, ceil(N / 8)) uint8 to (…) int64."""
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
    """Return, for each row, the fraction of the correctly classified clean images that an attack fools.

    It is a ratio of two counts over all images, not a mean over batches; NaN if no clean image is correct.
    """
    n_fooled, n_correct = count_correct(clean & ~attacked), count_correct(clean)
    rates = np.full(n_fooled.shape, np.nan)
    np.divide(n_fooled, n_correct, out=rates, where=n_correct > 0)
    return rates
