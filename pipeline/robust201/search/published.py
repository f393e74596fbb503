"""The clean optimum of table 1 of Jung, Lukasik and Keuper (ICLR 2023), beside that of a search on their results."""

from collections.abc import Sequence
from typing import NamedTuple

from robust201.reader.dataset import RobustnessDataset
from robust201.reader.result_files import PUBLISHED_DATASETS
from robust201.reader.value_checks import CLEAN
from robust201.search.repeated_searches import RepeatedSearch

PAPER_OPTIMUM = 0.9468
"""Clean accuracy on CIFAR-10; the only number of the table whose source was at hand."""

TOLERANCE = 0.0005 + 1e-9
"""Published accuracies have three decimals."""


class PaperComparison(NamedTuple):
    """The optimum of table 1 and ours, as fractions, and whether they agree to the decimals that were published."""

    published: float
    ours: float
    agrees: bool


def compare_with_paper(reader: RobustnessDataset, searches: Sequence[RepeatedSearch]) -> PaperComparison | None:
    """Compare the clean optimum, where a search is on the published results: of CIFAR-10, of all cells, of no sweep."""
    if reader.sweep is not None and "network" in reader.sweep.get("sweep", {}):
        return None
    all_cells = {len(reader.meta["ids"]), len(reader.non_isomorph_ids)}
    whole = [one for one in searches if one.reported_on == PUBLISHED_DATASETS[0] and one.n_members in all_cells]
    optima = [one.optimum[CLEAN] for one in whole if CLEAN in one.columns]
    if not optima:
        return None
    return PaperComparison(PAPER_OPTIMUM, optima[0], abs(optima[0] - PAPER_OPTIMUM) <= TOLERANCE)
