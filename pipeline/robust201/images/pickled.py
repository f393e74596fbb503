"""Pickled batches of images (CIFAR's Python version, ImageNet16), read with the allow-list unpickler."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
from robust201.core.unpickling import load_pickle
from robust201.images.checks import LabelledImages, read_verified
from robust201.images.downloads.registry import Checksum


def read_batch(path: Path, checksum: Checksum | None, label_key: str, image_size: int) -> LabelledImages:
    """Read one pickled batch {data: (N, 3 * size * size) uint8, label_key: N integers}, written by Python 2.

    Returns images (N, 3, size, size) uint8 and labels (N,) int64 as in the file.

    Raises:
        DatasetError: the file is missing, differs from the published file, is not such a pickle, or names a forbidden
            global.
    """
    content = io.BytesIO(read_verified(path, checksum))
    batch = load_pickle(content, name=str(path), error=DatasetError, encoding="latin1")
    missing_keys = [key for key in ("data", label_key) if not isinstance(batch, Mapping) or key not in batch]
    if missing_keys:
        got = f"keys {sorted(map(str, batch))}" if isinstance(batch, Mapping) else type(batch).__name__
        raise DatasetError(
            f"Reading images failed for {path}: expected a pickled batch with 'data' and {label_key!r}, got {got}. "
            "Check the dataset's name and form."
        )
    pixels, labels = np.asarray(batch["data"]), _as_integers(path, batch[label_key])
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3 * image_size**2):
        raise DatasetError(
            f"Reading images failed for {path}: expected 'data' of shape ({len(labels)}, {3 * image_size**2}) uint8, "
            f"got {pixels.shape} {pixels.dtype}. Check the dataset's name and form."
        )
    return LabelledImages(pixels.reshape(-1, 3, image_size, image_size), labels)


def _as_integers(path: Path, label_values: Any) -> NDArray[np.int64]:
    labels = np.asarray(label_values)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DatasetError(
            f"Reading labels failed for {path}: expected a list of integers, got {labels.dtype} of shape "
            f"{labels.shape}. Check the dataset's name and form."
        )
    return labels.astype(np.int64)
