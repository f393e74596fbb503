"""Warnings of `robust201.evaluate`: accuracies at chance, gradients of zero, and other signs of weak attacks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from robust201.attacks.context import Context, to_float
from robust201.core.records import ImageSet
from robust201.evaluation.attack_flags import (
    AT_CHANCE,
    ZERO_GRADIENTS,
    Accuracies,
    AttackFlag,
    KeyAndStrength,
    find_flags,
)
from robust201.statistics.intervals import is_at_chance

_N_GRADIENT_IMAGES = 64
"""Number of images whose gradients are checked; an attack cannot follow a gradient of exactly 0."""


def describe_chance(name: str, n_correct: int, n_images: int, n_classes: int) -> str | None:
    """Return that a network's clean accuracy is not above chance; None if it is, or if there are too few images."""
    if not is_at_chance(n_correct / n_images, n_images, n_classes):
        return None
    return (
        f"{name} classifies {n_correct:,} of {n_images:,} images correctly, which is not "
        f"significantly more than by chance (1 of {n_classes:,} classes). Check the normalisation, the order of the "
        "colour channels and of the classes, and the weights."
    )


def measure_zero_gradients(context: Context, image_set: ImageSet) -> float:
    """Return the fraction of the first `_N_GRADIENT_IMAGES` images whose gradient of the loss is exactly 0.

    The result is 0 if the network lacks gradients: only a warning depends on it, and the attacks have finished.
    """
    pixels = to_float(torch.from_numpy(image_set.images[:_N_GRADIENT_IMAGES])).to(context.classifier.device)
    labels = torch.from_numpy(image_set.labels[:_N_GRADIENT_IMAGES]).to(context.classifier.device)
    try:
        _, _, gradient = context.classifier.loss_and_gradient(pixels, labels)
    except (Exception, SystemExit):  # noqa: BLE001 - a network may raise anything
        return 0.0
    return float((gradient.flatten(1) == 0).all(dim=1).double().mean())


def describe_weak_attacks(
    rows: Sequence[Mapping[str, Any]], name: str, n_images: int, n_classes: int, zero_fraction: float
) -> list[str]:
    """Return one warning about each sign of weak attacks, such as a weaker attack that fools more images."""
    results: dict[KeyAndStrength, Accuracies] = {ZERO_GRADIENTS: {name: zero_fraction}}
    for row in rows:
        if "accuracy" in row:
            results[row["key"], row["strength"]] = {name: row["accuracy"]}
        elif "zero_share" in row:
            results[ZERO_GRADIENTS] = {name: row["zero_share"]}
    flags = find_flags("", results, n_images=n_images, n_classes=n_classes, flag_any_difference=True)
    flags_by_check: dict[str, list[AttackFlag]] = {}
    for flag in flags:
        if flag.check != AT_CHANCE:  # reported by `describe_chance`
            flags_by_check.setdefault(flag.check, []).append(flag)
    messages = []
    for first, *others in flags_by_check.values():
        flag = max([first, *others], key=lambda each: each.networks[0][1] - each.networks[0][2])
        more = f" {len(others):,} more such sign{'s' if len(others) > 1 else ''}." if others else ""
        messages.append(f"{flag.message}{more} See docs/trust.md.")
    return messages
