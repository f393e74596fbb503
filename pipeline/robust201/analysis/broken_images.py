"""The images that networks misclassify most and least often under attacks and corruptions."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.dataset_results import DatasetResults
from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.outcomes import Outcomes, read_images
from robust201.reader.stored_results import StoredResults
from robust201.reader.value_checks import CLEAN
from robust201.statistics.outcomes import count_by_image

_N_SHOWN = 8
"""Number of images that are shown from each end of the ranking."""


class BrokenImages(NamedTuple):
    """Images ranked by how often attacks and corruptions turn a correct prediction into a wrong prediction.

    An attack or corruption breaks an image for a network that classifies the clean image correctly and the perturbed
    image wrongly.

    Attributes:
        images: one row per image that at least half of the networks classify correctly, the most often broken first.
            The columns are `row` (in the dataset's split), `label`, `sha256` (of the pixels), `n_clean_correct` (number
            of networks that classify the clean image correctly) and `broken_fraction` (fraction of these networks'
            evaluations under attacks and corruptions that are wrong, in [0, 1]). The index is the position among the
            evaluated images.
        counts: (K, N) number of networks for which each image is broken, by evaluation and image.
        evaluations: the K pairs of key and strength.
        n_networks: number of networks whose outcomes the counts include.
    """

    images: pd.DataFrame
    counts: NDArray[np.int64]
    evaluations: list[tuple[str, float]]
    n_networks: int

    @property
    def most_broken(self) -> pd.DataFrame:
        return self.images.head(_N_SHOWN)

    @property
    def least_broken(self) -> pd.DataFrame:
        """The least often broken images, the least broken first; disjoint from `most_broken`."""
        return self.images.iloc[_N_SHOWN:].tail(_N_SHOWN)[::-1]

    def n_networks_by_evaluation(self, position: int) -> dict[tuple[str, float], int]:
        """Return the number of networks for which each attack or corruption breaks an image, by key and strength.

        `position` is the image's position among the evaluated images, which is the index of `images`.
        """
        return dict(zip(self.evaluations, self.counts[:, position].tolist(), strict=True))


def find_broken_images(results: DatasetResults) -> BrokenImages | None:
    """Rank images by how often they are broken; return None if per-image outcomes are not stored."""
    stored_results = StoredResults(results.reader.files, results.name, {})
    clean = _read_outcomes(stored_results, results, CLEAN, CLEAN_STRENGTH) if results.keys(CLEAN) else None
    if clean is None:
        return None
    evaluations, broken_by_evaluation = [], []
    for key in (*results.keys("attack"), *results.keys("corruption")):
        for strength in results.strengths(key):
            outcomes = _read_outcomes(stored_results, results, key, strength)
            if outcomes is not None:
                evaluations.append((key, strength))
                broken_by_evaluation.append(count_by_image(clean.packed & ~outcomes.packed, clean.n_images))
    if not evaluations:
        return None
    n_clean_correct = count_by_image(clean.packed, clean.n_images)
    table = pd.DataFrame(read_images(results.reader.files, results.name))
    broken_by_image = np.array(broken_by_evaluation)
    n_evaluated = n_clean_correct * len(evaluations)
    broken_fraction = np.divide(
        broken_by_image.sum(axis=0), n_evaluated, out=np.full(len(n_evaluated), np.nan), where=n_evaluated > 0
    )
    table = table.assign(n_clean_correct=n_clean_correct, broken_fraction=broken_fraction)[
        2 * n_clean_correct >= len(clean.architectures)
    ]
    ranked_images = table.sort_values("broken_fraction", ascending=False, kind="stable")
    return BrokenImages(ranked_images, broken_by_image, evaluations, len(clean.architectures))


def weakest_breaking_strengths(
    n_networks_by_evaluation: Mapping[tuple[str, float], int], n_clean_correct: int
) -> dict[str, float]:
    """Return the lowest strength of each key that breaks an image for at least half of the networks.

    Only networks that classify the clean image correctly count. Keys without such a strength are left out.

    Args:
        n_networks_by_evaluation: number of networks for which each attack or corruption breaks the image, by key and
            strength.
        n_clean_correct: number of networks that classify the clean image correctly.
    """
    weakest: dict[str, float] = {}
    for (key, strength), count in n_networks_by_evaluation.items():
        if 2 * count >= n_clean_correct:
            weakest.setdefault(key, strength)  # the strengths of a key are in ascending order
    return weakest


def _read_outcomes(
    stored_results: StoredResults, results: DatasetResults, key: str, strength: float
) -> Outcomes | None:
    """Return the outcomes of all networks; None if any network lacks them."""
    outcomes = stored_results.outcomes(key, strength)
    if outcomes is None or not set(results.architectures) <= set(outcomes.architectures):
        return None
    return outcomes.of(results.architectures)
