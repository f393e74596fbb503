"""Table 1 of Jung, Lukasik and Keuper (ICLR 2023) beside a search on the accuracies that they published."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.result_files import PUBLISHED_DATASETS
from robust201.search.studies import SearchStudy

OPTIMUM = "optimum"

PUBLISHED_TABLE1: Mapping[tuple[str, str, str], float] = {
    ("clean", OPTIMUM, "clean"): 94.68,
}
"""Percent by objective, method (or `OPTIMUM`) and column. Only numbers whose source was at hand stand here."""

PUBLISHED_DECIMALS = 3
"""Decimals of the published accuracies, as fractions."""


class ComparedNumber(NamedTuple):
    """A number of table 1 beside ours.

    Attributes:
        published: in percent.
        ours: in percent.
        within: whether an optimum agrees as far as the published accuracies' decimals show, or a mean lies in the 95 %
            interval of ours, widened by those decimals.
    """

    objective: str
    method: str
    column: str
    published: float
    ours: float
    within: bool


def holds_published(reader: RobustnessDataset, dataset: str) -> bool:
    """Whether accuracies are those that were published: CIFAR-10, all evaluated cells, and computed by no sweep."""
    if dataset != PUBLISHED_DATASETS[0] or reader.files.space is None:
        return False
    if reader.sweep is not None and "network" in reader.sweep.get("sweep", {}):
        return False
    if reader.files.find(dataset, "clean", "accuracy") is None:
        return False
    frame = reader.to_frame(dataset, "clean")
    count = int((frame["value"].notna() & (frame["strength"] == CLEAN_STRENGTH)).sum())
    return count == len(reader.non_isomorph_ids)


def compare_with_published(
    study: SearchStudy, published: Mapping[tuple[str, str, str], float] = PUBLISHED_TABLE1
) -> list[ComparedNumber]:
    """Put the numbers of table 1 that are known beside those of a study."""
    half = 100 * 0.5 * 10**-PUBLISHED_DECIMALS + 1e-9
    found = []
    for (objective, method, column), percent in published.items():
        if objective != study.objective or column not in study.columns:
            continue
        if method == OPTIMUM:
            ours = 100 * study.optimum[column]
            low = high = ours
        else:
            result = next((one for one in study.results if one.method == method), None)
            if result is None:
                continue
            estimate = result.reported[column]
            ours, low, high = 100 * estimate.mean, *(100 * np.nan_to_num([estimate.low, estimate.high]))
        found.append(
            ComparedNumber(objective, method, column, percent, ours, bool(low - half <= percent <= high + half))
        )
    return found
