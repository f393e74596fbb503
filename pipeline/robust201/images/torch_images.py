"""Images saved with `torch.save`, the format of the datasets of robust features of Ilyas et al. (2019).

A folder such as `robust_CIFAR` has `CIFAR_ims`, float images (N, 3, 32, 32) in [0, 1], and `CIFAR_lab`, integer
labels (N,); each is one tensor, or a list of tensors of consecutive batches. Their checksums are not published.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
from robust201.core.files import open_file, sha256_of
from robust201.core.records import Split
from robust201.core.unpickling import load_torch
from robust201.images.checks import LabelledImages, check_labels
from robust201.images.image_folder import Rounding, find_split, to_8_bits, write_split

IMAGES_FILE = "CIFAR_ims"
LABELS_FILE = "CIFAR_lab"


def import_torch_images(
    source: Path, folder: Path, *, n_classes: int, split: Split = "train", rounding: Rounding = "half-up"
) -> int:
    """Convert such a folder to the format of `images.image_folder`, and return the height and width of the images.

    Code named in the files is not executed (see `core.unpickling`). The hashes of both files are recorded.

    Raises:
        DatasetError: a file is missing or damaged, has another format or contains anything but tensors; or the target
            folder contains other images.
    """
    files = [source / name for name in (IMAGES_FILE, LABELS_FILE)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise DatasetError(
            f"Importing images failed for {source}: expected the files {IMAGES_FILE} and {LABELS_FILE}, got no "
            f"{' and no '.join(missing)}. Name the folder that holds both."
        )
    recipe = {
        "kind": "torch",
        "files": {file.name: sha256_of(file) for file in files},
        "checksums": "unknown: not compared",
        "rounding": f"{rounding} to 8 bits",
        "split": split,
    }
    find_split(folder, split, recipe)
    labels = _read_labels(files[1], n_classes)
    images = _read_images(files[0], len(labels), rounding)
    write_split(folder, split, LabelledImages(images, labels), recipe=recipe, n_classes=n_classes)
    return int(images.shape[-1])


def _read_tensors(file: Path, what: str) -> Sequence[Any]:
    """Read one tensor or a list of tensors; `what` describes them in errors."""
    import torch

    with open_file(file, None) as stream:
        content = load_torch(stream, str(file), what=what, error=DatasetError)
    tensors = list(content) if isinstance(content, list | tuple) else [content]
    wrong = [type(tensor).__name__ for tensor in tensors if not isinstance(tensor, torch.Tensor)]
    if wrong or not tensors:
        got = f"{wrong[0]} among them" if wrong else "an empty list"
        raise DatasetError(
            f"Reading {what} failed for {file}: expected a tensor or a list of tensors, got {got}. Check the path."
        )
    unusable = [tensor for tensor in tensors if tensor.layout is not torch.strided or tensor.device.type != "cpu"]
    if unusable:
        raise DatasetError(
            f"Reading {what} failed for {file}: expected dense tensors on the CPU, got one that is "
            f"{unusable[0].layout} on {unusable[0].device}. Check the path."
        )
    return [tensor.detach() for tensor in tensors]


def _read_labels(file: Path, n_classes: int) -> NDArray[np.int64]:
    tensors = _read_tensors(file, "labels")
    wrong = [tensor for tensor in tensors if tensor.ndim != 1 or tensor.is_floating_point() or tensor.is_complex()]
    if wrong:
        raise DatasetError(
            f"Reading labels failed for {file}: expected integers (N,), got {_describe(wrong[0])}. Check the path."
        )
    labels = np.concatenate([tensor.numpy().astype(np.int64) for tensor in tensors])
    if not len(labels):
        raise DatasetError(f"Reading labels failed for {file}: expected one or more, got none. Check the path.")
    check_labels(file, labels, n_classes)
    return labels


def _read_images(file: Path, count: int, rounding: Rounding) -> NDArray[np.uint8]:
    tensors = _read_tensors(file, "images")
    shape = tuple(tensors[0].shape[1:])
    is_square = len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2] > 0
    wrong = [tensor for tensor in tensors if tuple(tensor.shape[1:]) != shape or not tensor.is_floating_point()]
    n_images = sum(len(tensor) for tensor in tensors if tensor.ndim)
    if wrong or not is_square or n_images != count:
        got = _describe((wrong or tensors)[0]) if wrong or not is_square else f"{n_images:,} images"
        raise DatasetError(
            f"Reading images failed for {file}: expected float images (N, 3, H, H), one for each of the {count:,} "
            f"labels, got {got}. Check the path."
        )
    images = np.empty((count, *shape), np.uint8)
    start = 0
    for tensor in filter(len, tensors):
        for piece in tensor.split(1000):
            pixels = piece.double().numpy()
            _check_range(file, pixels)
            images[start : start + len(piece)] = to_8_bits(pixels, rounding)
            start += len(piece)
    return images


def _check_range(file: Path, pixels: NDArray[np.float64]) -> None:
    lowest, highest = pixels.min(), pixels.max()
    if not (lowest >= 0 and highest <= 1):  # NaN compares as false
        raise DatasetError(
            f"Reading images failed for {file}: expected pixels in [0, 1], got {lowest:g} to {highest:g}. Give images "
            "without normalisation."
        )


def _describe(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
