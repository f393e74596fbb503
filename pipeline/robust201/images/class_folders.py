"""Folders of JPEG or PNG files, one folder per class, in the order of torchvision's `ImageFolder`.

Classes are numbered in the order of their folders' names, as text or as numbers (`DatasetSpec.class_order`), unless a
file `labels.json` next to the folders numbers them.
This file is a JSON object that maps the name of each folder to its label, so that, for example, ten classes of ImageNet
can have the labels that they have among all thousand classes. Hidden files and folders and files without the suffix of
an image are ignored. Images other than JPEG and PNG are rejected instead of ignored, because torchvision reads them.
"""

import json
import os
import re
import reprlib
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError, RobustWarning, one_line
from robust201.core.files import MAX_JSON_BYTES, read_file
from robust201.core.records import MAX_CLASSES, Split
from robust201.images.checks import check_count, check_labels
from robust201.images.decoding import ImageDecoder
from robust201.images.specs import DatasetSpec

CLASS_NUMBERS_FILE = "labels.json"

_SUPPORTED_SUFFIXES = (".jpg", ".jpeg", ".png")
_UNSUPPORTED_SUFFIXES = (".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
_MAX_FILE_BYTES = 256 << 20
_SPLIT_FOLDERS: dict[Split, tuple[str, ...]] = {"test": ("test", "val"), "train": ("train",)}


@dataclass(frozen=True)
class ImageFiles:
    """Labelled image files, decoded on demand.

    Attributes:
        files: N paths in torchvision's order.
        labels: (N,) int64.
        class_names: class names by label; empty if `labels.json` gives the labels.
        decoder: decoder of the files.
    """

    files: tuple[Path, ...]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    decoder: ImageDecoder

    def decode(self, rows: NDArray[np.int64] | None) -> NDArray[np.uint8]:
        """Decode the images of some rows (None: all) to (n, C, H, H) uint8."""
        files = self.files if rows is None else [self.files[row] for row in rows]
        return self.decoder.decode_all(((str(file), partial(_read_image, file)) for file in files), len(files))


def find_split_folder(spec: DatasetSpec, root: Path, split: Split) -> Path | None:
    """Return the folder that contains the class folders, or None.

    For the test split, it is `test` or `val` in `root`, or `root` itself. For the training split, it is `train` in
    `root`.
    """
    candidates = [root / folder_name for folder_name in _SPLIT_FOLDERS[split]] + ([root] if split == "test" else [])
    return next((folder for folder in candidates if _has_classes(folder)), None)


def load_folders(spec: DatasetSpec, path: Path, split: Split, *, verify: bool) -> ImageFiles:
    """Return the image files of class folders with their labels.

    `verify` checks the number of images.

    Raises:
        DatasetError: a class folder has no images or images of another format, the number of class folders is not the
            dataset's number of classes, `labels.json` does not number every class, or names without a number have no
            numeric order.

    Warns:
        RobustWarning: see `_order_classes`.
    """
    class_names = _class_names(path)
    labels_by_name = _read_labels(path, class_names)
    if labels_by_name is None:
        class_names = _order_classes(path, class_names, spec.class_order)
    elif spec.class_order is not None:
        raise DatasetError(
            f"Reading labels failed for {path}: {CLASS_NUMBERS_FILE} and a class order both number the class folders. "
            "Remove one of them."
        )
    if labels_by_name is None and spec.n_classes not in {0, len(class_names)}:
        raise DatasetError(
            f"Reading images failed for {path}: expected {spec.n_classes:,} class folders, one per class, got "
            f"{len(class_names):,}. Correct the number of classes, or number the folders in "
            f"{path / CLASS_NUMBERS_FILE}."
        )
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(class_names):
        class_files = _list_images(path / name)
        files += class_files
        labels += [label if labels_by_name is None else labels_by_name[name]] * len(class_files)
    if verify:
        check_count(path, len(files), spec, split)
    label_array = np.array(labels, np.int64)
    check_labels(path, label_array, spec.n_classes or MAX_CLASSES)
    return ImageFiles(tuple(files), label_array, class_names if labels_by_name is None else (), ImageDecoder(spec))


def _has_classes(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    return any(next(_iter_images(folder / name), None) is not None for name in _class_names(folder))


def _class_names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "."))


def _order_classes(folder: Path, names: tuple[str, ...], order: str | None) -> tuple[str, ...]:
    """Return the names of class folders, which are sorted as text, in an order.

    Warns:
        RobustWarning: no order is given, and all names are numbers, in another order than that of text.
    """
    unsuitable_names = [name for name in names if not re.fullmatch("[0-9]+", name)]
    if order == "text" or (order is None and unsuitable_names):
        return names
    if unsuitable_names:
        raise DatasetError(
            f"Reading labels failed for {folder}: expected class folders named by numbers, since their order is "
            f"numeric, got {unsuitable_names[0]!r}. Rename the folder, or sort the folders as text."
        )
    numeric_names = tuple(sorted(names, key=int))
    if order == "numeric":
        return numeric_names
    if numeric_names != names:
        label = next(label for label, name in enumerate(names) if name != numeric_names[label])
        warnings.warn(
            f"{folder}: class folders are sorted as text, so label {label} is folder {names[label]}, not folder "
            f"{numeric_names[label]}. Set the class order: numeric for numbers, text to keep it.",
            RobustWarning,
            stacklevel=2,
        )
    return names


def _list_images(folder: Path) -> list[Path]:
    files = list(_iter_images(folder))
    if not files:
        raise DatasetError(
            f"Reading images failed for {folder}: this class folder has no JPEG or PNG file. Add images or remove it."
        )
    unsupported_file = next((file for file in files if file.suffix.lower() in _UNSUPPORTED_SUFFIXES), None)
    if unsupported_file is not None:
        raise DatasetError(
            f"Reading images failed for {unsupported_file}: it is neither JPEG nor PNG. Convert or remove it."
        )
    return files


def _iter_images(folder: Path) -> Iterator[Path]:
    """Yield the image files of a folder and its subfolders in torchvision's order, each file once.

    Links are followed, except those that lead to another path of the same file or folder, or to a folder around this
    one, whose images belong to other classes.
    """
    visited = set()
    for parent, real_parent, file_names in sorted(_walk(folder)):
        for file_name in sorted(file_names):
            if file_name[0] != "." and file_name.lower().endswith(_SUPPORTED_SUFFIXES + _UNSUPPORTED_SUFFIXES):
                file = os.path.join(parent, file_name)  # noqa: PTH118 - faster than Path, for a million files
                real_file = os.path.realpath(file) if os.path.islink(file) else f"{real_parent}/{file_name}"  # noqa: PTH114
                if real_file not in visited:
                    visited.add(real_file)
                    yield Path(file)


def _walk(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the path, the real path and the names of files of a folder and of each folder below it once."""
    real_folder = folder.resolve()
    visited = set()
    for parent, subfolders, file_names in os.walk(folder, followlinks=True):
        real_parent = Path(parent).resolve()
        if real_parent in visited or real_parent in real_folder.parents:
            subfolders.clear()
            continue
        visited.add(real_parent)
        subfolders[:] = sorted(name for name in subfolders if name[0] != ".")
        yield parent, str(real_parent), file_names


def _read_labels(folder: Path, class_names: tuple[str, ...]) -> dict[str, int] | None:
    """Read the label of each class folder from `labels.json`; return None if there is no such file."""
    path = folder / CLASS_NUMBERS_FILE
    if not path.exists():
        return None
    try:
        labels_by_name = json.loads(
            read_file(path, MAX_JSON_BYTES).decode("utf-8-sig"), object_pairs_hook=_dict_with_unique_keys
        )
        if not isinstance(labels_by_name, dict):
            raise TypeError(f"a {type(labels_by_name).__name__}")  # noqa: TRY301 - the except clause writes the message
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DatasetError(
            f"Reading labels failed for {path}: the file is not a JSON object ({one_line(error)}). Correct "
            "or remove it."
        ) from error
    for name in class_names:
        label = labels_by_name.get(name)
        if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < MAX_CLASSES:
            raise DatasetError(
                f"Reading labels failed for {path}: expected a whole number from 0 to {MAX_CLASSES - 1} for the "
                f"class folder {name!r}, got {'none' if label is None else reprlib.repr(label)}. Number every class "
                "folder, or remove the file."
            )
    return {name: labels_by_name[name] for name in class_names}


def _dict_with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict, or raise ValueError for duplicate keys, because JSON readers would keep only the last value."""
    unique = dict(pairs)
    if len(unique) != len(pairs):
        duplicate = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{duplicate!r} occurs twice")
    return unique


def _read_image(file: Path) -> bytes:
    try:
        return read_file(file, _MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"Reading images failed for {file}: {one_line(error)}. Correct the file or remove it."
        ) from error
