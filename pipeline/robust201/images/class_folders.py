"""Folders of JPEG or PNG files, one folder per class, in the order of torchvision's `ImageFolder`.

Classes are numbered by the sorted names of their folders, unless a file `labels.json` next to them numbers them: a JSON
object that maps each folder's name to its label. Thus ten classes of ImageNet can keep their labels among a thousand.
Files whose names are not those of images are ignored. Images other than JPEG and PNG are rejected and not ignored,
because torchvision reads them.
"""

import json
import os
import reprlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError, one_line
from robust201.core.files import MAX_JSON_BYTES, read_file, read_text
from robust201.core.records import MAX_CLASSES, Split
from robust201.images.checks import check_count, check_labels
from robust201.images.decoding import ImageDecoder
from robust201.images.specs import DatasetSpec

CLASS_NUMBERS_FILE = "labels.json"

_SUFFIXES = (".jpg", ".jpeg", ".png")
_OTHER_IMAGES = (".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
_MAX_FILE_BYTES = 256 << 20
_SPLIT_FOLDERS: dict[Split, tuple[str, ...]] = {"test": ("test", "val"), "train": ("train",)}


@dataclass(frozen=True)
class ImageFiles:
    """Labelled image files, decoded on demand.

    Attributes:
        files: (N,) in torchvision's order.
        labels: (N,) int64.
        class_names: class names by label; empty if `labels.json` gives the labels.
    """

    files: tuple[Path, ...]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    decoder: ImageDecoder

    def decode(self, rows: NDArray[np.int64] | None) -> NDArray[np.uint8]:
        """Decode the images of the given rows, or all, to (n, C, H, H) uint8."""
        files = self.files if rows is None else [self.files[row] for row in rows]
        return self.decoder.decode_all(((str(file), partial(_read, file)) for file in files), len(files))


def find_folders(spec: DatasetSpec, root: Path, split: Split) -> Path | None:
    """Return the parent of the class folders: `test`, `val` or `train` in `root`, or for the test split `root`."""
    candidates = [root / name for name in _SPLIT_FOLDERS[split]] + ([root] if split == "test" else [])
    return next((folder for folder in candidates if _has_classes(folder)), None)


def load_folders(spec: DatasetSpec, path: Path, split: Split, *, verify: bool) -> ImageFiles:
    """Return the image files of class folders with their labels.

    `verify` checks the number of images.

    Raises:
        DatasetError: a class folder is empty or has images of another kind, the number of classes differs from the
            dataset's, or `labels.json` does not number every class.
    """
    names = _class_names(path)
    numbers = _read_numbers(path, names)
    if numbers is None and spec.n_classes not in {0, len(names)}:
        raise DatasetError(
            f"Reading images failed for {path}: expected {spec.n_classes:,} class folders, one per class, got "
            f"{len(names):,}. Correct the number of classes, or number the folders in {path / CLASS_NUMBERS_FILE}."
        )
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        images = _list_images(path / name)
        files += images
        labels += [label if numbers is None else numbers[name]] * len(images)
    if verify:
        check_count(path, len(files), spec, split)
    array = np.array(labels, np.int64)
    check_labels(path, array, spec.n_classes or MAX_CLASSES)
    return ImageFiles(tuple(files), array, names if numbers is None else (), ImageDecoder(spec))


def _has_classes(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    return any(next(_walk(folder / name), None) is not None for name in _class_names(folder))


def _class_names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()))


def _list_images(folder: Path) -> list[Path]:
    images = list(_walk(folder))
    if not images:
        raise DatasetError(
            f"Reading images failed for {folder}: this class folder has no JPEG or PNG file. Fill or remove it."
        )
    other = next((file for file in images if file.suffix.lower() in _OTHER_IMAGES), None)
    if other is not None:
        raise DatasetError(f"Reading images failed for {other}: it is neither JPEG nor PNG. Convert or remove it.")
    return images


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the images of a folder and its subfolders in torchvision's order."""
    for parent, _, names in sorted(os.walk(folder, followlinks=True)):
        for name in sorted(names):
            if name.lower().endswith(_SUFFIXES + _OTHER_IMAGES):
                yield Path(parent, name)


def _read_numbers(folder: Path, names: tuple[str, ...]) -> dict[str, int] | None:
    """Read the label of each class folder from `labels.json`; None without that file."""
    path = folder / CLASS_NUMBERS_FILE
    if not path.exists():
        return None
    try:
        numbers = json.loads(read_text(path, MAX_JSON_BYTES), object_pairs_hook=_unique)
        if not isinstance(numbers, dict):
            raise TypeError(f"a {type(numbers).__name__}")  # noqa: TRY301 - worded below
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DatasetError(
            f"Reading labels failed for {path}: the file is not a JSON object ({one_line(error)}). Correct "
            "or remove it."
        ) from error
    for name in names:
        number = numbers.get(name)
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MAX_CLASSES:
            raise DatasetError(
                f"Reading labels failed for {path}: expected a whole number from 0 to {MAX_CLASSES - 1} for the "
                f"class folder {name!r}, got {'none' if number is None else reprlib.repr(number)}. Number every class "
                "folder, or remove the file."
            )
    return {name: numbers[name] for name in names}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict; raise ValueError on duplicate keys, of which JSON readers would keep only the last."""
    numbers = dict(pairs)
    if len(numbers) != len(pairs):
        duplicate = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{duplicate!r} twice")
    return numbers


def _read(file: Path) -> bytes:
    try:
        return read_file(file, _MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"Reading images failed for {file}: expected a readable file, got {one_line(error)}. Correct or remove it."
        ) from error
