"""The selected images of a sweep as .npy files, whatever form the dataset itself has.

The driver writes the files, and workers read them. Thus workers never open pickles or decode JPEGs, and all machines
read the same bytes.
"""

from pathlib import Path

import numpy as np

from robust201.core.arrays import read_npy
from robust201.core.errors import DatasetError
from robust201.core.files import atomic_write
from robust201.core.records import ImageSet, image_hash
from robust201.images.specs import DatasetSpec

_ARRAYS = ("images", "labels", "indices")


def write_image_arrays(folder: Path, images: ImageSet) -> None:
    """Write images as `.npy` files to a folder, such as ``digits-<hash>``; existing files are replaced."""
    for array_name in _ARRAYS:
        with atomic_write(folder / f"{array_name}.npy") as stream:
            np.save(stream, getattr(images, array_name), allow_pickle=False)


def read_image_arrays(folder: Path, spec: DatasetSpec, sha256: str) -> ImageSet:
    """Read the files of `write_image_arrays`, and compare their hash with `sha256`, the hash in the plan.

    Raises:
        DatasetError: a file is missing or damaged.
    """
    try:
        images, labels, indices = (read_npy(folder / f"{name}.npy") for name in _ARRAYS)
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"Reading the images of {spec.name} failed for {folder}: {error}. Check that the results folder is the "
            "same on every machine, and run the same command again to replace the files."
        ) from error
    digest = image_hash(images, labels, indices)
    if digest != sha256:
        raise DatasetError(
            f"Reading the images of {spec.name} failed for {folder}: expected images with the planned hash "
            f"{sha256[:16]}, got {digest[:16]}. Run the same command again to replace the files."
        )
    return ImageSet(spec.name, images, labels, indices, spec.n_classes, spec.normalisation, digest)
