"""Frost textures: the published script's photographs, or synthetic ones that need no download."""

import hashlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
from robust201.core.noise import generator
from robust201.core.portable_floats import exp
from robust201.core.records import canonical_json
from robust201.corruptions.sampling import resize_bilinear, truncate
from robust201.images.downloads.registry import Checksum, find_download

FROST_FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
"""Photographs in the wheel of imagecorruptions 1.1.2, which are the same as in hendrycks/robustness. The wheel has a
sixth photograph, which the published script never uses, since it draws the index with `randint(5)`."""

SYNTHETIC_TONES = (
    ((78, 149, 166), 18),
    ((201, 205, 214), 22),
    ((201, 205, 214), 22),
    ((138, 153, 166), 29),
    ((112, 123, 135), 43),
)
"""Mean colour and standard deviation of the grey level (0 to 255) of each of the five photographs after downsampling.
The synthetic textures have the same values. The second and third photograph look alike."""

_SYNTHETIC_SIZE = 400
_NEEDLE_SIGMAS = (22.0, 2.5)  # pixels along and across a crystal; the corruption downsamples textures fivefold
_NEEDLE_DIRECTIONS = 7
_CLOUD_SIGMA = 40.0


@dataclass(frozen=True, eq=False)
class FrostTextures:
    """Textures for the corruption `frost`.

    Attributes:
        name: ``"imagecorruptions"``, ``"synthetic"`` or (without textures) ``"none"``.
        images: textures, each (h, w, 3) uint8 in RGB order.
        sha256: 64 hex digits, over shapes and pixels.
    """

    name: str
    images: tuple[NDArray[np.uint8], ...]
    sha256: str
    _resampled: dict[float, tuple[NDArray[np.uint8], ...]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, name: str, images: tuple[NDArray[np.uint8], ...]) -> "FrostTextures":
        digest = hashlib.sha256(canonical_json([list(image.shape) for image in images]).encode())
        for image in images:
            digest.update(image.tobytes())
        return cls(name, images, digest.hexdigest())

    def identity(self) -> dict[str, str]:
        """Return the name and the hash of the textures, as part of a recipe of corruptions."""
        return {"name": self.name, "sha256": self.sha256}

    def resample(self, factor: float, size: int) -> tuple[NDArray[np.uint8], ...]:
        """Resample the textures bilinearly without smoothing, as OpenCV's `resize` does by default, and round them.

        `factor` is the number of new pixels per old pixel, and `size` the height and width of the patches to crop.

        Raises:
            DatasetError: a texture becomes too small for patches of this size.
        """
        if factor not in self._resampled:
            self._resampled[factor] = tuple(_resample(image, factor) for image in self.images)
        for image in self._resampled[factor]:
            if min(image.shape[:2]) <= size:
                raise DatasetError(
                    f"Resampling frost textures failed for {self.name!r}: height and width must be more than {size} "
                    f"pixels, got {image.shape[0]}x{image.shape[1]} at scale {factor:g}. Use larger textures."
                )
        return self._resampled[factor]


def _resample(image: NDArray[np.uint8], factor: float) -> NDArray[np.uint8]:
    height, width = (round(length * factor) for length in image.shape[:2])
    return truncate(resize_bilinear(image[None], height, width, step=1 / factor)[0] + 0.5)


def load_frost(folder: Path) -> FrostTextures:
    """Load the five photographs of frost that the published script uses (`robust201 fetch imagecorruptions-frost`).

    Raises:
        DatasetError: a file is missing, or differs from the published one.
    """
    checksums = find_download("imagecorruptions-frost").members
    return FrostTextures.of("imagecorruptions", tuple(_load(folder / name, checksums[name]) for name in FROST_FILES))


def _load(path: Path, checksum: Checksum) -> NDArray[np.uint8]:
    from PIL import Image

    checksum.check_file(path)
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@cache
def synthetic_frost(seed: int) -> FrostTextures:
    """Return five textures of needle-like crystals under uneven light, with `SYNTHETIC_TONES`."""
    return FrostTextures.of(
        "synthetic",
        tuple(
            _make_crystals(generator(seed, "frost texture", texture_index), *tone)
            for texture_index, tone in enumerate(SYNTHETIC_TONES)
        ),
    )


def _make_crystals(rng: np.random.Generator, colour: tuple[int, int, int], contrast: float) -> NDArray[np.uint8]:
    first_angle = rng.uniform(0, np.pi)
    angles = first_angle + np.arange(_NEEDLE_DIRECTIONS) * np.pi / _NEEDLE_DIRECTIONS
    needles = np.max([_smooth_noise(rng, *_NEEDLE_SIGMAS, float(angle)) for angle in angles], axis=0)
    grain = _smooth_noise(rng, 1.5, 1.5, 0.0)
    clouds = _smooth_noise(rng, _CLOUD_SIGMA, _CLOUD_SIGMA, 0.0)
    relief = _standardise(needles) + 0.6 * grain + 0.8 * clouds
    grey = _standardise(relief) * contrast
    return truncate(np.clip(grey[..., None] + np.array(colour), 0, 255) + 0.5)


def _smooth_noise(
    rng: np.random.Generator, sigma_along: float, sigma_across: float, angle: float
) -> NDArray[np.float64]:
    """Return normal noise on a torus, smoothed with a rotated Gaussian (sigmas in pixels, angle in radians)."""
    rows = np.fft.fftfreq(_SYNTHETIC_SIZE)[:, None]
    columns = np.fft.rfftfreq(_SYNTHETIC_SIZE)
    frequency_along = columns * np.cos(angle) + rows * np.sin(angle)
    frequency_across = rows * np.cos(angle) - columns * np.sin(angle)
    response = exp(-2 * np.pi**2 * ((sigma_along * frequency_along) ** 2 + (sigma_across * frequency_across) ** 2))
    noise = rng.standard_normal((_SYNTHETIC_SIZE, _SYNTHETIC_SIZE))
    return _standardise(np.fft.irfft2(np.fft.rfft2(noise) * response, s=noise.shape))


def _standardise(field: NDArray[np.float64]) -> NDArray[np.float64]:
    standard: NDArray[np.float64] = (field - field.mean()) / field.std()
    return standard
