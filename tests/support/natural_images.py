"""Images with smooth areas, edges and grain, computed in integers: the same bytes on every machine."""

import numpy as np
from numpy.typing import NDArray

from robust201.core.noise import generator
from robust201.core.records import ImageSet, Normalisation, image_hash
from robust201.tasks.corruptions.generator import FrostTextures


def raw(*names: str | int, shape: tuple[int, ...], below: int) -> NDArray[np.int64]:
    """Return integers in [0, below) from raw random words, whose stream NumPy guarantees."""
    draws = generator(0, *names).bit_generator.random_raw(int(np.prod(shape)))
    return (draws % below).astype(np.int64).reshape(shape)


def natural_images(count: int, size: int = 32) -> NDArray[np.uint8]:
    """Return images (count, size, size, 3) uint8 of blurred patches, a hard-edged rectangle and some grain."""
    cell = size // 8
    patches = raw("patches", size, shape=(count, 10, 10, 3), below=256).repeat(cell, 1).repeat(cell, 2)
    sums = np.cumsum(np.cumsum(patches, 1), 2)
    smooth = sums[:, cell:, cell:] - sums[:, :-cell, cell:] - sums[:, cell:, :-cell] + sums[:, :-cell, :-cell]
    images = smooth[:, :size, :size] // (cell * cell)
    images[:, size // 4 : size // 2, size // 3 : 3 * size // 4] = raw("box", shape=(count, 1, 1, 3), below=256)
    images += raw("grain", size, shape=images.shape, below=9) - 4
    return np.clip(images, 0, 255).astype(np.uint8)


def image_set(count: int, *, dataset: str = "cifar10", size: int = 32, first: int = 0) -> ImageSet:
    """Return a selection of a fabricated test split: every third row from `first` on."""
    images = np.ascontiguousarray(natural_images(count, size).transpose(0, 3, 1, 2))
    labels = raw("labels", shape=(count,), below=10)
    indices = first + 3 * np.arange(count, dtype=np.int64)
    digest = image_hash(images, labels, indices)
    return ImageSet(dataset, images, labels, indices, 10, Normalisation((0, 0, 0), (1, 1, 1)), digest)


def stripes() -> FrostTextures:
    """Return small frost textures, computed without a Fourier transform."""
    images = [raw("stripes", number, shape=(240, 1, 3), below=256).repeat(260, 1) for number in range(5)]
    return FrostTextures.of("stripes", tuple(image.astype(np.uint8) for image in images))
