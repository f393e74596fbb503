"""What a network is trained on, batch by batch: no torch.

Images stay 8-bit; augmentation and normalisation are the loop's.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import ImageSet, Normalisation
from robust201.training.draws import epoch_draws


class Batch(NamedTuple):
    """Images of one step.

    Attributes:
        pixels: (B, 3, H, W) uint8.
        labels: (B,) int64.
        ids: (B,) int64 below `TrainingData.n_ids`, each image's own in its epoch: augmentation is drawn by it.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    ids: NDArray[np.int64]


class TrainingData(Protocol):
    """Images in batches, in an order that depends on seed and epoch alone."""

    @property
    def name(self) -> str:
        """What messages call it, such as ``cifar10``."""
        ...

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        ...

    @property
    def n_ids(self) -> int:
        """One more than the largest id of an epoch."""
        ...

    @property
    def image_size(self) -> int:
        """Height and width of the images."""
        ...

    @property
    def normalisation(self) -> Normalisation:
        """Per-channel mean and standard deviation."""
        ...

    def identity(self) -> Any:
        """Give a JSON value that is equal where all batches are."""
        ...

    def n_batches(self, batch_size: int) -> int:
        """Count the batches of an epoch."""
        ...

    def batches(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        """Give the batches of an epoch, counted from 0."""
        ...


class OneSource:
    """All images of one set, each once in an epoch, shuffled anew for each."""

    def __init__(self, images: ImageSet) -> None:
        self._images = images
        self.name = images.dataset
        self.n_classes = images.n_classes
        self.n_ids = len(images)
        self.image_size = images.images.shape[-1]
        self.normalisation = images.normalisation

    def identity(self) -> Any:
        """Hash of the images, and what they are normalised with."""
        return {"images": self._images.sha256, "normalisation": [*self.normalisation.mean, *self.normalisation.std]}

    def n_batches(self, batch_size: int) -> int:
        """Count the batches of an epoch; the last may be short."""
        return -(-len(self._images) // batch_size)

    def batches(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        """Give the batches of an epoch (see `TrainingData`); an id is the image's position in the set."""
        order = np.argsort(epoch_draws(seed, epoch, "order", len(self._images)), kind="stable")
        for start in range(0, len(order), batch_size):
            ids = order[start : start + batch_size]
            yield Batch(self._images.images[ids], self._images.labels[ids], ids)
