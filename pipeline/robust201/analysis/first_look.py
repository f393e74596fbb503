"""The default evaluation of `robust201.evaluate`, called the first look: its keys and its number of images.

The strongest attack is always among the keys, however few images the time allows: a weaker attack on more images would
make the network look more robust than it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from robust201.core.errors import ConfigError
from robust201.tasks import PAPER_KEYS, TASKS, standard_passes
from robust201.tasks.parameters import Parameters, parse_radius

SECONDS = 60.0
"""Approximate duration of a first look."""

EPSILON = "8/255"
"""Default radius of the Linf ball, as on RobustBench."""

SEVERITY = 5
"""Severity of the corruptions: the highest, so that the default does not flatter a network."""

COUNTS = (20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
"""Candidate numbers of images; the first is the minimum. They are few, so that similar machines choose the same one."""

_CORRUPTIONS = ("gaussian_noise", "defocus_blur", "jpeg_compression")
"""One corruption each by noise, blur and digital processing."""


@dataclass(frozen=True)
class Costs:
    """Measured costs of a network.

    Attributes:
        fixed: seconds of a forward pass per batch.
        per_image: additional seconds of a forward pass per image.
        batch: images per batch.
        n_classes: number of classes.
        resisting: fraction of images that are classified correctly under PGD with few steps; None if unknown.
    """

    fixed: float
    per_image: float
    batch: int
    n_classes: int
    resisting: float | None = None

    def seconds(self, key: str, parameters: Parameters, n_images: int) -> float:
        """Estimate the seconds of evaluating a key on `n_images` images, over all its strengths."""
        passes = sequential_passes = TASKS[key].passes(parameters, self.n_classes)
        if key == "aa_standard":
            passes = standard_passes(parameters, self.n_classes, self.resisting)
            sequential_passes = standard_passes(parameters, self.n_classes, 1.0)
        n_batches = -(-n_images // self.batch)
        per_strength = sequential_passes * self.fixed * n_batches + passes * self.per_image * n_images
        return per_strength * len(parameters.strengths)

    def total(self, keys: Mapping[str, Parameters], n_images: int) -> float:
        """Estimate the seconds of evaluating several keys on `n_images` images."""
        return sum(self.seconds(key, parameters, n_images) for key, parameters in keys.items())


def first_keys(
    n_classes: int, *, corruptions: bool = True, epsilon: str | float | None = None, randomised: bool = False
) -> dict[str, dict[str, Any]]:
    """Choose the keys of a first look, with their parameters.

    Args:
        n_classes: number of the network's classes. AutoAttack's standard version needs four; with fewer classes, the
            applicable attacks of AutoAttack are chosen.
        corruptions: whether the images can be corrupted; if not, they are only attacked.
        epsilon: radius of the Linf ball in pixel units, as in ``"8/255"``; None for `EPSILON`.
        randomised: whether the network's outputs are random.

    Raises:
        ConfigError: the epsilon is not a number, or out of range.
    """
    try:
        radius = parse_radius(EPSILON if epsilon is None else epsilon)
    except ValueError as error:
        raise ConfigError(f"Reading arguments failed for epsilon: {error} Give one radius of the Linf ball.") from error
    if not 0 < radius <= 1:
        raise ConfigError(
            f"Reading arguments failed for epsilon: expected a number above 0 and up to 1, in pixel units, got "
            f"{float(radius):g}. Write {float(radius):g}/255 if it is in units of 1/255."
        )
    attacks = {key: {"epsilons": [float(radius)]} for key in ("fgsm", "pgd", *_strongest(n_classes, randomised))}
    corrupted = _CORRUPTIONS if corruptions else ()
    return {"clean": {}, **attacks, **{key: {"severities": [SEVERITY]} for key in corrupted}}


def _strongest(n_classes: int, randomised: bool) -> tuple[str, ...]:
    if randomised and n_classes >= 3:
        return ("aa_rand",)
    if n_classes >= 4:
        return ("aa_standard",)
    return ("aa_apgd-ce", *(("aa_apgd-dlr",) if n_classes == 3 else ()), "aa_fab", "aa_square")


def choose_count(costs: Costs, keys: Mapping[str, Parameters], n_images: int) -> int:
    """Return the largest of `COUNTS`, or all images, that takes at most `SECONDS`; at least the minimum."""
    counts = [*(count for count in COUNTS if count < n_images), n_images]
    return max([counts[0], *(count for count in counts if costs.total(keys, count) <= SECONDS)])


def describe_plan(
    count: int, n_images: int, seed: int, *, by_time: bool, costs: Costs, keys: Mapping[str, Parameters]
) -> str:
    """Return the announcement of a first look: images, time, and how long the full evaluation takes."""
    paper_seconds = costs.total({key: TASKS[key].parameters() for key in PAPER_KEYS}, n_images)
    full = [f'keys "all" (the paper\'s, with their epsilons) about {show_time(paper_seconds)}']
    images = f"all {n_images:,} images"
    if count < n_images:
        chosen = ", as many as the time allows" if by_time else ""
        images = f"{count:,} of {n_images:,} images (class-stratified, seed {seed}{chosen})"
        full.insert(0, f"these keys about {show_time(costs.total(keys, n_images))}")
    lines = [
        f"First look: {', '.join(keys)} on {images}, about {show_time(costs.total(keys, count))}.",
        f"Full evaluation, on all images: {', '.join(full)}.",
    ]
    if by_time and count < n_images:
        lines.append(f"For the same images on any machine, set the count to {count}.")
    return "\n".join(lines)


def show_time(seconds: float) -> str:
    """Render an estimated time: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"
