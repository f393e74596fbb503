"""Synthetic images of smooth areas, edges and grain, from integers only: equal on all machines."""

import numpy as np
from numpy.typing import NDArray

from robust201.core.noise import generator
from robust201.core.records import ImageSet, Normalisation, image_hash
from robust201.corruptions.frost_textures import FrostTextures


def raw_integers(*names: str | int, shape: tuple[int, ...], below: int) -> NDArray[np.int64]:
    """Return integers in [0, below) from raw random numbers, whose sequence NumPy guarantees, with `names` as seed."""
    raw_numbers = generator(0, *names).bit_generator.random_raw(int(np.prod(shape)))
    return (raw_numbers % below).astype(np.int64).reshape(shape)


def natural_images(count: int, size: int = 32) -> NDArray[np.uint8]:
    """Return images (count, size, size, 3) uint8 with blurred patches, a rectangle with sharp edges and some grain."""
    patch_size = size // 8
    patches = (
        raw_integers("patches", size, shape=(count, 10, 10, 3), below=256).repeat(patch_size, 1).repeat(patch_size, 2)
    )
    sums = np.cumsum(np.cumsum(patches, 1), 2)
    smooth = (
        sums[:, patch_size:, patch_size:]
        - sums[:, :-patch_size, patch_size:]
        - sums[:, patch_size:, :-patch_size]
        + sums[:, :-patch_size, :-patch_size]
    )
    images = smooth[:, :size, :size] // (patch_size * patch_size)
    images[:, size // 4 : size // 2, size // 3 : 3 * size // 4] = raw_integers("box", shape=(count, 1, 1, 3), below=256)
    images += raw_integers("grain", size, shape=images.shape, below=9) - 4
    return np.clip(images, 0, 255).astype(np.uint8)


def image_set(count: int, *, dataset: str = "cifar10", size: int = 32, first: int = 0) -> ImageSet:
    """Return images like a selection from a test split; their indices are every third number from `first`."""
    images = np.ascontiguousarray(natural_images(count, size).transpose(0, 3, 1, 2))
    labels = raw_integers("labels", shape=(count,), below=10)
    indices = first + 3 * np.arange(count, dtype=np.int64)
    digest = image_hash(images, labels, indices)
    return ImageSet(dataset, images, labels, indices, 10, Normalisation((0, 0, 0), (1, 1, 1)), digest)


def stripes() -> FrostTextures:
    """Return small striped textures for frost, which are computed without a Fourier transform."""
    images = [raw_integers("stripes", index, shape=(240, 1, 3), below=256).repeat(260, 1) for index in range(5)]
    return FrostTextures.of("stripes", tuple(image.astype(np.uint8) for image in images))
