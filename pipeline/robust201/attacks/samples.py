"""The samples of an attack: images with labels and random numbers, and a ball around each image."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.attacks.random_numbers import ImageShape, RandomNumbers
from robust201.networks.device import copy_to_device


@dataclass(frozen=True)
class Samples:
    """Images that are attacked together; the same image may occur at several strengths.

    Attributes:
        clean: (B, C, H, W) float32 in [0, 1].
        labels: (B,) int64.
        radii: (B,) float64, on the host; the radius of each sample's ball for pixels in [0, 1], or the strength if the
            attack has no ball.
        image_numbers: (B,) int64, on the host; number of each sample's image, equal for samples of the same image.
        indices: (B,) int64, on the host; position of each sample's image in the dataset's full split, which identifies
            its random numbers.
        random_numbers: source of random numbers.
        run: number of the run, from 0. A targeted attack has one or several runs per target.
    """

    clean: torch.Tensor
    labels: torch.Tensor
    radii: NDArray[np.float64]
    image_numbers: NDArray[np.int64]
    indices: NDArray[np.int64]
    random_numbers: RandomNumbers
    run: int = 0

    def __len__(self) -> int:
        return len(self.radii)

    @property
    def shape(self) -> ImageShape:
        """Channels, height and width of an image."""
        channels, height, width = self.clean.shape[1:]
        return channels, height, width

    @cached_property
    def epsilons(self) -> torch.Tensor:
        """Radii of the balls, (B, 1, 1, 1) float32."""
        return self.per_sample(self.radii)

    def per_sample(self, values: NDArray[np.float64]) -> torch.Tensor:
        """Return a number per sample (B,), such as a multiple of `radii`, as (B, 1, 1, 1) float32 on the device.

        The numbers are rounded once, as in Foolbox and AutoAttack, which pass Python numbers to torch.
        """
        return self.on_device(torch.from_numpy(values).float()).view(-1, 1, 1, 1)

    def on_device(self, values: torch.Tensor) -> torch.Tensor:
        """Copy values from the host to the samples' device, without waiting for the copy."""
        return copy_to_device(values, self.clean.device)

    def uniforms(self) -> torch.Tensor:
        """Draw numbers that are uniform in [0, 1): (B, C, H, W) float32."""
        return self.on_device(self.random_numbers.uniforms(self.run, self.indices, self.shape))

    def normals(self, n_values: int) -> torch.Tensor:
        """Draw standard normal numbers: (B, n_values) float32."""
        return self.on_device(self.random_numbers.normals(self.run, self.indices, n_values))

    def take(self, rows: NDArray[np.int64], run: int | None = None) -> "Samples":
        """Return the samples in `rows`, with the run number `run` if it is set."""
        run = self.run if run is None else run
        clean, labels = self.clean, self.labels
        if len(rows) < len(self):
            device_rows = torch.from_numpy(rows).to(clean.device)
            clean, labels = clean.index_select(0, device_rows), labels[device_rows]
        return Samples(
            clean, labels, self.radii[rows], self.image_numbers[rows], self.indices[rows], self.random_numbers, run
        )

    def unique_images(self) -> tuple["Samples", torch.Tensor]:
        """Return one sample per image, in order of appearance, and for each sample the row of its image: (B,) int64."""
        _, first_samples, inverse = np.unique(self.image_numbers, return_index=True, return_inverse=True)
        order = np.argsort(first_samples)
        return self.take(first_samples[order]), torch.from_numpy(np.argsort(order)[inverse]).to(self.clean.device)
