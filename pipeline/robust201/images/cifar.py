"""Reader of the official files of CIFAR-10 and CIFAR-100, in their binary and Python versions.

In the binary version (defined on A. Krizhevsky's CIFAR page), a record consists of the label byte (for CIFAR-100, the
coarse label and then the fine label) and 3,072 bytes of pixels, channels first. The Python version consists of pickles
of {data: (N, 3072) uint8, labels or fine_labels: list}, with pixels in the same order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robust201.core.errors import DatasetError
from robust201.core.records import Split
from robust201.images.checks import LabelledImages, check_labels
from robust201.images.downloads import registry
from robust201.images.published import parse_batch, read_batches
from robust201.images.specs import DatasetSpec


@dataclass(frozen=True, slots=True)
class _Layout:
    """Files and fields of a dataset's binary or Python version.

    Attributes:
        download: name in the registry of downloads, which has the folder's name and the checksums of the files.
        files: file names of each split, in order.
        label_field: position of the label byte in a binary record, or key of the labels in a pickle.
        label_bytes: number of label bytes before the pixels of a binary record.
    """

    download: str
    files: Mapping[Split, tuple[str, ...]]
    label_field: int | str
    label_bytes: int = 0

    def files_in(self, folder: Path, split: Split) -> list[Path]:
        return [folder / name for name in self.files[split]]


BINARY = {
    "cifar10": _Layout(
        "cifar10",
        {"test": ("test_batch.bin",), "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6))},
        label_field=0,
        label_bytes=1,
    ),
    "cifar100": _Layout("cifar100", {"test": ("test.bin",), "train": ("train.bin",)}, label_field=1, label_bytes=2),
}

PYTHON = {
    "cifar10": _Layout(
        "cifar10-python",
        {"test": ("test_batch",), "train": tuple(f"data_batch_{number}" for number in range(1, 6))},
        label_field="labels",
    ),
    "cifar100": _Layout("cifar100-python", {"test": ("test",), "train": ("train",)}, label_field="fine_labels"),
}


def find_folder(layouts: Mapping[str, _Layout], spec: DatasetSpec, root: Path, split: Split) -> Path | None:
    """Return the folder of the files: the official folder below `root`, or `root` if it has the split's first file."""
    layout = layouts[spec.name]
    official_folder = root / registry.find_download(layout.download).folder
    if official_folder.is_dir():
        return official_folder
    return root if (root / layout.files[split][0]).is_file() else None


def load_binary(spec: DatasetSpec, path: Path, split: Split, *, verify: bool) -> LabelledImages:
    """Load the images of a split from the binary version, (N, 3, 32, 32) uint8, in the order of the files.

    `verify` checks the number of images and the files' sizes; checksums of these files are not published.

    Raises:
        DatasetError: a file is missing or has the wrong size or a label out of range.
    """
    layout = BINARY[spec.name]
    record_bytes = layout.label_bytes + 3 * spec.image_size**2

    def parse(file: Path, content: bytes) -> LabelledImages:
        if not content or len(content) % record_bytes:
            raise DatasetError(
                f"Reading images failed for {file}: expected records of {record_bytes:,} bytes, got "
                f"{len(content):,} bytes. The file is truncated or does not belong to {spec.name}; fetch it again."
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, record_bytes)
        labels = records[:, int(layout.label_field)].astype(np.int64)
        check_labels(file, labels, spec.n_classes)
        images = records[:, layout.label_bytes :].reshape(-1, 3, spec.image_size, spec.image_size)
        return LabelledImages(images, labels)

    return read_batches(spec, layout.files_in(path, split), split, layout.download, parse, verify=verify)


def load_python(spec: DatasetSpec, path: Path, split: Split, *, verify: bool) -> LabelledImages:
    """Load the images of a split from the Python version, in the order of the files, with the allow-list unpickler.

    `verify` checks every file against its published MD5, and the number of images.

    Raises:
        DatasetError: a file is missing or damaged, or has the wrong MD5 or a label out of range.
    """
    layout = PYTHON[spec.name]

    def parse(file: Path, content: bytes) -> LabelledImages:
        batch = parse_batch(file, content, str(layout.label_field), spec.image_size)
        check_labels(file, batch.labels, spec.n_classes)
        return batch

    return read_batches(spec, layout.files_in(path, split), split, layout.download, parse, verify=verify)
