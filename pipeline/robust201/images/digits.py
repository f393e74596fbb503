"""The handwritten digits of scikit-learn: real images without a download, for the demo and the tests.

`sklearn.datasets.load_digits` has 1,797 images of 8x8 pixels with values from 0 to 16 (the test set of Alpaydin and
Kaynak, 1998). They are upscaled to 3x32x32 (see `images.upscaling`), and have a fixed split into 1,347 training
images and 450 test images.
"""

import functools
import gzip
import hashlib
import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
from robust201.core.noise import generator
from robust201.core.records import Split
from robust201.images.checks import LabelledImages
from robust201.images.specs import DatasetSpec
from robust201.images.upscaling import upscale

_SOURCE_SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
"""SHA-256 of scikit-learn's pixels (1797, 8, 8) uint8 followed by its labels (1797,) uint8."""

_SOURCE_FILE = "datasets/data/digits.csv.gz"
"""File in scikit-learn's package with one row per image: the pixels, then the label."""

_SPLIT_SEED = 201
_MAX_PIXEL = 16
"""Largest pixel value of the source."""


def find_digits(spec: DatasetSpec, root: Path, split: Split) -> Path:
    """Return `root`; the digits are part of scikit-learn, so they do not depend on the folder."""
    return root


def choose_test_rows(labels: NDArray[np.int64], n_test: int) -> NDArray[np.int64]:
    """Return the sorted row numbers of the fixed test split. It has about the same fraction of every class."""
    classes, class_sizes = np.unique(labels, return_counts=True)
    quotas = class_sizes * n_test / len(labels)
    test_counts = np.floor(quotas).astype(np.int64)
    # Rounding down leaves some test images unassigned. They go to the classes with the largest remainders; between
    # equal remainders, the lower class number comes first.
    classes_by_remainder = np.argsort(test_counts - quotas, kind="stable")
    test_counts[classes_by_remainder[: n_test - test_counts.sum()]] += 1
    rows = []
    for label, count in zip(classes, test_counts, strict=True):
        members = np.flatnonzero(labels == label)
        random_numbers = generator(_SPLIT_SEED, "digits", "split", int(label)).bit_generator.random_raw(len(members))
        rows.append(members[np.argsort(random_numbers, kind="stable")[:count]])
    return np.sort(np.concatenate(rows))


@functools.cache
def _read_source() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the digits from scikit-learn's file, because importing scikit-learn takes a second."""
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.origin is not None  # noqa: S101, PT018 - a dependency
    with gzip.open(Path(package.origin).parent / _SOURCE_FILE, "rt") as stream:
        rows = np.loadtxt(stream, delimiter=",")
    images, labels = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]
    return images.astype(np.uint8), labels.astype(np.int64)


def load_digits(spec: DatasetSpec, path: Path, split: Split, *, verify: bool) -> LabelledImages:
    """Load one of the two fixed splits of the digits, in the order of the source.

    `verify` checks the hash of the source.

    Raises:
        DatasetError: the digits of the installed scikit-learn are not the expected ones.
    """
    pixels, labels = _read_source()
    digest = hashlib.sha256(pixels.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()
    if verify and digest != _SOURCE_SHA256:
        raise DatasetError(
            f"Verifying failed for the digits of scikit-learn: expected SHA-256 {_SOURCE_SHA256}, got {digest}. "
            "Install scikit-learn again."
        )
    is_test = np.zeros(len(labels), np.bool_)
    is_test[choose_test_rows(labels, spec.n_test)] = True
    is_in_split = is_test if split == "test" else ~is_test
    return LabelledImages(upscale(pixels[is_in_split], spec.image_size, _MAX_PIXEL), labels[is_in_split])
