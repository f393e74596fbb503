"""ImageNet16-120: the classes 1 to 120 of ImageNet16 (ImageNet at 16x16 pixels; Chrabaszcz et al., 2017).

The published pickles contain {data: (N, 768) uint8, channels first; labels: list of numbers from 1 to 1000}.
NAS-Bench-201 selects the labels 1 to 120 in file order and numbers the classes from 0 (AutoDL-Projects,
DownsampledImageNet.py). That gives 151,700 training images from ten batches and 6,000 test images from `val_data`.
"""

from pathlib import Path

from robust201.core.records import Split
from robust201.images.checks import LabelledImages, check_labels
from robust201.images.downloads import registry
from robust201.images.published import parse_batch, read_batches
from robust201.images.specs import DatasetSpec

_N_FILE_CLASSES = 1000

_FILES: dict[Split, tuple[str, ...]] = {
    "test": ("val_data",),
    "train": tuple(f"train_data_batch_{number}" for number in range(1, 11)),
}


def find_imagenet16(spec: DatasetSpec, root: Path, split: Split) -> Path | None:
    """Return the folder of the pickles: `ImageNet16` below `root`, or `root` itself."""
    for folder in (root / registry.find_download(spec.name).folder, root):
        if (folder / _FILES[split][0]).is_file():
            return folder
    return None


def load_imagenet16(spec: DatasetSpec, path: Path, split: Split, *, verify: bool) -> LabelledImages:
    """Load the images of ImageNet16's classes 1 to 120 from a split, (N, 3, 16, 16) uint8, with labels 0 to 119.

    `verify` checks every file against its published MD5, and the number of images.

    Raises:
        DatasetError: a file is missing or damaged, or has the wrong MD5 or a label outside 1 to 1000.
    """

    def parse(file: Path, content: bytes) -> LabelledImages:
        batch = parse_batch(file, content, "labels", spec.image_size)
        check_labels(file, batch.labels, _N_FILE_CLASSES, first=1)
        is_in_subset = batch.labels <= spec.n_classes
        return LabelledImages(batch.images[is_in_subset], batch.labels[is_in_subset] - 1)

    files = [path / name for name in _FILES[split]]
    return read_batches(spec, files, split, spec.name, parse, verify=verify)
