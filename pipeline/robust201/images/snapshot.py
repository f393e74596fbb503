"""The selected images of a sweep as plain arrays for workers, whatever the form of the dataset.

Workers need not open pickles or decode JPEGs, and every machine reads the same bytes.
"""

from pathlib import Path

import numpy as np

from robust201.core.arrays import read_npy
from robust201.core.errors import DatasetError
from robust201.core.files import atomic_write
from robust201.core.records import ImageSet, image_hash
from robust201.images.specs import DatasetSpec

_ARRAYS = ("images", "labels", "indices")


def write_snapshot(folder: Path, images: ImageSet) -> None:
    """Write images as `.npy` files to a folder named by content, such as ``digits-<hash>``; replace existing files."""
    for name in _ARRAYS:
        with atomic_write(folder / f"{name}.npy") as stream:
            np.save(stream, getattr(images, name), allow_pickle=False)


def read_snapshot(folder: Path, spec: DatasetSpec, sha256: str) -> ImageSet:
    """Read the files of `write_snapshot`, and check them against the planned hash.

    Raises:
        DatasetError: a file is missing or damaged.
    """
    try:
        images, labels, indices = (read_npy(folder / f"{name}.npy") for name in _ARRAYS)
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"Reading the images of {spec.name} failed for {folder}: expected three .npy files, got {error}. "
            "Is the results folder the same on every machine? Run the same command again to replace the files."
        ) from error
    got = image_hash(images, labels, indices)
    if got != sha256:
        raise DatasetError(
            f"Reading the images of {spec.name} failed for {folder}: expected the planned selection {sha256[:16]}, got "
            f"{got[:16]}. Run the same command again to replace the files."
        )
    return ImageSet(spec.name, images, labels, indices, spec.n_classes, spec.normalisation, got)
