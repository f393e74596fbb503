"""Augmentation of a batch on its device (formulas and sources: docs/protocol/training.md).

Random numbers depend only on seed, epoch, purpose, image and number of ids, so an image's do not depend on its batch.
Colours and resampling are computed in float32 on pixels in [0, 1], without intermediate rounding to 8 bits.
"""

import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.networks.device import copy_to_device
from robust201.training.draws import epoch_random_words, uniform
from robust201.training.recipes import Augmentation

_GREY = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in the grey value (ITU-R BT.601), with the same digits as in torchvision."""

_BRIGHTNESS, _CONTRAST = 0, 1  # indices of two adjustments; the index of saturation is 2

_JITTER_ORDERS = np.array(list(itertools.permutations(range(3))))
"""(6, 3): the possible orders of brightness, contrast and saturation."""


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device, without waiting for a GPU."""
    return copy_to_device(torch.from_numpy(np.ascontiguousarray(array)), device)


class Augmenter:
    """Augments the images of one training run.

    An image's id, an integer from 0 to `n_ids` - 1, selects its random numbers.
    """

    def __init__(self, augmentation: Augmentation, *, n_ids: int, seed: int, device: torch.device) -> None:
        self._augmentation = augmentation
        self._n_ids = n_ids
        self._seed = seed
        self._device = device

    def __call__(self, pixels: NDArray[np.uint8], ids: NDArray[np.int64], epoch: int) -> torch.Tensor:
        """Augment (B, channels, H, W) uint8 images with the random numbers of their ids; return float32 in [0, 1]."""
        images = to_device(pixels, self._device)
        if self._augmentation.flip or self._augmentation.crop_padding:
            images = self._flip_and_crop(images, ids, epoch)
        images = images.float() / 255
        if self._augmentation.jitter:
            images = self._jitter(images, ids, epoch)
        if self._augmentation.rotate_degrees or self._augmentation.translate:
            images = self._rotate_and_translate(images, ids, epoch)
        return images

    def _random_words(self, purpose: str, ids: NDArray[np.int64], epoch: int, count: int) -> NDArray[np.uint64]:
        """Return `count` random words per image: (count, B)."""
        words = epoch_random_words(self._seed, epoch, purpose, count * self._n_ids)
        return words.reshape(count, self._n_ids)[:, ids]

    def _flip_and_crop(self, images: torch.Tensor, ids: NDArray[np.int64], epoch: int) -> torch.Tensor:
        if self._augmentation.flip:
            is_mirrored = self._random_words("flip", ids, epoch, 1)[0] % 2 == 1
            images = torch.where(to_device(is_mirrored, self._device).view(-1, 1, 1, 1), images.flip(3), images)
        padding = self._augmentation.crop_padding
        if padding:
            offsets = (self._random_words("crop", ids, epoch, 2) % (2 * padding + 1)).astype(np.int64)
            windows = torch.nn.functional.pad(images, (padding,) * 4)
            for axis in (2, 3):
                windows = windows.unfold(axis, images.shape[axis], 1)
            row_offsets, column_offsets = to_device(offsets, self._device)
            images = windows[torch.arange(len(images), device=self._device), :, row_offsets, column_offsets]
        return images

    def _jitter(self, images: torch.Tensor, ids: NDArray[np.int64], epoch: int) -> torch.Tensor:
        """Blend images with black (brightness), their mean grey (contrast) and their grey image (saturation).

        The order is random.
        """
        words = self._random_words("jitter", ids, epoch, 4)
        factors = (1 + self._augmentation.jitter * (2 * uniform(words[:3]) - 1)).astype(np.float32)
        orders = _JITTER_ORDERS[(words[3] % len(_JITTER_ORDERS)).astype(np.int64)]
        weights = torch.tensor(_GREY, device=images.device).view(1, 3, 1, 1)
        for adjustment_indices in orders.T:
            factor = to_device(factors[adjustment_indices, np.arange(len(ids))], self._device).view(-1, 1, 1, 1)
            adjustment = to_device(adjustment_indices, self._device).view(-1, 1, 1, 1)
            grey = (images * weights).sum(dim=1, keepdim=True)
            mean_grey = grey.mean(dim=(2, 3), keepdim=True)
            blend_partner = torch.where(adjustment == _CONTRAST, mean_grey, grey).masked_fill(
                adjustment == _BRIGHTNESS, 0
            )
            images = (factor * images + (1 - factor) * blend_partner).clamp(0, 1)
        return images

    def _rotate_and_translate(self, images: torch.Tensor, ids: NDArray[np.int64], epoch: int) -> torch.Tensor:
        augmentation = self._augmentation
        offsets = 2 * uniform(self._random_words("affine", ids, epoch, 3)) - 1
        return resample(
            images,
            offsets[0] * augmentation.rotate_degrees,
            offsets[1:] * augmentation.translate,
            augmentation.interpolation == "bilinear",
        )


def resample(
    images: torch.Tensor, degrees: NDArray[np.float64], shifts: NDArray[np.float64], is_bilinear: bool
) -> torch.Tensor:
    """Rotate images about their centre and translate them in a single resampling; pixels outside the image are black.

    Args:
        images: (B, C, H, W) float32.
        degrees: (B,) counterclockwise.
        shifts: (2, B) pixels to the right and down. If they are integers and the angle is 0, pixels are copied exactly.
        is_bilinear: whether to interpolate between four pixels, instead of using the nearest pixel.
    """
    n_images, n_channels, height, width = images.shape
    radians = np.deg2rad(degrees)
    cosine, sine, shift_right, shift_down = (
        to_device(values.astype(np.float32), images.device).view(-1, 1, 1)
        for values in (np.cos(radians), np.sin(radians), shifts[0], shifts[1])
    )
    middle_row, middle_column = (height - 1) / 2, (width - 1) / 2
    rows = torch.arange(height, device=images.device).view(1, -1, 1) - middle_row - shift_down
    columns = torch.arange(width, device=images.device).view(1, 1, -1) - middle_column - shift_right
    source_rows = sine * columns + cosine * rows + middle_row
    source_columns = cosine * columns - sine * rows + middle_column
    flat_images = images.reshape(n_images, n_channels, -1)

    def pixels_at(row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        position = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        position = position.long().view(n_images, 1, -1).expand(-1, n_channels, -1)
        return flat_images.gather(2, position).view_as(images) * is_inside[:, None]

    if not is_bilinear:
        return pixels_at((source_rows + 0.5).floor(), (source_columns + 0.5).floor())
    upper_row, left_column = source_rows.floor(), source_columns.floor()
    row_fraction, column_fraction = (source_rows - upper_row)[:, None], (source_columns - left_column)[:, None]
    upper = (
        pixels_at(upper_row, left_column) * (1 - column_fraction)
        + pixels_at(upper_row, left_column + 1) * column_fraction
    )
    lower = (
        pixels_at(upper_row + 1, left_column) * (1 - column_fraction)
        + pixels_at(upper_row + 1, left_column + 1) * column_fraction
    )
    return upper * (1 - row_fraction) + lower * row_fraction
