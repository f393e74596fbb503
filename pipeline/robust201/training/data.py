"""Batches of training data, as NumPy arrays. Images are uint8. The training loop augments and normalises them.

Robust images contain only features that a robust network uses (see `training.robust_features`); natural images come
from an ordinary dataset.
"""

from collections.abc import Iterator
from math import ceil
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
from robust201.core.records import NO_NORMALISATION, ImageSet, Normalisation
from robust201.images.fusion import LabelFrom, blend, check_same_size, exact_fraction
from robust201.training.draws import epoch_random_words


class Batch(NamedTuple):
    """Images (B, channels, H, W) uint8 of one training step, their labels (B,) and their ids (B,), both int64.

    Ids are below `TrainingData.n_ids` and unique within an epoch. They determine the random numbers of augmentation.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    ids: NDArray[np.int64]


class TrainingData(Protocol):
    """Batches of images, in an order that depends only on seed and epoch.

    Attributes:
        name: name in messages, such as ``cifar10``.
        n_classes: number of classes.
        n_images: number of images per epoch.
        n_ids: exclusive upper bound of the images' ids.
        normalisation: per-channel mean and standard deviation.
    """

    name: str
    n_classes: int
    n_images: int
    n_ids: int
    normalisation: Normalisation

    def identity(self) -> Any:
        """Return a JSON value that identifies the data. Equal values mean equal batches."""

    def n_batches(self, batch_size: int) -> int:
        """Return the number of batches per epoch. Only the last one may be smaller than the batch size."""
        return ceil(self.n_images / batch_size)

    def batches(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch. Epochs are counted from 0."""


class OneSource(TrainingData):
    """All images of one set. Each image occurs once per epoch, in a different order in each epoch."""

    def __init__(self, images: ImageSet) -> None:
        self._images = images
        self.name = images.dataset
        self.n_classes = images.n_classes
        self.n_images = self.n_ids = len(images)
        self.normalisation = images.normalisation

    def identity(self) -> Any:
        return {"images": self._images.sha256, "normalisation": _channel_statistics(self.normalisation)}

    def batches(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        order = _shuffled_rows(seed, epoch, len(self._images))
        for start in range(0, len(order), batch_size):
            ids = order[start : start + batch_size]
            yield Batch(self._images.images[ids], self._images.labels[ids], ids)


class Mixture(TrainingData):
    """Batches in which a fraction alpha of the images is robust and the rest natural (docs/training-data.md).

    A batch of B images has floor((1 - alpha) B) natural images, followed by ceil(alpha B) robust ones. An epoch has as
    many images as the natural set. Its last batch may be smaller, with the same fractions. No image occurs twice in
    an epoch, and both sets are shuffled again for every epoch. Ids of robust images follow the ids of natural images.
    With alpha 0, batches equal the batches of `OneSource(natural)`.

    Raises:
        DatasetError: the sets differ in the number of classes or in image size.
        ConfigError: alpha is out of range.
    """

    def __init__(self, natural: ImageSet, robust: ImageSet, alpha: float) -> None:
        self._fraction = exact_fraction(alpha)
        formats = [(images.n_classes, images.images.shape[1:]) for images in (natural, robust)]
        if formats[0] != formats[1]:
            raise DatasetError(
                f"Mixing {robust.dataset} into {natural.dataset} failed: expected {formats[0][0]} classes "
                f"and images of shape {formats[0][1]}, got {formats[1][0]} and {formats[1][1]}. Choose other "
                "images."
            )
        self._natural, self._robust, self._alpha = natural, robust, float(alpha)
        self.name = f"{natural.dataset} with a fraction {alpha:g} of images from {robust.dataset}"
        self.n_classes = natural.n_classes
        self.normalisation = natural.normalisation
        self.n_images = len(natural)
        # Augmentation depends on `n_ids`, so without robust images it must equal the natural set's `n_ids`.
        self.n_ids = len(natural) + (len(robust) if self._fraction else 0)

    def identity(self) -> dict[str, Any]:
        mixture = {"natural": self._natural.sha256, "robust": self._robust.sha256, "alpha": self._alpha}
        return {"mixture": mixture, "normalisation": _channel_statistics(self.normalisation)}

    def n_batches(self, batch_size: int) -> int:
        """Return the number of batches per epoch.

        Raises:
            DatasetError: there are too few robust images. An epoch may need more robust images than the fraction alpha,
                because their number in each batch is rounded up.
        """
        n_batches = super().n_batches(batch_size)
        last_size = self.n_images - (n_batches - 1) * batch_size
        n_robust = (n_batches - 1) * self._count_robust(batch_size) + self._count_robust(last_size)
        if n_robust > len(self._robust):
            raise DatasetError(
                f"Mixing {self._robust.dataset} into {self._natural.dataset} failed for alpha {self._alpha}: an "
                f"epoch of {self.n_images:,} images needs {n_robust:,} robust ones, and there are only "
                f"{len(self._robust):,}. Lower alpha, or create more robust images."
            )
        return n_batches

    def batches(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch (see `TrainingData`), with natural images before robust ones."""
        self.n_batches(batch_size)  # raises DatasetError if there are too few robust images
        natural_order = _shuffled_rows(seed, epoch, len(self._natural))
        robust_order = _shuffled_rows(seed, epoch, len(self._robust), "order of robust images")
        n_robust_before = 0
        for start in range(0, self.n_images, batch_size):
            size = min(batch_size, self.n_images - start)
            n_robust = self._count_robust(size)
            n_natural_before = start - n_robust_before
            natural = natural_order[n_natural_before : n_natural_before + size - n_robust]
            robust = robust_order[n_robust_before : n_robust_before + n_robust]
            n_robust_before += n_robust
            yield Batch(
                np.concatenate([self._natural.images[natural], self._robust.images[robust]]),
                np.concatenate([self._natural.labels[natural], self._robust.labels[robust]]),
                np.concatenate([natural, robust + len(self._natural)]),
            )

    def _count_robust(self, size: int) -> int:
        """Return the number of robust images in a batch of `size` images.

        The arithmetic is exact. With floats, 0.55 * 100 exceeds 55 and would be rounded up to 56.
        """
        return ceil(self._fraction * size)


class Fusion(TrainingData):
    """Blends of two sets of images (see `images.fusion.blend`), with new pairs in every epoch.

    In each epoch, both sets are shuffled, and images at equal positions are paired. The epoch ends when the smaller set
    is exhausted, so epochs use different images of the larger set. Pairs depend on neither `label` (the set whose
    labels and classes are used) nor alpha (the weight of the first set's pixels), so training with the labels of either
    set uses the same images. Ids are positions in the first set. By default, blends are not normalised, as in Kunhardt,
    Deza and Poggio (2021), because they belong to neither dataset.

    Raises:
        DatasetError: the sets differ in image size.
        ConfigError: alpha is out of range.
    """

    def __init__(
        self,
        first: ImageSet,
        second: ImageSet,
        alpha: float = 0.5,
        label: LabelFrom = "first",
        normalisation: Normalisation = NO_NORMALISATION,
    ) -> None:
        exact_fraction(alpha)
        check_same_size(first, second)
        self._first, self._second, self._alpha, self._label = first, second, float(alpha), label
        self.name = f"{first.dataset} blended with {second.dataset}"
        self.n_classes = (first if label == "first" else second).n_classes
        self.normalisation = normalisation
        self.n_images = min(len(first), len(second))
        self.n_ids = len(first)

    def identity(self) -> dict[str, Any]:
        fusion = {
            "first": self._first.sha256,
            "second": self._second.sha256,
            "alpha": self._alpha,
            "label": self._label,
        }
        return {"fusion": fusion, "normalisation": _channel_statistics(self.normalisation)}

    def batches(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        first_order = _shuffled_rows(seed, epoch, len(self._first), "order of first images")
        second_order = _shuffled_rows(seed, epoch, len(self._second), "order of second images")
        for start in range(0, self.n_images, batch_size):
            rows = slice(start, min(start + batch_size, self.n_images))
            first, second = first_order[rows], second_order[rows]
            pixels = blend(self._first.images[first], self._second.images[second], self._alpha)
            labels = self._first.labels[first] if self._label == "first" else self._second.labels[second]
            yield Batch(pixels, labels, first)


def _channel_statistics(normalisation: Normalisation) -> list[float]:
    return [*normalisation.mean, *normalisation.std]


def _shuffled_rows(seed: int, epoch: int, count: int, purpose: str = "order") -> NDArray[np.int64]:
    """Return the integers below `count`, shuffled with the random stream for `purpose`."""
    return np.argsort(epoch_random_words(seed, epoch, purpose, count), kind="stable")
