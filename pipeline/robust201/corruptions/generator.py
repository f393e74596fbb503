"""The generator of corrupted images, with the 15 common corruptions and the constants of CIFAR-10-C or ImageNet-C.

Images with a height of 224 pixels or more use ImageNet-C's constants; smaller ones use CIFAR-10-C's.

Source: Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR
2019; the semantics follow hendrycks/robustness, ImageNet-C/create_c/make_cifar_c.py and make_imagenet_c.py. On images
of 32 pixels, brightness, contrast, defocus_blur, pixelate, jpeg_compression and zoom_blur have no random part and match
the script bit for bit. The other corruptions match it in distribution, except that motion_blur and snow use this
package's motion kernel instead of ImageMagick's, and frost may use synthetic textures. ImageNet-C was saved as JPEG of
quality 85 after the corruption; this package's images are not.

To add a corruption, write a function (images, severity, random_numbers) -> images, which is named like its key, in the
module of its group, and add a row to `tasks.TASKS`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, DatasetError, did_you_mean
from robust201.corruptions import MIN_IMAGE_SIZE, blurs, digital, noise, weather
from robust201.corruptions.frost_textures import FrostTextures
from robust201.corruptions.inputs import IMAGENET_SIZE, CorruptionRandomNumbers, Images
from robust201.tasks import TASKS

GENERATOR_VERSION = 1
"""Version of the generated images. If a change affects all corruptions, set it to the next number above
`LARGE_IMAGES_VERSION` and every `tasks.Task.images_version`. If a change affects one corruption, set its
`images_version` to this number. A smaller number would not change the versions of all image sizes."""

_MODULES = {"noise": noise, "blur": blurs, "weather": weather, "digital": digital}
"""Group → module with the functions of its corruptions."""

CORRUPTION_FUNCTIONS: dict[str, Callable[[Images, int, CorruptionRandomNumbers], Images]] = {
    key: getattr(_MODULES[task.group], key) for key, task in TASKS.items() if task.kind == "corruption"
}
"""Key → function that corrupts a batch: ((N, H, H, 3) uint8, severity 1 to 5, random numbers) → (N, H, H, 3) uint8."""

_BATCH_VALUES = 64 * 32 * 32 * 3
"""Number of values per batch; their float64 copies fit into a processor's cache."""


LARGE_IMAGES_VERSION = 3
"""Version of corrupted images of `IMAGENET_SIZE` pixels or more. Earlier versions scaled CIFAR-10-C's constants."""


def corruption_recipes(
    keys: Iterable[str], image_size: int, *, seed: int, frost: FrostTextures
) -> dict[str, dict[str, Any]]:
    """Return, by corruption, the protocol's fields that (with the clean images) determine its pixels."""
    min_version = max(GENERATOR_VERSION, LARGE_IMAGES_VERSION if image_size >= IMAGENET_SIZE else 1)
    return {
        key: {"generator_version": max(min_version, TASKS[key].images_version), "seed": seed}
        | ({"frost": frost.identity()} if key == "frost" else {})
        for key in keys
    }


def corrupt(
    images: NDArray[np.uint8],
    key: str,
    severity: int,
    *,
    seed: int,
    indices: NDArray[np.int64],
    frost: FrostTextures,
) -> NDArray[np.uint8]:
    """Corrupt images. Each result depends only on its own image and index.

    An image's random numbers follow from (seed, key, its index) and are the same at all five severities (see
    `corruptions.inputs`). Constants that are lengths in pixels are multiplied by H / 32, or by H / 224 if H is at
    least 224.

    Args:
        images: (N, H, H, 3) uint8, H at least 8.
        key: a key of `CORRUPTION_FUNCTIONS`.
        severity: 1 to 5.
        seed: seed of all random numbers.
        indices: (N,) int64, each image's position in the full test split.
        frost: textures for the key ``"frost"``.

    Raises:
        ConfigError: the key does not exist.
        DatasetError: the images are not square uint8 RGB images of 8 pixels or more.
    """
    check_keys([key])
    _check_images(images, key)
    batch_size = max(1, _BATCH_VALUES // images[:1].size) if len(images) else 1
    corrupted = np.empty(images.shape, np.uint8)
    for start in range(0, len(images), batch_size):
        batch = slice(start, start + batch_size)
        random_numbers = CorruptionRandomNumbers(seed=seed, key=key, indices=indices[batch], frost=frost)
        corrupted[batch] = CORRUPTION_FUNCTIONS[key](images[batch], int(severity), random_numbers)
    return corrupted


def check_keys(keys: Iterable[str]) -> None:
    """Raise ConfigError if a corruption is unknown."""
    for key in keys:
        if key not in CORRUPTION_FUNCTIONS:
            raise ConfigError(
                f"Corrupting images failed for {key!r}: expected one of {len(CORRUPTION_FUNCTIONS)} corruptions."
                f"{did_you_mean(key, CORRUPTION_FUNCTIONS)}"
            )


def _check_images(images: NDArray[np.uint8], key: str) -> None:
    is_square_rgb = images.ndim == 4 and images.shape[1] == images.shape[2] >= MIN_IMAGE_SIZE and images.shape[3] == 3
    if not is_square_rgb or images.dtype != np.uint8:
        raise DatasetError(
            f"Corrupting images failed for {key!r}: expected uint8 images (N, H, H, 3) of {MIN_IMAGE_SIZE} pixels or "
            f"more, got {images.dtype} {images.shape}. Resize or crop the images to one square size first."
        )
