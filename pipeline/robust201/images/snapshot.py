"""The selected images of a sweep as plain arrays: what workers read, whatever form the driver found the dataset in.

So a worker opens no pickle and decodes no JPEG, and every machine sees the same bytes.
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
    """Keep images as `.npy` files in a folder for each content, such as ``digits-<hash>``, in place of any there."""
    for name in _ARRAYS:
        with atomic_write(folder / f"{name}.npy") as stream:
            np.save(stream, getattr(images, name), allow_pickle=False)


def read_snapshot(folder: Path, spec: DatasetSpec, sha256: str) -> ImageSet:
    """Read what `write_snapshot` kept, and compare it with the hash that was planned.

    Raises:
        DatasetError: a file is missing or damaged.
    """
    try:
        images, labels, indices = (read_npy(folder / f"{name}.npy") for name in _ARRAYS)
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"Reading the images of {spec.name} failed for {folder}: expected three .npy files, got {error}. "
            "Is the results folder the same on every machine? Run the same command again, which replaces it."
        ) from error
    got = image_hash(images, labels, indices)
    if got != sha256:
        raise DatasetError(
            f"Reading the images of {spec.name} failed for {folder}: expected the planned selection {sha256[:16]}, got "
            f"{got[:16]}. Run the same command again, which replaces it."
        )
    return ImageSet(spec.name, images, labels, indices, spec.n_classes, spec.normalisation, got)
