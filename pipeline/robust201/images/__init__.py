"""Images of every dataset: one table of datasets, one table of the forms they are read in, and selections of them.

To add a dataset: a row in `images.specs`, and where its files have a form of their own, one module with a
`find` and a `load` function and a row of `FORMS`. The table-wide tests then cover it.

Nothing here imports torch; pyarrow, Pillow and scikit-learn are imported by the loader that needs them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, DatasetError, closest
from robust201.core.noise import generator
from robust201.core.records import ImageSet, Split, image_hash
from robust201.images import cifar
from robust201.images.checks import LabelledImages
from robust201.images.digits import find_digits, load_digits
from robust201.images.downloads.registry import DATA_VARIABLE, data_folder, downloads
from robust201.images.image_parquet import find_parquet, load_parquet
from robust201.images.imagenet16 import find_imagenet16, load_imagenet16
from robust201.images.mnist import find_idx, load_idx
from robust201.images.npz import find_npz, load_npz
from robust201.images.specs import DATASETS, DatasetSpec, dataset

__all__ = [
    "DATASETS",
    "FORMS",
    "DatasetSpec",
    "Form",
    "Split",
    "check_selection",
    "data_folder",
    "dataset",
    "load_images",
    "select",
]


class Loader(Protocol):
    """Signature of a form's loader."""

    def __call__(self, spec: DatasetSpec, path: Path, split: Split, *, verify: bool) -> LabelledImages:
        """Read a split from what the form's `find` returned."""


@dataclass(frozen=True, slots=True)
class Form:
    """One row of the table of forms.

    Attributes:
        name: what the YAML and the command line call it.
        looks_like: takes a row of the table of datasets; returns what to look for in a folder, for messages.
        find: takes a row of the table of datasets, a file or folder and the split; returns what `load` reads, or None.
        load: reads a split.
    """

    name: str
    looks_like: Callable[[DatasetSpec], str]
    find: Callable[[DatasetSpec, Path, Split], Path | None]
    load: Loader


FORMS: dict[str, Form] = {
    row.name: row
    for row in (
        Form(
            "binary",
            partial(cifar.folder_name, cifar.BINARY),
            partial(cifar.find_folder, cifar.BINARY),
            cifar.load_binary,
        ),
        Form(
            "python",
            partial(cifar.folder_name, cifar.PYTHON),
            partial(cifar.find_folder, cifar.PYTHON),
            cifar.load_python,
        ),
        Form("imagenet16", lambda _spec: "ImageNet16 with val_data", find_imagenet16, load_imagenet16),
        Form("digits", lambda _spec: "the digits that scikit-learn ships", find_digits, load_digits),
        Form("idx", lambda _spec: "train-images-idx3-ubyte.gz and the like", find_idx, load_idx),
        Form("npz", lambda _spec: "test.npz or train.npz", find_npz, load_npz),
        Form("parquet", lambda _spec: "test.parquet or train.parquet", find_parquet, load_parquet),
    )
}
"""Name to row."""


def load_images(
    name: str | DatasetSpec,
    *,
    form: str | None = None,
    path: Path | None = None,
    split: Split = "test",
    verify: bool = True,
) -> ImageSet:
    """Load a full split of a dataset of `DATASETS`, or of a row that is in no table (see `images.specs.own_dataset`).

    The form is one of `FORMS`; None takes the first of the dataset's forms that is found. The path is a file, the
    folder that holds the images, or a folder above it (directly, or in a folder named as the dataset); None searches
    the data folder (`ROBUST201_DATA`). `verify` compares published checksums, sizes and image counts where the form has
    them.

    Returns:
        Images (N, 3, H, W) uint8, C-contiguous; indices are rows of the full split, 0 to N - 1.

    Raises:
        ConfigError: no such dataset or form, or the dataset has no such form.
        DatasetError: images are missing, damaged, of the wrong form, or have a label out of range.
    """
    spec = dataset(name) if isinstance(name, str) else name
    if form is not None and form not in spec.forms:
        raise ConfigError(
            f"Looking up a form failed for {spec.name}: expected one of {', '.join(spec.forms)}, got {form!r}."
            f"{closest(form, spec.forms)}"
        )
    forms = [FORMS[name] for name in (spec.forms if form is None else [form])]
    root = data_folder() if path is None else path
    for candidate in forms:
        for folder in (root, root / spec.name):
            found = candidate.find(spec, folder, split)
            if found is not None:
                return _image_set(spec, candidate.load(spec, found, split, verify=verify))
    looked_for = "; or ".join(f"{row.looks_like(spec)} ({row.name})" for row in forms)
    got = "nothing of that" if root.exists() else "no such file or folder"
    fetching = f"Run `robust201 fetch {spec.name}`, or " if spec.name in downloads() else ""
    advice = f"{fetching}{f'set {DATA_VARIABLE}' if path is None else 'correct the path'} to where they lie."
    raise DatasetError(
        f"Loading the {split} images of {spec.name} failed for {root}: expected {looked_for}, got {got}. "
        f"{advice[0].upper()}{advice[1:]}"
    )


def _image_set(spec: DatasetSpec, read: LabelledImages) -> ImageSet:
    images = np.ascontiguousarray(read.images)
    indices = np.arange(len(read.labels), dtype=np.int64)
    return ImageSet(
        dataset=spec.name,
        images=images,
        labels=read.labels,
        indices=indices,
        n_classes=spec.n_classes,
        normalisation=spec.normalisation,
        sha256=image_hash(images, read.labels, indices),
    )


def select(images: ImageSet, *, count: int, seed: int) -> ImageSet:
    """Choose a class-stratified subset, the same for equal arguments on every platform; its indices are ascending.

    Class counts differ by at most one, except where a class has no more images to give. A larger count with the same
    seed contains the smaller one's images; the seed decides the images of each class and which classes give one image
    more.

    Raises:
        DatasetError: `count` is below 1 or above the number of images.
    """
    check_selection(count, len(images), images.dataset)
    class_order = _shuffled(seed, images.n_classes, "image selection", "classes")
    # An image's turn is its place in its own class, then its class's place: the first `count` turns are stratified.
    rank = np.empty(len(images), np.int64)
    for place, label in enumerate(class_order):
        members = np.flatnonzero(images.labels == label)
        members = members[_shuffled(seed, len(members), "image selection", int(label))]
        rank[members] = np.arange(len(members)) * images.n_classes + place
    chosen = np.sort(np.argsort(rank, kind="stable")[:count])
    parts = (images.images[chosen], images.labels[chosen], images.indices[chosen])
    return replace(images, images=parts[0], labels=parts[1], indices=parts[2], sha256=image_hash(*parts))


def check_selection(count: int, n_images: int, name: str) -> None:
    """Check that so many images can be selected (see `select`)."""
    if not 1 <= count <= n_images:
        raise DatasetError(
            f"Selecting images failed for {name}: expected a count from 1 to {n_images:,}, got {count:,}. "
            "Correct the count: --count, `images.count`, or `images` of a measure in `keys`."
        )


def _shuffled(seed: int, count: int, *names: str | int) -> NDArray[np.int64]:
    # Raw draws, not `permutation`: NumPy promises the stream of a bit generator, not that of a distribution.
    draws = generator(seed, *names).bit_generator.random_raw(count)
    return np.argsort(draws, kind="stable")
