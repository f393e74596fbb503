"""`load_images`, and the table of file formats (forms) that it reads.

A new dataset needs an entry in `images.specs`. If its files have a new form, it also needs a module with a `find` and a
`load` function, and an entry in `FORMS`. The tests run for every entry of both tables.

Loaders import pyarrow and Pillow only when they run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from robust201.core.errors import ConfigError, DatasetError, did_you_mean
from robust201.core.records import ImageSet, Split, image_hash
from robust201.images.checks import LabelledImages
from robust201.images.cifar import BINARY, PYTHON, find_folder, load_binary, load_python
from robust201.images.class_folders import ImageFiles, find_split_folder, load_folders
from robust201.images.digits import find_digits, load_digits
from robust201.images.downloads.registry import DATA_VARIABLE, data_folder, downloads
from robust201.images.image_parquet import find_parquet, load_parquet
from robust201.images.imagenet16 import find_imagenet16, load_imagenet16
from robust201.images.mnist import find_idx, load_idx
from robust201.images.npz import find_npz, load_npz
from robust201.images.selection import select_rows
from robust201.images.specs import DATASETS, UNKNOWN_COUNT, DatasetSpec, Resize, custom_dataset, dataset


@dataclass(frozen=True, slots=True)
class Form:
    """A file format of images. The YAML field `form` selects it by name, so file formats are called forms here.

    Attributes:
        name: name in the YAML and on the command line.
        files: description of the files, for messages.
        find: (spec of the dataset, file or folder, split) → path for `load`, or None if the files are not there.
        load: (spec, path, split, verify=…) → the images and labels of a split.
    """

    name: str
    files: str
    find: Callable[[DatasetSpec, Path, Split], Path | None]
    load: Callable[..., LabelledImages | ImageFiles]


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("binary", "the folder of CIFAR's binary version", partial(find_folder, BINARY), load_binary),
        Form("python", "the folder of CIFAR's Python version", partial(find_folder, PYTHON), load_python),
        Form("imagenet16", "ImageNet16 with val_data", find_imagenet16, load_imagenet16),
        Form("digits", "the digits that scikit-learn ships", find_digits, load_digits),
        Form("idx", "the IDX files (train-images-idx3-ubyte.gz, …)", find_idx, load_idx),
        Form("npz", "test.npz or train.npz", find_npz, load_npz),
        Form("parquet", "test.parquet or train.parquet", find_parquet, load_parquet),
        Form("folders", "a folder of JPEG or PNG files per class", find_split_folder, load_folders),
    )
}
"""Table of file formats, by name."""


def load_images(
    name: str | DatasetSpec,
    *,
    form: str | None = None,
    path: Path | str | None = None,
    split: Split = "test",
    verify: bool = True,
    count: int | None = None,
    seed: int = 0,
    image_size: int | None = None,
    resize: Resize | None = None,
) -> ImageSet:
    """Load a split of a dataset in `DATASETS`, of a custom dataset (`specs.custom_dataset`), or of files at a path.

    With a path, names outside `DATASETS` are allowed, too: then the number of classes and the image size (unless
    `image_size` is set) are taken from the files. `resize` applies to all images of class folders and Parquet files,
    which may have any size. `count` selects a class-stratified subset (see `select`); for class folders, only
    this subset is decoded.

    `form` is one of the dataset's forms; None tries all of them. `path` is a file, the folder of the images or its
    parent; None searches the data folder (`ROBUST201_DATA`). `verify` checks published checksums, sizes and counts.

    Returns:
        Images (N, C, H, W) uint8, C-contiguous; `indices` are their positions in the full split.

    Raises:
        ConfigError: the dataset or its form does not exist, or `image_size` or `resize` is invalid or not allowed.
        DatasetError: images are missing, damaged, or have the wrong form, size or labels; or `count` is out of range.
    """
    path = None if path is None else Path(path)
    spec = _find_spec(name, path, image_size, resize)
    if form is not None and form not in spec.forms:
        raise ConfigError(
            f"Looking up a file form failed for {spec.name}: expected one of {', '.join(spec.forms)}, got {form!r}."
            f"{did_you_mean(form, spec.forms)}"
        )
    candidates = [FORMS[form_name] for form_name in (spec.forms if form is None else [form])]
    root = data_folder() if path is None else path
    for candidate in candidates:
        for folder in dict.fromkeys((root, root / spec.name, root / spec.folder_name)):
            source = candidate.find(spec, folder, split)
            if source is not None:
                return _make_image_set(spec, candidate.load(spec, source, split, verify=verify), count, seed)
    expected = "; or ".join(f"{candidate.files} ({candidate.name})" for candidate in candidates)
    got = "none of these" if root.exists() else "no such file or folder"
    fetch_advice = f"Run `robust201 fetch {spec.folder_name}`, or " if spec.folder_name in downloads() else ""
    path_advice = f"set {DATA_VARIABLE} to the folder of the images." if path is None else "correct the path."
    advice = fetch_advice + path_advice
    raise DatasetError(
        f"Loading the {split} images of {spec.name} failed for {root}: expected {expected}, got {got}. "
        f"{advice[0].upper()}{advice[1:]}"
    )


def _find_spec(
    name: str | DatasetSpec,
    path: Path | None,
    image_size: int | None,
    resize: Resize | None,
) -> DatasetSpec:
    if isinstance(name, str) and name not in DATASETS and path is not None:
        return custom_dataset(name, image_size=image_size or UNKNOWN_COUNT, resize=resize)
    spec = dataset(name) if isinstance(name, str) else name
    if (image_size, resize) != (None, None):
        raise ConfigError(
            f"Loading images failed for {spec.name}: `image_size` and `resize` are only for custom images. Remove them."
        )
    return spec


def _make_image_set(spec: DatasetSpec, loaded: LabelledImages | ImageFiles, count: int | None, seed: int) -> ImageSet:
    class_names = loaded.class_names if isinstance(loaded, ImageFiles) else ()
    n_classes = spec.n_classes or len(class_names) or int(loaded.labels.max()) + 1
    rows = None if count is None else select_rows(loaded.labels, n_classes, count=count, seed=seed, name=spec.name)
    if isinstance(loaded, ImageFiles):
        images = loaded.decode(rows)
    else:
        images = np.ascontiguousarray(loaded.images if rows is None else loaded.images[rows])
    indices = np.arange(len(loaded.labels), dtype=np.int64) if rows is None else rows
    labels = loaded.labels[indices]
    return ImageSet(
        dataset=spec.name,
        images=images,
        labels=labels,
        indices=indices,
        n_classes=n_classes,
        normalisation=spec.normalisation,
        sha256=image_hash(images, labels, indices),
        class_names=class_names,
        n_split=len(loaded.labels),
    )
