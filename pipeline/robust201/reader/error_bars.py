"""Intervals of accuracies and ties with the best, as columns of a reader's DataFrames."""

import functools

import numpy as np
import pandas as pd

from robust201.core.errors import ConfigError, ResultsError, RobustWarning
from robust201.images import DATASETS
from robust201.reader.arguments import as_level
from robust201.reader.frames import rank_by_value
from robust201.reader.outcomes import Outcomes
from robust201.reader.overlay import OverlaidFiles
from robust201.reader.result_files import ResultFiles
from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.outcomes import Packed, count_correct
from robust201.statistics.significance import Ties, ties_with_best
from robust201.tasks.columns import count_images

_ROUNDED_BY = 5.1e-4
"""Accuracies of three decimals, as published, differ from shares by at most this."""


class UnpairedTestWarning(RobustWarning):
    """Networks are compared as if each had been shown images of its own, since outcomes by image are not stored."""


def images_behind(files: ResultFiles, dataset: str, key: str) -> int | None:
    """Find how many images an accuracy of a key is of; None where the folder does not tell.

    Parquet has it in each row; else the selection of images in sweep.json tells, or a confusion matrix. A folder
    without sweep.json, such as the published dataset, is taken to be of the whole test split.
    """
    if isinstance(files, OverlaidFiles):
        found = {images_behind(layer, dataset, key) for layer in files.layers if layer.has_key(dataset, key)}
        return found.pop() if len(found) == 1 else None
    file = files.find(dataset, key, "accuracy")
    if file is not None and file.suffix == ".parquet":
        from robust201.reader.parquet_results import read_n_images

        if (n_images := read_n_images(file)) is not None:
            return n_images
    split = DATASETS[dataset].n_test if dataset in DATASETS else None
    swept = None if files.sweep is None else files.sweep.get("sweep")
    chosen = swept.get("images") if isinstance(swept, dict) else None
    if isinstance(chosen, dict) and (count := chosen.get("count") or split):
        return int(count)
    matrices = files.find_json(dataset, key, "cm")
    if matrices is not None:
        try:
            _, row = next(files.iter_json_file(matrices, dataset, key, "cm"))
            return count_images("cm", row, is_single=files.is_single(dataset, key))
        except (StopIteration, ValueError):  # no rows, or shares instead of counts
            pass
    return split if files.sweep is None else None


def add_intervals(frame: pd.DataFrame, files: ResultFiles, level: float = 0.95) -> pd.DataFrame:
    """Add `low` and `high`, the ends of the interval over images of each accuracy (see `accuracy_intervals`).

    They are NaN where the number of images is unknown.
    """
    layers = {str(layer.path): layer for layer in files.layers} if isinstance(files, OverlaidFiles) else {}

    @functools.cache
    def count(dataset: str, key: str, source: str | None) -> float:
        n_images = images_behind(files if source is None else layers[source], dataset, key)
        return np.nan if n_images is None else float(n_images)

    sources = frame["source"] if "source" in frame else [None] * len(frame)
    counts = np.array([count(*place) for place in zip(frame["dataset"], frame["key"], sources, strict=True)])
    low, high = accuracy_intervals(frame["value"].to_numpy(np.float64), counts, level)
    place = list(frame.columns).index("value") + 1
    columns = [*frame.columns[:place], "low", "high", *frame.columns[place:]]
    return frame.assign(low=low, high=high)[columns]


def check_outcomes(outcomes: Outcomes, accuracies: "pd.Series[float]", what: str) -> None:
    """Check that outcomes give the accuracies of the architectures that have both.

    Raises:
        ResultsError: they are of other evaluations.
    """
    shared = [one for one in outcomes.architectures if one in accuracies.index]
    found = count_correct(outcomes.of(shared).packed) / outcomes.n_images
    differs = np.abs(found - accuracies.loc[shared].to_numpy(np.float64)) > _ROUNDED_BY
    if differs.any():
        raise ResultsError(
            f"Reading outcomes failed for {what}: expected outcomes by image with the accuracies of the folder, got "
            f"others for {shared[int(differs.argmax())]}. Read folders of the same evaluations together."
        )


def find_ties(
    accuracies: "pd.Series[float]", n_images: int, outcomes: Outcomes | None, *, level: float, what: str
) -> tuple[Ties, Packed | None]:
    """Find the architectures tied with the best under a key at a strength, by their outcomes where all have them.

    `level` is the chance of a false difference; `what` names what is ranked, for messages.

    Returns:
        The ties, and the packed outcomes that they follow from, in the order of `accuracies`, if any.

    Raises:
        ConfigError: the level is not between 0 and 1.
        ResultsError: outcomes give other accuracies.
    """
    level = as_level(level, f"Ranking failed for {what}")
    packed = None
    if outcomes is not None and accuracies.index.isin(outcomes.architectures).all():
        check_outcomes(outcomes, accuracies, what)
        packed = outcomes.of(accuracies.index).packed
    return ties_with_best(accuracies.to_numpy(np.float64), n_images, outcomes=packed, level=level), packed


def rank_with_ties(
    frame: pd.DataFrame,
    strength: float,
    n_images: int | None,
    outcomes: Outcomes | None,
    *,
    level: float,
    what: str,
) -> tuple[pd.DataFrame, Ties]:
    """Rank architectures at one strength, and mark those tied with the best (see `find_ties`).

    Returns:
        Of accuracies as of `to_frame` the table of `RobustnessDataset.rank`, and the ties of the evaluated
        architectures.
    """
    if n_images is None:
        raise ConfigError(
            f"Ranking failed for {what}: expected the number of images, which ties follow from, got none from the "
            "folder. Export it with Parquet, or rank without ties."
        )
    ranks = rank_by_value(frame, (strength,), lowest_first=False, what=what)
    rows = frame[frame["strength"] == strength].set_index("architecture").loc[ranks.index]
    # Isomorphs have the results of one evaluation, which is compared once.
    evaluated = rows.groupby("isomorph", sort=False)["value"].first()
    ties, _ = find_ties(evaluated, n_images, outcomes, level=level, what=what)
    by_class = pd.DataFrame({"p_value": ties.p_values, "tied": ties.tied}, index=evaluated.index)
    compared = by_class.loc[rows["isomorph"]].set_index(ranks.index)
    columns = {"rank": ranks, "value": rows["value"], "p_value": compared["p_value"], "tied": compared["tied"]}
    return pd.DataFrame(columns), ties
