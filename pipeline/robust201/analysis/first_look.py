"""Choice of the keys and of the number of images for a first look, the default evaluation of `robust201.evaluate`.

The strongest attack is always among the keys, even if the time allows only a few images. A weaker attack on more images
would make the network look more robust than it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from robust201.core.errors import ConfigError
from robust201.tasks import PAPER_KEYS, TASKS, standard_passes
from robust201.tasks.parameters import Parameters, parse_radius

TARGET_SECONDS = 60.0
"""Approximate duration of a first look."""

EPSILON = "8/255"
"""Default radius of the Linf ball, as on RobustBench."""

SEVERITY = 5
"""Severity of the corruptions: the highest, so that the default does not flatter a network."""

IMAGE_COUNTS = (20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
"""Candidate numbers of images; the first is the minimum. There are few candidates, so that similar machines choose the
same number."""

_CORRUPTIONS = ("gaussian_noise", "defocus_blur", "jpeg_compression")
"""One corruption from each of the groups noise, blur and digital."""


@dataclass(frozen=True)
class Costs:
    """Measured costs of a network.

    Attributes:
        seconds_per_batch: fixed part of the seconds per forward pass of a batch, independent of the number of images.
        seconds_per_image: additional seconds per image of a forward pass.
        batch_size: number of images per batch.
        n_classes: number of classes.
        robust_fraction: fraction of images that are classified correctly under PGD with few steps; None if unknown.
    """

    seconds_per_batch: float
    seconds_per_image: float
    batch_size: int
    n_classes: int
    robust_fraction: float | None = None

    def estimate_seconds(self, key: str, parameters: Parameters, n_images: int) -> float:
        """Estimate the time for evaluating a key at all its strengths on `n_images` images, in seconds."""
        passes = sequential_passes = TASKS[key].passes(parameters, self.n_classes)
        if key == "aa_standard":
            # Later attacks run only on images not yet fooled, but a batch with such an image needs all attacks.
            passes = standard_passes(parameters, self.n_classes, self.robust_fraction)
            sequential_passes = standard_passes(parameters, self.n_classes, 1.0)
        n_batches = -(-n_images // self.batch_size)
        batch_seconds = sequential_passes * self.seconds_per_batch * n_batches
        image_seconds = passes * self.seconds_per_image * n_images
        return (batch_seconds + image_seconds) * len(parameters.strengths)

    def estimate_total_seconds(self, keys: Mapping[str, Parameters], n_images: int) -> float:
        """Estimate the time for evaluating several keys on `n_images` images, in seconds."""
        return sum(self.estimate_seconds(key, parameters, n_images) for key, parameters in keys.items())


def choose_first_look_keys(
    n_classes: int, *, corruptions: bool = True, epsilon: str | float | None = None
) -> dict[str, dict[str, Any]]:
    """Choose the keys of a first look, with their parameters.

    Args:
        n_classes: number of the network's classes. AutoAttack's standard version needs four classes; with fewer
            classes, only the attacks of AutoAttack that apply are chosen.
        corruptions: whether the images can be corrupted; otherwise, there are only attacks.
        epsilon: radius of the Linf ball in pixel units, such as ``"8/255"``; None means `EPSILON`.

    Raises:
        ConfigError: the epsilon is not a number, or out of range.
    """
    try:
        radius = parse_radius(EPSILON if epsilon is None else epsilon)
    except ValueError as error:
        raise ConfigError(
            f"Reading arguments failed for `epsilon`: {error} Pass one radius of the Linf ball."
        ) from error
    if not 0 < radius <= 1:
        raise ConfigError(
            f"Reading arguments failed for `epsilon`: expected a number above 0 and up to 1, in pixel units, got "
            f"{float(radius):g}. Write {float(radius):g}/255 if it is in units of 1/255."
        )
    attacks = {key: {"epsilons": [float(radius)]} for key in ("fgsm", "pgd", *_strongest_attacks(n_classes))}
    corruption_keys = _CORRUPTIONS if corruptions else ()
    return {"clean": {}, **attacks, **{key: {"severities": [SEVERITY]} for key in corruption_keys}}


def _strongest_attacks(n_classes: int) -> tuple[str, ...]:
    if n_classes >= 4:
        return ("aa_standard",)
    return ("aa_apgd-ce", "aa_fab-t", "aa_square")


def choose_image_count(costs: Costs, keys: Mapping[str, Parameters], n_images: int) -> int:
    """Return the largest of `IMAGE_COUNTS`, or all images, whose evaluation takes at most `TARGET_SECONDS`.

    The smallest number is returned even if it takes longer.
    """
    image_counts = [*(count for count in IMAGE_COUNTS if count < n_images), n_images]
    affordable_counts = (count for count in image_counts if costs.estimate_total_seconds(keys, count) <= TARGET_SECONDS)
    return max([image_counts[0], *affordable_counts])


def describe_plan(
    count: int, n_images: int, seed: int, *, limited_by_time: bool, costs: Costs, keys: Mapping[str, Parameters]
) -> str:
    """Return the announcement of a first look: keys, images and time, and the time of full evaluations.

    `limited_by_time` is true if `count` was chosen for the time, and false if the user set it.
    """
    paper_seconds = costs.estimate_total_seconds({key: TASKS[key].parameters() for key in PAPER_KEYS}, n_images)
    full_evaluations = [f'about {format_time(paper_seconds)} for keys "all" (the paper\'s keys and epsilons)']
    image_description = f"all {n_images:,} images"
    if count < n_images:
        time_note = ", as many as the time allows" if limited_by_time else ""
        image_description = f"{count:,} of {n_images:,} images (class-stratified, seed {seed}{time_note})"
        full_evaluations.insert(0, f"about {format_time(costs.estimate_total_seconds(keys, n_images))} for these keys")
    seconds = costs.estimate_total_seconds(keys, count)
    sentences = [
        f"First look: {', '.join(keys)} on {image_description}, about {format_time(seconds)}.",
        f"Full evaluation, on all images: {', '.join(full_evaluations)}.",
    ]
    if limited_by_time and count < n_images:
        sentences.append(f"To evaluate the same images on any machine, set the count to {count}.")
    return "\n".join(sentences)


def format_time(seconds: float) -> str:
    """Render an estimated time: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"
