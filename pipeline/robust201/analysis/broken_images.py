"""Which images are broken most and least often across networks, and which key and strength broke which."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.dataset_results import DatasetResults
from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.outcomes import Outcomes, read_images
from robust201.reader.rankings import StoredResults
from robust201.reader.value_checks import CLEAN
from robust201.statistics.outcomes import count_by_image

SHOWN = 8
"""Images at either end of the order."""


class BrokenImages(NamedTuple):
    """Images by how often attacks and corruptions turn a correct prediction into a wrong one.

    Attributes:
        images: one row per image that at least half of the networks classify correctly: `row` in the dataset's split,
            `label`, `sha256` of its pixels, `n_right` (networks that are right on the clean image) and `share` (of
            their evaluations under attacks and corruptions, those that are wrong), in [0, 1]; the most often broken
            first. The index is the position among the evaluated images.
        counts: (K, N) networks that are right on the clean image and wrong in an evaluation, by evaluation and image.
        evaluations: K keys and strengths.
        n_networks: networks whose outcomes are counted.
    """

    images: pd.DataFrame
    counts: NDArray[np.int64]
    evaluations: list[tuple[str, float]]
    n_networks: int

    @property
    def most_broken(self) -> pd.DataFrame:
        return self.images.head(SHOWN)

    @property
    def least_broken(self) -> pd.DataFrame:
        """The least often broken first; none of `most_broken`."""
        return self.images.iloc[SHOWN:].tail(SHOWN)[::-1]

    def counts_of(self, position: int) -> dict[tuple[str, float], int]:
        """Count the networks that each evaluation breaks on an image, by key and strength."""
        return dict(zip(self.evaluations, self.counts[:, position].tolist(), strict=True))


def find_broken_images(results: DatasetResults) -> BrokenImages | None:
    """Find the images that are broken most and least often; None where outcomes by image are not stored."""
    held = StoredResults(results.reader.files, results.name, {})
    clean = _outcomes(held, results, CLEAN, CLEAN_STRENGTH) if results.keys(CLEAN) else None
    if clean is None:
        return None
    evaluations, counts = [], []
    for key in (*results.keys("attack"), *results.keys("corruption")):
        for strength in results.strengths(key):
            outcomes = _outcomes(held, results, key, strength)
            if outcomes is not None:
                evaluations.append((key, strength))
                counts.append(count_by_image(clean.packed & ~outcomes.packed, clean.n_images))
    if not evaluations:
        return None
    n_right = count_by_image(clean.packed, clean.n_images)
    table = pd.DataFrame(read_images(results.reader.files, results.name))
    by_image = np.array(counts)
    tried = n_right * len(evaluations)
    share = np.divide(by_image.sum(axis=0), tried, out=np.full(len(tried), np.nan), where=tried > 0)
    table = table.assign(n_right=n_right, share=share)[2 * n_right >= len(clean.architectures)]
    ordered = table.sort_values("share", ascending=False, kind="stable")
    return BrokenImages(ordered, by_image, evaluations, len(clean.architectures))


def weakest_breaking(counts: Mapping[tuple[str, float], int], n_right: int) -> dict[str, float]:
    """Return, by key, the lowest strength at which at least half of the networks fail; none for other keys."""
    found: dict[str, float] = {}
    for (key, strength), count in counts.items():
        if 2 * count >= n_right:
            found.setdefault(key, strength)  # strengths ascend
    return found


def _outcomes(held: StoredResults, results: DatasetResults, key: str, strength: float) -> Outcomes | None:
    """Read the outcomes of all networks; None unless all have them."""
    outcomes = held.outcomes(key, strength)
    if outcomes is None or not set(results.architectures) <= set(outcomes.architectures):
        return None
    return outcomes.of(results.architectures)
