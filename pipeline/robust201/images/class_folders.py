"""Folders of JPEG or PNG files, one folder per class, in the order of torchvision's `ImageFolder`.

Classes are numbered in the order of their folders' names as text, unless a file `labels.json` next to the folders
numbers them. This file is a JSON object that maps the name of each folder to its label, so that, for example, ten
classes of ImageNet can have the labels that they have among all thousand classes. Hidden files and folders and files
without the suffix of an image are ignored. Images other than JPEG and PNG are rejected instead of ignored, because
torchvision reads most of them.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from robust201.core.errors import DatasetError, describe_read_error, one_line
from robust201.core.files import parse_unique_json
from robust201.core.records import MAX_CLASSES, Split
from robust201.images.checks import check_count, check_labels
from robust201.images.decoding import ImageDecoder
from robust201.images.specs import DatasetSpec

LABELS_FILE = "labels.json"

_SUPPORTED_SUFFIXES = (".jpg", ".jpeg", ".png")
_UNSUPPORTED_SUFFIXES = (".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
_LABELS_BY_NAME = TypeAdapter(dict[str, Annotated[int, Field(strict=True, ge=0, lt=MAX_CLASSES)]])
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

    For the test split, it is `test` or `val` in `root`, or `root` itself if it has no `train`. For the training split,
    it is `train` in `root`.
    """
    candidates = [root / folder_name for folder_name in _SPLIT_FOLDERS[split]]
    if split == "test" and not _has_classes(root / "train"):  # otherwise, `train` would be taken for a class
        candidates.append(root)
    return next((folder for folder in candidates if _has_classes(folder)), None)


def load_folders(spec: DatasetSpec, path: Path, split: Split, *, verify: bool) -> ImageFiles:
    """Return the image files of class folders with their labels.

    `verify` checks the number of images.

    Raises:
        DatasetError: a class folder has no images or has images of another format, the number of images or class
            folders is wrong, a label is out of range, or `labels.json` does not number every class.
    """
    class_names = _class_names(path)
    labels_by_name = _read_labels(path, class_names)
    if labels_by_name is None and spec.n_classes not in {0, len(class_names)}:
        raise DatasetError(
            f"Reading images failed for {path}: expected {spec.n_classes:,} class folders, one per class, got "
            f"{len(class_names):,}. Correct the number of classes, or number the folders in "
            f"{path / LABELS_FILE}."
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
    """Yield the image files of a class folder and its subfolders in torchvision's order."""
    for parent, file_names in sorted(_walk(folder)):
        if any(part[0] == "." for part in Path(parent).relative_to(folder).parts):
            continue
        for name in sorted(file_names):
            if name[0] != "." and name.lower().endswith(_SUPPORTED_SUFFIXES + _UNSUPPORTED_SUFFIXES):
                yield Path(parent, name)


def _walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield a folder and its subfolders with their files, following links that do not lead to a parent folder."""
    for parent, subfolders, file_names in os.walk(folder, followlinks=True):
        parents = {os.path.realpath(outer) for outer in (Path(parent), *Path(parent).parents)}
        subfolders[:] = [name for name in subfolders if os.path.realpath(Path(parent, name)) not in parents]
        yield parent, file_names


def _read_labels(folder: Path, class_names: tuple[str, ...]) -> dict[str, int] | None:
    """Read the label of each class folder from `labels.json`; return None if there is no such file."""
    path = folder / LABELS_FILE
    if not path.exists():
        return None
    try:
        text = path.read_text(encoding="utf-8-sig")
        labels_by_name = _LABELS_BY_NAME.validate_python(parse_unique_json(text))
        return {name: labels_by_name[name] for name in class_names}
    except (OSError, ValueError, KeyError) as error:
        raise DatasetError(
            f"Reading labels failed for {path}: expected a JSON object with a whole number from 0 to {MAX_CLASSES - 1} "
            f'for every class folder, such as {{"n01440764": 0}}, got other content ({_describe_fault(error)}). '
            "Correct or remove the file."
        ) from error


def _describe_fault(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return describe_read_error(error)
    fault = error.errors()[0]
    return one_line(": ".join([*map(str, fault["loc"]), repr(fault["input"])]))


def _read_image(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"Reading images failed for {file}: {one_line(error)}. Correct the file or remove it."
        ) from error
