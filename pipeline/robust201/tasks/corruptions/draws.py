"""Random draws of a corruption: one generator an image, named by seed, key and the image's row.

All five severities of a key draw the same numbers for an image, as all strengths of an attack do (ARCHITECTURE.md), so
severities differ by their constants alone and none depends on which others are made. The published files were drawn
independently for each severity and without a seed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from robust201.core.noise import generator
from robust201.tasks.corruptions.frost_textures import FrostTextures

Images: TypeAlias = NDArray[np.uint8]
"""(N, H, W, 3) uint8."""

Floats: TypeAlias = NDArray[np.float64]

REFERENCE_SIZE = 32
"""Height in pixels of the images that the constants were published for."""


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
