"""Which architecture is better, and how many are equally good: one rule for every figure and for the explorer."""

from typing import NamedTuple

import pandas as pd

from robust201.core.records import ArchitectureId
from robust201.figures.dataset_results import ADVERSARIAL, DatasetResults


class Ranked(NamedTuple):
    """An architecture's place by an accuracy.

    Attributes:
        architecture: its id.
        accuracy: the accuracy, a fraction.
        rank: one more than the number of architectures with a higher accuracy.
        tied: how many architectures have this accuracy, itself among them.
    """

    architecture: ArchitectureId
    accuracy: float
    rank: int
    tied: int


def rank_architectures(results: DatasetResults, accuracies: pd.Series) -> list[Ranked]:
    """Rank architectures by an accuracy.

    Returns:
        The best first. Of equally accurate ones the one stands first that is better by the results' scores, in the
        order of `SCORES`, and of those equal by all of them the one of the lowest id.
    """
    frame = results.scores.assign(accuracy=accuracies).dropna(subset="accuracy").sort_index()
    order = ["accuracy", *results.scores.columns]
    frame = frame.sort_values(order, ascending=False, kind="stable", na_position="last")
    held = frame["accuracy"]
    ranks, tied = held.rank(method="min", ascending=False), held.groupby(held).transform("size")
    columns = (frame.index.tolist(), held.tolist(), ranks.astype(int).tolist(), tied.tolist())
    return [Ranked(*row) for row in zip(*columns, strict=True)]


def best_architecture(results: DatasetResults) -> ArchitectureId:
    """Choose the architecture that an explorer opens at: the best by mean adversarial accuracy, or by another score."""
    for score in (ADVERSARIAL, *results.scores.columns):
        if score in results.scores and (ranked := rank_architectures(results, results.scores[score])):
            return ranked[0].architecture
    return results.architectures[0]
