"""MNIST (LeCun, Cortes and Burges, 1998): grey digits of 28x28 pixels in IDX files, unchanged or upscaled to 3x32x32.

An IDX file begins with two zero bytes, the type code (one byte; 8 means unsigned bytes), the number of axes (one byte),
and the length of each axis (a big-endian 32-bit integer); then the values follow.
"""

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError, one_line
from robust201.core.records import Split
from robust201.images.checks import LabelledImages, as_labels, check_count, check_labels
from robust201.images.published import read_published
from robust201.images.specs import DatasetSpec
from robust201.images.upscaling import upscale

_IMAGE_SIZE = 28
_MAX_PIXEL = 255

_FILES: dict[Split, tuple[str, str]] = {
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
}
"""Names of the files of images and of labels; the files may also have the suffix .gz."""


def find_idx(spec: DatasetSpec, root: Path, split: Split) -> Path | None:
    """Return the folder of the files: `root`, or torchvision's folder below it."""
    for folder in (root, root / "MNIST" / "raw"):
        if _find_file(folder, _FILES[split][0]) is not None:
            return folder
    return None


def load_idx(spec: DatasetSpec, path: Path, split: Split, *, verify: bool) -> LabelledImages:
    """Load a split of MNIST in the order of the files; with three channels, upscale it (see `images.upscaling`).

    `verify` checks gzip files against their published MD5, and the number of images.

    Raises:
        DatasetError: a file is missing, is damaged or differs from the published file.
    """
    pixels, label_bytes = (_read_array(path, file_name, verify=verify) for file_name in _FILES[split])
    paths = [path / file_name for file_name in _FILES[split]]
    if pixels.shape[1:] != (_IMAGE_SIZE, _IMAGE_SIZE) or not len(pixels):
        raise DatasetError(
            f"Reading images failed for {paths[0]}: expected images of {_IMAGE_SIZE}x{_IMAGE_SIZE} pixels, got an "
            f"array of shape {pixels.shape}. Check the name of the dataset."
        )
    labels = as_labels(paths[1], label_bytes, len(pixels))
    if verify:
        check_count(path, len(pixels), spec, split)
    check_labels(paths[1], labels, spec.n_classes)
    images = pixels[:, None] if spec.channels == 1 else upscale(pixels, spec.image_size, _MAX_PIXEL)
    return LabelledImages(images, labels)


def _find_file(folder: Path, name: str) -> Path | None:
    return next((file for file in (folder / f"{name}.gz", folder / name) if file.is_file()), None)


def _read_array(folder: Path, name: str, *, verify: bool) -> NDArray[np.uint8]:
    file = _find_file(folder, name) or folder / name
    content = read_published(file, "mnist", verify=verify)
    try:
        content = gzip.decompress(content) if file.suffix == ".gz" else content
        # The type code must be that of unsigned bytes.
        is_idx = len(content) >= 4 and content[:3] == b"\0\0\x08"
        shape = tuple(np.frombuffer(content, ">u4", content[3], offset=4).tolist()) if is_idx else ()
        return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DatasetError(
            f"Reading images failed for {file}: expected a complete IDX file of unsigned bytes, got a damaged or "
            f"unrelated file ({one_line(error)}). Get the file again."
        ) from error
