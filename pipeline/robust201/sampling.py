"""Choice of test images by the outcomes of a pilot sweep, and estimates of accuracies from the chosen images.

A pilot sweep evaluates a few networks on all images. A second sweep evaluates all networks under cheap keys on all
images, and under an expensive key on the chosen images (``images: {file: chosen.json}``). See docs/sampling.md.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from robust201.core.errors import ConfigError
from robust201.core.files import write_text
from robust201.dataset.stored_outcomes import KeyOutcomes, read_outcomes
from robust201.statistics.image_samples import MIN_PER_STRATUM, ImageSample, Pilot, choose_sample, estimate_accuracies

CHEAP_KEYS = ("clean", "fgsm")

_COLUMNS = ("network", "weights", "strength", "accuracy", "standard_error", "low", "high", "n_images", "kind")


@dataclass(frozen=True)
class ChosenImages:
    """Test images chosen for a key. A sweep's key can name the file that `save` writes as its `images`.

    Attributes:
        dataset: name of the dataset.
        key: key whose accuracies are estimated.
        cheap: keys under which all networks are evaluated on all images.
        images: (n) ascending positions of the chosen images in the test split.
        population: (N) ascending positions of all images of the pilot.
        strata: (N) strata of these images.
    """

    dataset: str
    key: str
    cheap: tuple[str, ...]
    images: tuple[int, ...]
    population: tuple[int, ...]
    strata: tuple[int, ...]

    @property
    def sample(self) -> ImageSample:
        """The chosen images as a sample of the stratified population."""
        return ImageSample(np.array(self.strata), np.searchsorted(self.population, self.images).astype(np.int64))

    def save(self, path: str | Path) -> None:
        write_text(Path(path), json.dumps(vars(self)) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "ChosenImages":
        """Read a file that `save` wrote, or raise a ConfigError."""
        try:
            chosen = TypeAdapter(cls).validate_json(Path(path).read_bytes())
            population = {*chosen.population}
            is_valid = (
                [*chosen.images] == sorted(population & {*chosen.images})
                and [*chosen.population] == sorted(population)
                and len(chosen.strata) == len(population)
                and {*chosen.strata} == {*range(len({*chosen.strata}))}
                and not np.any(chosen.sample.sizes < np.minimum(MIN_PER_STRATUM, chosen.sample.counts))
            )
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"Reading chosen images failed for {path}: it is missing or was not written by ChosenImages.save "
                f"({type(error).__name__}). Choose the images again."
            ) from error
        if not is_valid:
            raise ConfigError(
                f"Reading chosen images failed for {path}: positions do not ascend or are not in the population, or a "
                f"stratum has fewer than {MIN_PER_STRATUM} chosen images. Choose the images again."
            )
        return chosen


def choose_images(
    pilot: str | Path, dataset: str, key: str, n: int, seed: int = 0, *, cheap: Sequence[str] = CHEAP_KEYS
) -> ChosenImages:
    """Choose test images at random, with higher probability where outcomes are uncertain.

    Args:
        pilot: results folder of the pilot, with two networks or more.
        dataset: name of the dataset.
        key: key whose accuracies will be estimated.
        n: number of images.
        seed: seed of the random choice.
        cheap: one or more keys under which all networks will be evaluated on the pilot's images; they predict outcomes.

    Raises:
        ConfigError: a key or dataset is unknown, a key occurs twice or is a measure, the pilot has one network, or `n`
            is out of range.
        IncompleteError: results of the pilot are missing.
    """
    if len({key, *cheap}) <= max(len(cheap), 1):
        raise ConfigError(
            f"Choosing images failed for {key}: expected one or more distinct keys in `cheap`, without "
            f"{key}, got {', '.join(cheap) or 'none'}. Correct `cheap`."
        )
    outcomes = read_outcomes(Path(pilot), dataset, [key, *cheap])
    model = _make_pilot(outcomes, key)
    sample = choose_sample(model.outcomes, model.fitted, n, seed)
    rows = (outcomes.images[sample.chosen], outcomes.images, sample.strata)
    return ChosenImages(dataset, key, tuple(cheap), *(tuple(row.tolist()) for row in rows))


def estimate(chosen: ChosenImages, pilot: str | Path, results: str | Path) -> pd.DataFrame:
    """Estimate accuracies on all images of the pilot from outcomes on the chosen images.

    Args:
        chosen: the chosen images.
        pilot: results folder of the pilot.
        results: results folder of a sweep with the key on the chosen images, and the cheap keys on the pilot's images.

    Returns:
        One row per network and strength, with the columns of `Dataset.table`, `weights` (name, if there are several),
        and `low` and `high` (95% interval). Networks of the pilot have the kind ``counted`` and an error of 0; the
        others have the kind ``estimated``. Errors and intervals account for the choice of images, not for the sampling
        of the test set, to which `standard_error` of `Dataset.table` refers.

    Raises:
        ConfigError: the two sweeps differ in a protocol or in strengths, or have other images than `chosen`.
        IncompleteError: results are missing.
    """
    full = read_outcomes(Path(pilot), chosen.dataset, [chosen.key, *chosen.cheap])
    sampled = read_outcomes(Path(results), chosen.dataset, [chosen.key])
    cheap = read_outcomes(Path(results), chosen.dataset, chosen.cheap)
    for subject, got, expected in (
        (f"the chosen images for {chosen.key}", sampled.images.tolist(), [*chosen.images]),
        ("the pilot's images", full.images.tolist(), [*chosen.population]),
        (f"the pilot's images for {', '.join(chosen.cheap)}", cheap.images_sha256, full.images_sha256),
        ("the pilot's strengths", (*sampled.strengths, *cheap.strengths), full.strengths),
        ("the pilot's parameters", {**sampled.protocols, **cheap.protocols}, full.protocols),
    ):
        if got != expected:
            raise ConfigError(
                f"Estimating accuracies failed for {results}: expected {subject}, got different ones. Correct the YAML "
                "and run it again."
            )
    model, rows = _make_pilot(full, chosen.key), []
    counted = dict(zip((network.weights.sha256 for network in full.networks), model.outcomes, strict=True))
    for network, correct, cheap_correct in zip(sampled.networks, sampled.correct, cheap.correct, strict=True):
        if network.weights.sha256 in counted:
            accuracy = counted[network.weights.sha256].mean(axis=1)
            columns, kind, n_images = (accuracy, 0 * accuracy, accuracy, accuracy), "counted", len(full.images)
        else:
            columns = estimate_accuracies(chosen.sample, correct, model.predict(cheap_correct), model.variance_factors)
            kind, n_images = "estimated", len(chosen.images)
        for (_, strength), *values in zip(sampled.strengths, *columns, strict=True):
            rows.append((network.architecture, network.name, strength, *values, n_images, kind))
    return pd.DataFrame(rows, columns=_COLUMNS).assign(dataset=chosen.dataset, key=chosen.key)


def _make_pilot(outcomes: KeyOutcomes, key: str) -> Pilot:
    n_strengths = sum(name == key for name, _ in outcomes.strengths)
    return Pilot(outcomes.correct[:, :n_strengths], outcomes.correct[:, n_strengths:])
