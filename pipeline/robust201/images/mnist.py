"""MNIST (LeCun, Cortes and Burges, 1998): grey digits of 28x28 pixels in IDX files, unchanged or upscaled to 3x32x32.

An IDX file begins with two zero bytes, the type code (one byte; 8 means unsigned bytes), the number of axes (one byte),
and the length of each axis (a big-endian 32-bit integer); then the values follow.
"""

import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError, one_line
from robust201.core.files import format_bytes
from robust201.core.records import Split
from robust201.images.checks import LabelledImages, check_count, check_labels, read_verified
from robust201.images.downloads import registry
from robust201.images.specs import DatasetSpec
from robust201.images.upscaling import upscale

_IMAGE_SIZE = 28
_MAX_PIXEL = 255
_UNSIGNED_BYTES = 8
_MAX_BYTES = 1 << 30
"""Maximum size of an unpacked file, about twenty times the size of the training images."""

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
    pixels, labels = (_read_array(path, file_name, verify=verify) for file_name in _FILES[split])
    paths = [path / file_name for file_name in _FILES[split]]
    if pixels.shape[1:] != (_IMAGE_SIZE, _IMAGE_SIZE):
        raise DatasetError(
            f"Reading images failed for {paths[0]}: expected images of {_IMAGE_SIZE}x{_IMAGE_SIZE} pixels, got an "
            f"array of shape {pixels.shape}. Check the name of the dataset."
        )
    if labels.shape != pixels.shape[:1]:
        raise DatasetError(
            f"Reading labels failed for {paths[1]}: expected {len(pixels):,} labels, one per image, got an array of "
            f"shape {labels.shape}. Use the images and labels of the same split."
        )
    if verify:
        check_count(path, len(pixels), spec, split)
    check_labels(paths[1], labels, spec.n_classes)
    images = pixels[:, None] if spec.channels == 1 else upscale(pixels, spec.image_size, _MAX_PIXEL)
    return LabelledImages(images, labels.astype(np.int64))


def _find_file(folder: Path, name: str) -> Path | None:
    return next((file for file in (folder / f"{name}.gz", folder / name) if file.is_file()), None)


def _read_array(folder: Path, name: str, *, verify: bool) -> NDArray[np.uint8]:
    file = _find_file(folder, name) or folder / name
    published_checksums = registry.download("mnist").members if verify else {}
    content = read_verified(file, published_checksums.get(file.name))
    return _parse(file, _unpack(file, content) if file.suffix == ".gz" else content)


def _unpack(file: Path, content: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        unpacked = unpacker.decompress(content, _MAX_BYTES)
    except zlib.error as error:
        raise _damaged_file_error(file, f"a damaged gzip file ({one_line(error)})") from error
    if not unpacker.eof:
        is_truncated = not unpacker.unconsumed_tail
        content_fault = "a truncated gzip file" if is_truncated else f"more than {format_bytes(_MAX_BYTES)}"
        raise _damaged_file_error(file, content_fault)
    return unpacked


def _parse(file: Path, content: bytes) -> NDArray[np.uint8]:
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTES:
        raise _damaged_file_error(file, "other content")
    values_start = 4 + 4 * content[3]
    shape = tuple(np.frombuffer(content[4:values_start].ljust(values_start - 4, b"\0"), ">u4").tolist())
    expected_bytes = values_start + math.prod(shape)
    if len(content) != expected_bytes:
        raise _damaged_file_error(file, f"{len(content):,} bytes, not the {expected_bytes:,} of an array {shape}")
    if not shape or not shape[0]:
        raise _damaged_file_error(file, f"an empty array {shape}")
    return np.frombuffer(content, np.uint8, offset=values_start).reshape(shape)


def _damaged_file_error(file: Path, got: str) -> DatasetError:
    return DatasetError(
        f"Reading images failed for {file}: expected a complete IDX file of unsigned bytes, got {got}. "
        "Get the file again."
    )
