"""Training data in batches, without torch. Images stay 8-bit; the loop augments and normalises them."""

from collections.abc import Iterator
from math import ceil
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
from robust201.core.records import NO_NORMALISATION, ImageSet, Normalisation
from robust201.images.fusion import LabelFrom, blend, check_same_size, exact_fraction
from robust201.training.draws import epoch_draws


class Batch(NamedTuple):
    """Images of one step.

    Attributes:
        pixels: (B, 3, H, W) uint8.
        labels: (B,) int64.
        ids: (B,) int64 below `TrainingData.n_ids`, unique in an epoch; augmentation is keyed by it.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    ids: NDArray[np.int64]


class TrainingData(Protocol):
    """Images in batches, in an order that depends only on seed and epoch."""

    @property
    def name(self) -> str:
        """Name for messages, such as ``cifar10``."""

    @property
    def n_classes(self) -> int:
        """Number of classes."""

    @property
    def n_images(self) -> int:
        """Number of images per epoch."""

    @property
    def n_ids(self) -> int:
        """Upper bound of the ids: one more than the largest."""

    @property
    def normalisation(self) -> Normalisation:
        """Per-channel mean and standard deviation."""

    def identity(self) -> Any:
        """Return a JSON value; equal values mean equal batches."""

    def n_batches(self, batch_size: int) -> int:
        """Return the number of batches per epoch."""

    def batches(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, counted from 0."""


class _Batched:
    """Base of data whose last batch of an epoch may be smaller."""

    n_images: int

    def n_batches(self, batch_size: int) -> int:
        return ceil(self.n_images / batch_size)


class OneSource(_Batched):
    """All images of one set, each once per epoch, reshuffled every epoch."""

    def __init__(self, images: ImageSet) -> None:
        self._images = images
        self.name = images.dataset
        self.n_classes = images.n_classes
        self.n_images = self.n_ids = len(images)
        self.normalisation = images.normalisation

    def identity(self) -> Any:
        return {"images": self._images.sha256, "normalisation": _numbers(self.normalisation)}

    def batches(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        order = _order(seed, epoch, len(self._images))
        for start in range(0, len(order), batch_size):
            ids = order[start : start + batch_size]
            yield Batch(self._images.images[ids], self._images.labels[ids], ids)


class Mixture:
    """Batches with a fraction alpha of robust images; the rest are natural ones (docs/training-data.md).

    A batch of B images has floor((1 - alpha) B) natural images, followed by ceil(alpha B) robust ones. An epoch has as
    many images as there are natural ones; its last batch, which may be smaller, follows the same rule. No image occurs
    twice in an epoch, and each source is reshuffled every epoch. Ids of robust images follow those of natural ones.
    With alpha 0, batches equal those of `OneSource(natural)`.

    Raises:
        DatasetError: the sources differ in classes or image size.
        ConfigError: alpha is out of range.
    """

    def __init__(self, natural: ImageSet, robust: ImageSet, alpha: float) -> None:
        self._fraction = exact_fraction(alpha)
        kinds = [(images.n_classes, images.images.shape[1:]) for images in (natural, robust)]
        if kinds[0] != kinds[1]:
            raise DatasetError(
                f"Mixing {robust.dataset} into {natural.dataset} failed: expected {kinds[0][0]} classes and "
                f"images {kinds[0][1]}, got {kinds[1][0]} and {kinds[1][1]}. Mix images of the same kind."
            )
        self._natural, self._robust, self._alpha = natural, robust, float(alpha)
        self.name = f"{natural.dataset} with {alpha:g} of {robust.dataset}"
        self.n_classes = natural.n_classes
        self.normalisation = natural.normalisation
        self.n_images = len(natural)
        # Augmentation depends on it, so without robust images it must equal the natural source's.
        self.n_ids = len(natural) + (len(robust) if self._fraction else 0)

    def identity(self) -> dict[str, Any]:
        mixture = {"natural": self._natural.sha256, "robust": self._robust.sha256, "alpha": self._alpha}
        return {"mixture": mixture, "normalisation": _numbers(self.normalisation)}

    def n_batches(self, batch_size: int) -> int:
        """Return the number of batches per epoch.

        Raises:
            DatasetError: there are too few robust images; rounding up may need one more per batch than the fraction.
        """
        n_batches = ceil(self.n_images / batch_size)
        last = self.n_images - (n_batches - 1) * batch_size
        n_robust = (n_batches - 1) * self._count_robust(batch_size) + self._count_robust(last)
        if n_robust > len(self._robust):
            raise DatasetError(
                f"Mixing {self._robust.dataset} into {self._natural.dataset} failed for alpha {self._alpha}: expected "
                f"{n_robust:,} robust images or more for an epoch of {self.n_images:,}, got {len(self._robust):,}. "
                "Lower alpha, or create more robust images."
            )
        return n_batches

    def batches(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch (see `TrainingData`), with natural images before robust ones."""
        self.n_batches(batch_size)  # raises if there are too few images
        natural_order = _order(seed, epoch, len(self._natural))
        robust_order = _order(seed, epoch, len(self._robust), "order of robust images")
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
        """Return the number of robust images of a batch, in exact arithmetic: as floats, 0.55 x 100 is above 55."""
        return ceil(self._fraction * size)


class Fusion(_Batched):
    """Blends of two sets of images (see `images.fusion.blend`), with new pairs in every epoch.

    Both sets are shuffled each epoch and paired in that order. The epoch ends with the smaller set, so each epoch uses
    other images of the larger one. Pairs depend on neither `label` nor alpha, so both tasks use the same images.
    Ids are the rows of the first set.

    Args:
        alpha: weight of the first set's pixels.
        label: set whose labels and classes are used.
        normalisation: none by default, as in the study, because the blends belong to neither dataset.

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
        return {"fusion": fusion, "normalisation": _numbers(self.normalisation)}

    def batches(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        first_order = _order(seed, epoch, len(self._first), "order of first images")
        second_order = _order(seed, epoch, len(self._second), "order of second images")
        for start in range(0, self.n_images, batch_size):
            rows = slice(start, min(start + batch_size, self.n_images))
            first, second = first_order[rows], second_order[rows]
            pixels = blend(self._first.images[first], self._second.images[second], self._alpha)
            labels = self._first.labels[first] if self._label == "first" else self._second.labels[second]
            yield Batch(pixels, labels, first)


def _numbers(normalisation: Normalisation) -> list[float]:
    return [*normalisation.mean, *normalisation.std]


def _order(seed: int, epoch: int, count: int, of: str = "order") -> NDArray[np.int64]:
    """Return the numbers below `count`, shuffled with the random stream named `of`."""
    return np.argsort(epoch_draws(seed, epoch, of, count), kind="stable")
