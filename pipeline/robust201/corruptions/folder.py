"""Generation of corrupted images into a folder."""

import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from robust201.core.files import sole_writer
from robust201.core.records import ImageSet
from robust201.corruptions.frost_textures import FrostTextures
from robust201.corruptions.generator import check_keys, corrupt, corruption_recipes
from robust201.images.corrupted import N_SEVERITIES, write_clean_set
from robust201.images.store import ArrayFolder

ImageProgress = Callable[[int, int], None]
"""Function that is called with (number of generated images, total number). Each clean image counts once per corruption
and severity."""

Blocks: TypeAlias = Iterator[NDArray[np.uint8]]
"""Consecutive images of a file, in blocks of (n, H, W, 3)."""

_BLOCK_IMAGES = 500
"""Number of images that are corrupted at a time."""


def generate_corruptions(
    folder: Path,
    images: ImageSet,
    *,
    keys: Sequence[str],
    seed: int,
    frost: FrostTextures,
    progress: ImageProgress | None = None,
) -> None:
    """Write corrupted images in the published layout for `robust201 corrupt`, skipping finished files.

    A killed run can be resumed (see `images.store`). A file has all images at severity 1, then all at severity 2, etc.
    `progress` is called after each block of images.

    Raises:
        ConfigError: a corruption does not exist.
        DatasetError: the folder contains published files, or files generated from other images or with other settings.
        StorageError: another process is generating images in this folder, or the disk is full.
    """
    check_keys(keys)
    recipes = corruption_recipes(keys, images.images.shape[-1], seed=seed, frost=frost)
    arrays = ArrayFolder(folder)
    size = images.images.shape[-1]
    shape = (N_SEVERITIES * len(images), size, size, 3)
    with sole_writer(folder, "Generating corruptions"):
        write_clean_set(arrays, images)
        unfinished = {key: recipe for key, recipe in recipes.items() if not arrays.is_complete(key, recipe)}
        n_done = 0

        def generate(key: str) -> Blocks:
            nonlocal n_done
            for severity in range(1, N_SEVERITIES + 1):
                for block in corrupt_blocks(images, key, severity, seed=seed, frost=frost):
                    yield block
                    n_done += len(block)
                    if progress is not None:
                        progress(n_done, len(unfinished) * shape[0])

        for key, recipe in unfinished.items():
            arrays.write(key, generate(key), shape=shape, recipe=recipe, info={"libraries": library_versions()})


def corrupt_blocks(images: ImageSet, key: str, severity: int, *, seed: int, frost: FrostTextures) -> Blocks:
    """Yield the images with one corruption and severity, in blocks of (n, H, W, 3)."""
    for start in range(0, len(images), _BLOCK_IMAGES):
        block = slice(start, start + _BLOCK_IMAGES)
        pixels = np.ascontiguousarray(images.images[block].transpose(0, 2, 3, 1))
        yield corrupt(pixels, key, severity, seed=seed, indices=images.indices[block], frost=frost)


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that may affect generated pixels."""
    import PIL
    import scipy
    from PIL import features

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "pillow": PIL.__version__,
        "libjpeg": features.version("jpg") or "",
    }
