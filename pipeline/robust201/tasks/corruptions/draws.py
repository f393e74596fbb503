"""Random draws of a corruption: one generator an image, named by seed, key and the image's row.

All five severities of a key draw the same numbers for an image, as all strengths of an attack do (ARCHITECTURE.md), so
severities differ by their constants alone and none depends on which others are made. The published files were drawn
independently for each severity and without a seed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from robust201.core.noise import generator
from robust201.tasks.corruptions.frost_textures import FrostTextures

Images: TypeAlias = NDArray[np.uint8]
"""(N, H, W, 3) uint8."""

Floats: TypeAlias = NDArray[np.float64]

CIFAR_SIZE = 32
"""Height in pixels of the images that the constants of CIFAR-10-C were published for."""

IMAGENET_SIZE = 224
"""Height in pixels of the images that the constants of ImageNet-C were published for, and from which they are used."""

_Constant = TypeVar("_Constant")


@dataclass(frozen=True)
class Constants(Generic[_Constant]):
    """Constants of a corruption at severities 1 to 5: for small images those of CIFAR-10-C, for large of ImageNet-C.

    Lengths in pixels are multiplied by `scale_of` for images of other heights than these were published for.
    """

    cifar: tuple[_Constant, ...]
    imagenet: tuple[_Constant, ...]

    def at(self, severity: int, size: int) -> _Constant:
        """Return the constant of a severity for images of a height."""
        return (self.imagenet if size >= IMAGENET_SIZE else self.cifar)[severity - 1]


def reference_size(size: int) -> int:
    """Return the height for which the constants of images of some height were published."""
    return IMAGENET_SIZE if size >= IMAGENET_SIZE else CIFAR_SIZE


def scale_of(size: int) -> float:
    """Return the factor of lengths in pixels."""
    return size / reference_size(size)


@dataclass(frozen=True)
class CorruptionDraws:
    """What a corruption may draw for a batch of images.

    Attributes:
        seed: the seed of the corrupted images.
        key: the corruption.
        indices: (N,) int64, each image's row in the full test split.
        frost: textures for the corruption that needs them.
    """

    seed: int
    key: str
    indices: NDArray[np.int64]
    frost: FrostTextures

    def each(self, draw: Callable[[np.random.Generator], NDArray[np.floating] | NDArray[np.integer]]) -> Floats:
        """Draw an array of one shape for every image.

        Args:
            draw: takes an image's generator, freshly made, and returns its array.

        Returns:
            (N, …) float64.
        """
        return np.stack([draw(generator(self.seed, self.key, int(index))) for index in self.indices]).astype(np.float64)
