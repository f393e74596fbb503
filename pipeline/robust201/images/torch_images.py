"""Images saved with `torch.save`, as in the robust-feature datasets of Ilyas et al. (2019).

A folder such as `robust_CIFAR` has the file `CIFAR_ims` with float images (N, 3, 32, 32) in [0, 1], and `CIFAR_lab`
with integer labels (N,). Each contains one tensor, or a list of tensors of consecutive batches. Their checksums are not
published.
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
from robust201.images.image_folder import Rounding, check_split, to_8_bits, write_split

IMAGES_FILE = "CIFAR_ims"
LABELS_FILE = "CIFAR_lab"


def import_torch_images(
    source: Path, folder: Path, *, n_classes: int, split: Split = "train", rounding: Rounding = "half-up"
) -> int:
    """Convert a folder such as `robust_CIFAR` to the format of `images.image_folder`; return the images' height.

    Code named in the files is never executed (see `core.unpickling`). The manifest records the hashes of both files.

    Raises:
        DatasetError: a file is missing or damaged, has another format or contains other objects than tensors; or the
            target folder contains other images.
    """
    files = [source / name for name in (IMAGES_FILE, LABELS_FILE)]
    missing_names = [file.name for file in files if not file.is_file()]
    if missing_names:
        raise DatasetError(
            f"Importing images failed for {source}: the folder has no {' and no '.join(missing_names)}. Choose a "
            f"folder with the files {IMAGES_FILE} and {LABELS_FILE}."
        )
    recipe = {
        "kind": "torch",
        "files": {file.name: sha256_of(file) for file in files},
        "checksums": "unknown: not compared",
        "rounding": f"{rounding} to 8 bits",
        "split": split,
    }
    check_split(folder, split, recipe)
    labels = _read_labels(files[1], n_classes)
    images = _read_images(files[0], len(labels), rounding)
    write_split(folder, split, LabelledImages(images, labels), recipe=recipe, n_classes=n_classes)
    return int(images.shape[-1])


def _read_tensors(file: Path, content_name: str) -> Sequence[Any]:
    """Read one tensor or a list of tensors; `content_name` describes them in error messages."""
    import torch

    with open_file(file, None) as stream:
        content = load_torch(stream, str(file), what=content_name, error=DatasetError)
    tensors = list(content) if isinstance(content, list | tuple) else [content]
    other_types = [type(tensor).__name__ for tensor in tensors if not isinstance(tensor, torch.Tensor)]
    if other_types or not tensors:
        got = f"an object of type {other_types[0]}" if other_types else "an empty list"
        raise DatasetError(
            f"Reading {content_name} failed for {file}: expected a tensor or a list of tensors, got {got}. Check the "
            "path."
        )
    unusable_tensors = [
        tensor for tensor in tensors if tensor.layout is not torch.strided or tensor.device.type != "cpu"
    ]
    if unusable_tensors:
        raise DatasetError(
            f"Reading {content_name} failed for {file}: expected dense tensors on the CPU, got a tensor with layout "
            f"{unusable_tensors[0].layout} on device {unusable_tensors[0].device}. Save dense "
            "CPU tensors."
        )
    return [tensor.detach() for tensor in tensors]


def _read_labels(file: Path, n_classes: int) -> NDArray[np.int64]:
    tensors = _read_tensors(file, "labels")
    invalid_tensors = [
        tensor for tensor in tensors if tensor.ndim != 1 or tensor.is_floating_point() or tensor.is_complex()
    ]
    if invalid_tensors:
        raise DatasetError(
            f"Reading labels failed for {file}: expected integers (N,), got {_describe(invalid_tensors[0])}. "
            "Check the path."
        )
    labels = np.concatenate([tensor.numpy().astype(np.int64) for tensor in tensors])
    if not len(labels):
        raise DatasetError(f"Reading labels failed for {file}: the file has no labels. Check the path.")
    check_labels(file, labels, n_classes)
    return labels


def _read_images(file: Path, count: int, rounding: Rounding) -> NDArray[np.uint8]:
    tensors = _read_tensors(file, "images")
    shape = tuple(tensors[0].shape[1:])
    is_square = len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2] > 0
    invalid_tensors = [
        tensor for tensor in tensors if tuple(tensor.shape[1:]) != shape or not tensor.is_floating_point()
    ]
    n_images = sum(len(tensor) for tensor in tensors if tensor.ndim)
    if invalid_tensors or not is_square or n_images != count:
        got = _describe((invalid_tensors or tensors)[0]) if invalid_tensors or not is_square else f"{n_images:,} images"
        raise DatasetError(
            f"Reading images failed for {file}: expected {count:,} float images (N, 3, H, H), one per label, got "
            f"{got}. Check the path."
        )
    images = np.empty((count, *shape), np.uint8)
    start = 0
    for tensor in filter(len, tensors):
        for chunk in tensor.split(1000):
            pixels = chunk.double().numpy()
            _check_range(file, pixels)
            images[start : start + len(chunk)] = to_8_bits(pixels, rounding)
            start += len(chunk)
    return images


def _check_range(file: Path, pixels: NDArray[np.float64]) -> None:
    lowest, highest = pixels.min(), pixels.max()
    if not (lowest >= 0 and highest <= 1):  # also true for NaN
        raise DatasetError(
            f"Reading images failed for {file}: expected pixels in [0, 1], got {lowest:g} to {highest:g}. Use images "
            "without normalisation."
        )


def _describe(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
