"""NumPy archives of custom images: one .npz file per split with the arrays `images` and `labels`, without pickles."""

import lzma
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from robust201.core.arrays import parse_npy
from robust201.core.errors import DatasetError, one_line
from robust201.core.files import open_file
from robust201.core.records import MAX_CLASSES, Split
from robust201.images.checks import LabelledImages, check_count, check_labels
from robust201.images.specs import UNKNOWN_COUNT, DatasetSpec

_ARRAYS = ("images", "labels")


def find_npz(spec: DatasetSpec, root: Path, split: Split) -> Path | None:
    """Return `root` if it is an .npz file, otherwise the split's .npz file in `root`; None if there is neither."""
    if root.is_file():
        return root if root.suffix == ".npz" else None
    file = root / f"{split}.npz"
    return file if file.is_file() else None


def load_npz(spec: DatasetSpec, path: Path, split: Split, *, verify: bool) -> LabelledImages:
    """Load images from a NumPy archive, in the order of the arrays; `verify` checks the number of images.

    Raises:
        DatasetError: the file is damaged or contains pickles, an array is missing or has the wrong type or shape, or a
            label is out of range.
    """
    arrays = _read_arrays(path)
    images = _move_channels_first(path, arrays["images"], spec)
    labels = arrays["labels"]
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        raise DatasetError(
            f"Reading labels failed for {path}: expected {len(images):,} integers, one per image, got "
            f"{labels.dtype} of shape {labels.shape}. Correct the array `labels`."
        )
    if verify:
        check_count(path, len(images), spec, split)
    check_labels(path, labels, spec.n_classes or MAX_CLASSES)
    return LabelledImages(images, labels.astype(np.int64))


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with open_file(path, None) as stream:
            if not zipfile.is_zipfile(stream):
                got = "a file in another format" if path.stat().st_size else "an empty file"
                raise DatasetError(
                    f"Reading images failed for {path}: expected a complete .npz archive, got {got}. "
                    "Write it with numpy.savez, or copy it again."
                )
            with zipfile.ZipFile(stream) as archive:
                members_by_array = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
                missing = [name for name in _ARRAYS if name not in members_by_array]
                if missing:
                    raise DatasetError(
                        f"Reading images failed for {path}: expected arrays `images` and `labels`, got "
                        f"{', '.join(members_by_array) or 'none'}. Write both arrays with numpy.savez(file, images=…, "
                        "labels=…)."
                    )
                return {name: _read_member(archive, members_by_array[name]) for name in _ARRAYS}
    # zipfile raises RuntimeError for encrypted members, and NotImplementedError for unknown compressions.
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise DatasetError(
            f"Reading images failed for {path}: the arrays of the .npz archive cannot be read ({one_line(error)}). "
            "Write it with numpy.savez, or copy it again."
        ) from error


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    return parse_npy(lambda: cast(BinaryIO, archive.open(member)), member.file_size)


def _move_channels_first(path: Path, images: NDArray[Any], spec: DatasetSpec) -> NDArray[np.uint8]:
    n_channels, size = spec.channels, spec.image_size
    if size == UNKNOWN_COUNT and images.ndim == 4:
        size = images.shape[2]  # rows or columns, depending on the axis of the channels
    has_channels_first = images.ndim == 4 and images.shape[1:] == (n_channels, size, size)
    has_channels_last = images.ndim == 4 and images.shape[1:] == (size, size, n_channels)
    if images.dtype != np.uint8 or not (has_channels_first or has_channels_last) or not len(images):
        side = spec.image_size or "H"
        remedy = (
            "Convert pixels in [0, 1] with (255 * images).round().astype(numpy.uint8)."
            if images.dtype.kind == "f" and (has_channels_first or has_channels_last)
            else "Convert the images, or correct the image size and the number of channels of the dataset."
        )
        raise DatasetError(
            f"Reading images failed for {path}: expected uint8 images (N, {side}, {side}, {n_channels}) or (N, "
            f"{n_channels}, {side}, {side}), got {images.dtype} {images.shape}. {remedy}"
        )
    if images.max(initial=0) == 1:
        raise DatasetError(
            f"Reading images failed for {path}: the images are uint8, whose pixels range from 0 to 255, but no pixel "
            "is above 1, so all images are nearly black. If pixels were divided by 255, multiply them by 255 before "
            "they are converted to uint8."
        )
    if has_channels_first and has_channels_last and n_channels > 1:
        raise DatasetError(
            f"Reading images failed for {path}: shape {images.shape} is ambiguous, since the channels may be axis 1 or "
            "axis 3. Use larger images, or a Parquet file."
        )
    return images if has_channels_first else np.ascontiguousarray(images.transpose(0, 3, 1, 2))
