"""Confidence intervals of fractions."""

import math

NORMAL_QUANTILE = 1.959963984540054
"""Of the standard normal distribution at .975: intervals hold in 95 % of samples."""


def wilson_interval(fraction: float, n_images: int) -> tuple[float, float]:
    """Give the 95 % score interval of a fraction of so many images, for the sampling of the images.

    Source: Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22 (1927); recommended
    over the normal approximation by Brown, Cai and DasGupta, Statistical Science 16 (2001).
    """
    weight = NORMAL_QUANTILE**2 / n_images
    centre = fraction + weight / 2
    spread = NORMAL_QUANTILE * math.sqrt(fraction * (1 - fraction) / n_images + weight / (4 * n_images))
    low = 0.0 if fraction == 0 else (centre - spread) / (1 + weight)
    return low, 1.0 if fraction == 1 else (centre + spread) / (1 + weight)
