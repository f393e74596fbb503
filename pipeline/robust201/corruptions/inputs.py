"""Inputs of corruptions: random numbers and constants.

Each image has a generator, seeded by the seed, the key (the corruption's name) and the image's position in the full
test split.

All five severities of a key use the same random numbers for an image, as all strengths of an attack do
(docs/protocol/images-and-processors.md). Severities therefore differ only by their constants, and do not depend on
which other severities are generated. The published files have independent random numbers for each severity,
without a seed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from robust201.core.noise import generator
from robust201.corruptions.frost_textures import FrostTextures

Images: TypeAlias = NDArray[np.uint8]
"""(N, H, W, 3) uint8."""

Floats: TypeAlias = NDArray[np.float64]

CIFAR_SIZE = 32
"""Height in pixels of the images for which CIFAR-10-C's constants were published."""

IMAGENET_SIZE = 224
"""Height in pixels of the images for which ImageNet-C's constants were published. Images of this height or more use
them."""

_Constant = TypeVar("_Constant")


@dataclass(frozen=True)
class Constants(Generic[_Constant]):
    """A corruption's constants at severities 1 to 5: CIFAR-10-C's for small images, ImageNet-C's for large ones.

    Lengths in pixels are multiplied by `scale_of` for images of other heights.
    """

    cifar: tuple[_Constant, ...]
    imagenet: tuple[_Constant, ...]

    def at(self, severity: int, size: int) -> _Constant:
        """Return the constant of a severity for images of height `size`."""
        return (self.imagenet if size >= IMAGENET_SIZE else self.cifar)[severity - 1]


def reference_size(size: int) -> int:
    """Return the height of the published images whose constants apply to images of height `size`."""
    return IMAGENET_SIZE if size >= IMAGENET_SIZE else CIFAR_SIZE


def scale_of(size: int) -> float:
    """Return the factor by which lengths in pixels are multiplied for images of height `size`."""
    return size / reference_size(size)


@dataclass(frozen=True)
class CorruptionRandomNumbers:
    """Random numbers and frost textures for a batch of images at positions `indices` (N,) in the full test split."""

    seed: int
    key: str
    indices: NDArray[np.int64]
    frost: FrostTextures

    def draw_per_image(
        self, draw_array: Callable[[np.random.Generator], NDArray[np.floating] | NDArray[np.integer]]
    ) -> Floats:
        """Draw one array per image with the image's generator, and stack them: (N, …) float64."""
        return np.stack([draw_array(generator(self.seed, self.key, int(index))) for index in self.indices]).astype(
            np.float64
        )
