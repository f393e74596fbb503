"""Noise that is added to pixels: Gaussian, shot and impulse noise.

Constants and arithmetic: hendrycks/robustness, ImageNet-C/create_c/make_cifar_c.py (Hendrycks and Dietterich, 2019).
"""

import numpy as np

from robust201.tasks.corruptions.draws import CorruptionDraws, Images
from robust201.tasks.corruptions.sampling import truncate

GAUSSIAN_SCALES = (0.04, 0.06, 0.08, 0.09, 0.10)
"""Standard deviations in units of the pixel range [0, 1]."""

SHOT_PHOTONS = (500, 250, 100, 75, 50)
"""Mean photon counts of a white pixel."""

IMPULSE_AMOUNTS = (0.01, 0.02, 0.03, 0.05, 0.07)
"""Shares of the values (pixels times channels) that turn black or white."""


def gaussian_noise(images: Images, severity: int, draws: CorruptionDraws) -> Images:
    """Add independent normal noise to every value, as a sensor does in low light."""
    shape = images.shape[1:]
    noise = draws.each(lambda generator: generator.standard_normal(shape)) * GAUSSIAN_SCALES[severity - 1]
    return truncate(np.clip(images / 255.0 + noise, 0, 1) * 255)


def shot_noise(images: Images, severity: int, draws: CorruptionDraws) -> Images:
    """Replace every value by a Poisson count of photons."""
    photons = SHOT_PHOTONS[severity - 1]
    means = iter(images / 255.0 * photons)
    counts = draws.each(lambda generator: generator.poisson(next(means)))
    return truncate(np.clip(counts / photons, 0, 1) * 255)


def impulse_noise(images: Images, severity: int, draws: CorruptionDraws) -> Images:
    """Turn single values black or white, each with probability one half (scikit-image's salt and pepper)."""
    shape = images.shape[1:]
    # The draws that choose values are shared by the severities, so a higher one hits all values that a lower one hits.
    # The severities share what decides where values are hit, so a higher one hits wherever a lower one does.
    uniform = draws.each(lambda generator: generator.random((2, *shape)))
    hit = uniform[:, 0] < IMPULSE_AMOUNTS[severity - 1]
    noisy = np.where(hit, uniform[:, 1] < 0.5, images / 255.0)
    return truncate(np.clip(noisy, 0, 1) * 255)
