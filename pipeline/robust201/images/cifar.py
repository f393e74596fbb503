"""Reader of the official files of CIFAR-10 and CIFAR-100 in their Python version, which torchvision also downloads.

The files are pickles of {data: (N, 3072) uint8, channels first; labels or fine_labels: list}.
"""

from pathlib import Path

from robust201.core.records import Split
from robust201.images.checks import LabelledImages, check_labels
from robust201.images.downloads import registry
from robust201.images.published import parse_batch, read_batches
from robust201.images.specs import DatasetSpec

_FILES: dict[str, dict[Split, tuple[str, ...]]] = {
    "cifar10": {"test": ("test_batch",), "train": tuple(f"data_batch_{number}" for number in range(1, 6))},
    "cifar100": {"test": ("test",), "train": ("train",)},
}
"""Names of the files of each dataset and split, in order."""

_LABEL_KEYS = {"cifar10": "labels", "cifar100": "fine_labels"}


def find_cifar(spec: DatasetSpec, root: Path, split: Split) -> Path | None:
    """Return the folder of the files: the official folder below `root`, or `root` if it has the split; else None."""
    official_folder = root / registry.find_download(spec.name).folder
    if official_folder.is_dir():
        return official_folder
    return root if (root / _FILES[spec.name][split][0]).is_file() else None


def load_cifar(spec: DatasetSpec, path: Path, split: Split, *, verify: bool) -> LabelledImages:
    """Load the images of a split, (N, 3, 32, 32) uint8, in the order of the files, with the allow-list unpickler.

    `verify` checks every file against its published MD5, and the number of images.

    Raises:
        DatasetError: a file is missing or damaged, or has the wrong MD5 or a label out of range.
    """

    def parse(file: Path, content: bytes) -> LabelledImages:
        batch = parse_batch(file, content, _LABEL_KEYS[spec.name], spec.image_size)
        check_labels(file, batch.labels, spec.n_classes)
        return batch

    files = [path / name for name in _FILES[spec.name][split]]
    return read_batches(spec, files, split, spec.name, parse, verify=verify)
