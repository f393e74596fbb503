"""Pickled batches of images (CIFAR's Python version, ImageNet16), read with the allow-list unpickler."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from robust201.core.errors import DatasetError
from robust201.core.unpickling import load_pickle
from robust201.images.checks import LabelledImages


def parse_batch(path: Path, content: bytes, label_key: str, image_size: int) -> LabelledImages:
    """Parse one pickled batch {data: (N, 3 * size * size) uint8, label_key: N integers}, written by Python 2.

    Returns images (N, 3, size, size) uint8 and labels (N,) int64 as in the file.

    Raises:
        DatasetError: the content is not such a pickle, or names a forbidden global.
    """
    batch = load_pickle(io.BytesIO(content), name=str(path), error=DatasetError, encoding="latin1")
    fields = batch if isinstance(batch, Mapping) else {}
    pixels, labels = np.asarray(fields.get("data")), np.asarray(fields.get(label_key))
    expected_shape = (labels.size, 3 * image_size**2)
    is_valid = labels.ndim == 1 and labels.dtype.kind in "iu" and pixels.dtype == np.uint8
    if not is_valid or pixels.shape != expected_shape:
        got = f"{pixels.dtype} {pixels.shape} and {labels.dtype} {labels.shape}"
        raise DatasetError(
            f"Reading images failed for {path}: expected a batch with 'data' (N, {expected_shape[1]}) uint8 and N "
            f"integers {label_key!r}, got {got if fields else type(batch).__name__} with the keys "
            f"{sorted(map(str, fields))}. Check the dataset's name and form."
        )
    return LabelledImages(pixels.reshape(-1, 3, image_size, image_size), labels.astype(np.int64))
