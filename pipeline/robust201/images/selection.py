"""Class-stratified subsets of images."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
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
    pixels, labels, indices = images.images[rows], images.labels[rows], images.indices[rows]
    return replace(images, images=pixels, labels=labels, indices=indices, sha256=image_hash(pixels, labels, indices))


def select_rows(labels: NDArray[np.int64], n_classes: int, *, count: int, seed: int, name: str) -> NDArray[np.int64]:
    """Return the ascending rows of the class-stratified subset of images with these labels (see `select`)."""
    check_selection(count, len(labels), name)
    class_order = _permute(seed, n_classes, "image selection", "classes")
    # Images are ranked by their position within their class, then by class, so the first `count` ranks are stratified.
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
