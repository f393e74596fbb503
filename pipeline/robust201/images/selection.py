"""Selections of images: class-stratified subsets, and images whose positions are listed in a file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError, one_line
from robust201.core.files import load_json
from robust201.core.noise import generator
from robust201.core.records import ImageSet, image_hash


def select(images: ImageSet, *, count: int, seed: int) -> ImageSet:
    """Select a class-stratified subset with ascending indices.

    The numbers of images per class differ by at most one, unless a class has too few images. The seed determines the
    images of each class, and the classes that contribute an extra image. Equal arguments give the same subset on every
    platform, and with the same seed a larger subset contains the smaller one.

    Raises:
        DatasetError: `count` is below 1 or above the number of images.
    """
    rows = select_rows(images.labels, images.n_classes, count=count, seed=seed, name=images.dataset)
    return _take_rows(images, rows)


def _take_rows(images: ImageSet, rows: NDArray[np.int64]) -> ImageSet:
    pixels, labels, indices = images.images[rows], images.labels[rows], images.indices[rows]
    return replace(images, images=pixels, labels=labels, indices=indices, sha256=image_hash(pixels, labels, indices))


def select_rows(labels: NDArray[np.int64], n_classes: int, *, count: int, seed: int, name: str) -> NDArray[np.int64]:
    """Return the ascending rows of the class-stratified subset of images with these labels (see `select`)."""
    check_selection(count, len(labels), name)
    class_order = _permute(seed, n_classes, "image selection", "classes")
    # Ranks order images by position in their shuffled class, then by class, so the first `count` ranks are stratified.
    ranks = np.empty(len(labels), np.int64)
    for class_position, label in enumerate(class_order):
        members = np.flatnonzero(labels == label)
        members = members[_permute(seed, len(members), "image selection", int(label))]
        ranks[members] = np.arange(len(members)) * n_classes + class_position
    return np.sort(np.argsort(ranks, kind="stable")[:count])


def check_selection(count: int, n_images: int, name: str) -> None:
    """Check that `count` images can be selected (see `select`)."""
    if not 1 <= count <= n_images:
        raise DatasetError(
            f"Selecting images failed for {name}: expected a count from 1 to {n_images:,}, got {count:,}. Correct the "
            "count of images."
        )


def _permute(seed: int, count: int, *names: str | int) -> NDArray[np.int64]:
    """Return a permutation of `range(count)` that is the same for every version of NumPy.

    The seed and `names` select the stream of random numbers (see `core.noise.generator`). NumPy guarantees the raw
    stream of a bit generator, but not the results of `permutation`.
    """
    random_numbers = generator(seed, *names).bit_generator.random_raw(count)
    return np.argsort(random_numbers, kind="stable")


def select_listed(images: ImageSet, path: Path) -> ImageSet:
    """Return the images of a full split whose positions a file lists, in ascending order.

    Args:
        images: all images of the split.
        path: a .npy file of integers, or a JSON file: a list of integers, or an object with such a list as `images`.

    Raises:
        DatasetError: the file cannot be read, is empty, or its positions are not distinct integers within the split.
    """
    return _take_rows(images, read_positions(path, len(images)))


def read_positions(path: Path, n_images: int) -> NDArray[np.int64]:
    """Return the positions that a file lists, in ascending order (see `select_listed`)."""
    from robust201.core.arrays import read_npy

    try:
        positions = read_npy(path) if path.suffix == ".npy" else _parse_list(load_json(path))
    except (OSError, ValueError, OverflowError) as error:
        raise _positions_error(path, n_images, one_line(error)) from error
    if positions.ndim != 1 or positions.dtype.kind not in "iu" or not len(positions):
        raise _positions_error(path, n_images, f"{positions.dtype} {positions.shape}")
    if positions.min() < 0 or positions.max() >= n_images:
        raise _positions_error(path, n_images, f"{positions.min()} to {positions.max()}")
    distinct, counts = np.unique(positions, return_counts=True)
    if len(distinct) < len(positions):
        raise _positions_error(path, n_images, f"{distinct[counts > 1][0]} twice")
    return distinct.astype(np.int64)


def _parse_list(content: Any) -> NDArray[Any]:
    positions = content.get("images") if isinstance(content, dict) else content
    if not isinstance(positions, list) or not all(type(position) is int for position in positions):
        raise ValueError("a JSON file without a list of integers")
    return np.array(positions, dtype=np.int64)


def _positions_error(path: Path, n_images: int, got: str) -> DatasetError:
    return DatasetError(
        f"Choosing images failed for {path}: expected distinct positions of test images, 0 to {n_images - 1:,}, got "
        f"{got}. Correct the file."
    )
