"""Gaussian, shot and impulse noise.

Constants and arithmetic: hendrycks/robustness, ImageNet-C/create_c/make_cifar_c.py and make_imagenet_c.py (Hendrycks
and Dietterich, 2019).
"""

import numpy as np

from robust201.corruptions.inputs import Constants, CorruptionRandomNumbers, Images
from robust201.corruptions.sampling import truncate

GAUSSIAN_SCALES = Constants(cifar=(0.04, 0.06, 0.08, 0.09, 0.10), imagenet=(0.08, 0.12, 0.18, 0.26, 0.38))
"""Standard deviations in units of the pixel range [0, 1]."""

SHOT_PHOTONS = Constants(cifar=(500, 250, 100, 75, 50), imagenet=(60, 25, 12, 5, 3))
"""Mean photon counts of a white pixel."""

IMPULSE_AMOUNTS = Constants(cifar=(0.01, 0.02, 0.03, 0.05, 0.07), imagenet=(0.03, 0.06, 0.09, 0.17, 0.27))
"""Fraction of the values (pixels times channels) that turn black or white."""


def gaussian_noise(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Add independent normal noise to every value, like a sensor in low light."""
    shape = images.shape[1:]
    noise = random_numbers.draw_per_image(lambda rng: rng.standard_normal(shape)) * GAUSSIAN_SCALES.at(
        severity, shape[0]
    )
    return truncate(np.clip(images / 255.0 + noise, 0, 1) * 255)


def shot_noise(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Replace every value by a Poisson count of photons."""
    photons = SHOT_PHOTONS.at(severity, images.shape[1])
    means = iter(images / 255.0 * photons)
    photon_counts = random_numbers.draw_per_image(lambda rng: rng.poisson(next(means)))
    return truncate(np.clip(photon_counts / photons, 0, 1) * 255)


def impulse_noise(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Turn a random fraction of the values black or white, with equal probability (scikit-image's salt and pepper)."""
    shape = images.shape[1:]
    # All severities select values with the same random numbers, so a higher severity changes every value that a lower
    # one changes.
    uniforms = random_numbers.draw_per_image(lambda rng: rng.random((2, *shape)))
    is_changed = uniforms[:, 0] < IMPULSE_AMOUNTS.at(severity, shape[0])
    noisy = np.where(is_changed, uniforms[:, 1] < 0.5, images / 255.0)
    return truncate(np.clip(noisy, 0, 1) * 255)
