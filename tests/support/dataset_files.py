"""Functions that fabricate small datasets in the official file formats."""

import gzip
import io
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet

from robust201.images import DATASETS, DatasetSpec

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]


def fabricate(spec: DatasetSpec, count: int, seed: int = 0) -> tuple[Pixels, Labels]:
    """Return random images (count, C, H, W) and labels (count,) for a dataset."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, spec.channels, spec.image_size, spec.image_size), dtype=np.uint8)
    if "folders" in spec.forms:  # each class has a folder, so images are read in the order of their labels
        return images, np.sort(np.arange(count) % spec.n_classes)
    if "idx" in spec.forms and spec.channels == 3:
        # The reader enlarges grey images of 28x28 pixels. Every image is uniform, so enlargement keeps its values.
        images[:] = images[:, :1, :1, :1]
    return images, rng.integers(0, spec.n_classes, count)


def list_cifar_file_stems(spec: DatasetSpec, split: str) -> list[str]:
    if spec.name == "cifar100":
        return [split]
    return ["test_batch"] if split == "test" else [f"data_batch_{index}" for index in range(1, 6)]


def write_binary(root: Path, spec: DatasetSpec, split: str, images: Pixels, labels: Labels) -> list[Path]:
    is_cifar100 = spec.name == "cifar100"
    folder = root / ("cifar-100-binary" if is_cifar100 else "cifar-10-batches-bin")
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.bin" for name in list_cifar_file_stems(spec, split)]
    for file, indices in zip(files, np.array_split(np.arange(len(labels)), len(files)), strict=True):
        label_bytes = labels[indices].astype(np.uint8)[:, None]
        if is_cifar100:
            # The coarse labels are out of range, so a reader that used them instead of the fine labels would fail.
            label_bytes = np.hstack([255 - label_bytes, label_bytes])
        file.write_bytes(np.hstack([label_bytes, images[indices].reshape(len(indices), -1)]).tobytes())
    return files


def write_python(root: Path, spec: DatasetSpec, split: str, images: Pixels, labels: Labels) -> list[Path]:
    is_cifar100 = spec.name == "cifar100"
    folder = root / ("cifar-100-python" if is_cifar100 else "cifar-10-batches-py")
    return write_pickles(
        folder, list_cifar_file_stems(spec, split), "fine_labels" if is_cifar100 else "labels", images, labels
    )


def write_imagenet16(root: Path, spec: DatasetSpec, split: str, images: Pixels, labels: Labels) -> list[Path]:
    file_names = ["val_data"] if split == "test" else [f"train_data_batch_{index}" for index in range(1, 11)]
    # Every second image has a label beyond the first 120, so the reader must drop the image.
    indices = np.repeat(np.arange(len(labels)), 2)
    imagenet_labels = np.where(np.arange(len(indices)) % 2, 121 + indices % 880, labels[indices] + 1)
    return write_pickles(root / "ImageNet16", file_names, "labels", images[indices], imagenet_labels)


def write_pickles(folder: Path, file_names: list[str], label_field: str, images: Pixels, labels: Labels) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in file_names]
    for file, indices in zip(files, np.array_split(np.arange(len(labels)), len(files)), strict=True):
        batch = {
            "data": images[indices].reshape(len(indices), -1),
            label_field: [int(label) for label in labels[indices]],
        }
        file.write_bytes(pickle.dumps(batch, protocol=2))
    return files


def encode(image: Pixels, image_format: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(stream, image_format)
    return stream.getvalue()


def write_parquet(root: Path, spec: DatasetSpec, split: str, images: Pixels, labels: Labels) -> list[Path]:
    return [write_table(root / f"{split}.parquet", [encode(image) for image in images], labels.tolist())]


def write_table(
    file: Path, images: list[bytes | None], labels: list[int | None], label_type: pa.DataType | None = None
) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    columns = {"image": pa.array(images, pa.binary()), "label": pa.array(labels, label_type or pa.int16())}
    parquet.write_table(pa.table(columns), file)
    return file


def write_npz(root: Path, spec: DatasetSpec, split: str, images: Pixels, labels: Labels) -> list[Path]:
    root.mkdir(parents=True, exist_ok=True)
    np.savez(root / f"{split}.npz", images=images.transpose(0, 2, 3, 1), labels=labels)
    return [root / f"{split}.npz"]


def write_folders(root: Path, spec: DatasetSpec, split: str, images: Pixels, labels: Labels) -> list[Path]:
    files = [root / split / f"class{label:04d}" / f"{index:05d}.png" for index, label in enumerate(labels)]
    for file, image in zip(files, images, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode(image))
    return files


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_idx(root: Path, spec: DatasetSpec, split: str, images: Pixels, labels: Labels) -> list[Path]:
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    prefix = "t10k" if split == "test" else "train"
    files = [folder / f"{prefix}-labels-idx1-ubyte", folder / f"{prefix}-images-idx3-ubyte.gz"]
    files[0].write_bytes(idx_bytes(labels.astype(np.uint8)))
    files[1].write_bytes(gzip.compress(idx_bytes(images[:, 0, :28, :28])))
    return files


WRITERS: dict[str, Callable[[Path, DatasetSpec, str, Pixels, Labels], list[Path]]] = {
    "binary": write_binary,
    "python": write_python,
    "imagenet16": write_imagenet16,
    "parquet": write_parquet,
    "npz": write_npz,
    "folders": write_folders,
    "idx": write_idx,
}
# scikit-learn's digits need no files, so a Parquet file with digits is read only if its format is given explicitly.
REQUIRED_FORMS = {"digits": "parquet"}
FILE_FORMS = [(name, form) for name, spec in DATASETS.items() for form in spec.forms if form != "digits"]
"""Pairs of a dataset and a format in which its images can be stored in files."""
