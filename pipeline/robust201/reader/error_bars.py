"""Confidence intervals of accuracies, and ties with the best architecture, as columns of a DataFrame."""

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

_MAX_ROUNDING_ERROR = 5.1e-4
"""Maximum difference between an accuracy with three decimals, as published, and the exact fraction."""


class UnpairedTestWarning(RobustWarning):
    """Networks are compared as if evaluated on different images, because per-image outcomes are not stored."""


def evaluated_image_count(files: ResultFiles, dataset: str, key: str) -> int | None:
    """Return the number of images that a key's accuracies were computed on, or None if unknown.

    It is read from the Parquet file, the image selection in sweep.json or a confusion matrix. A folder without
    sweep.json, such as the published dataset, is assumed to use the whole test split.
    """
    if isinstance(files, OverlaidFiles):
        counts = {evaluated_image_count(layer, dataset, key) for layer in files.layers if layer.has_key(dataset, key)}
        return counts.pop() if len(counts) == 1 else None
    file = files.find(dataset, key, "accuracy")
    if file is not None and file.suffix == ".parquet":
        from robust201.reader.parquet_results import read_n_images

        if (n_images := read_n_images(file)) is not None:
            return n_images
    split = DATASETS[dataset].n_test if dataset in DATASETS else None
    swept = None if files.sweep is None else files.sweep.get("sweep")
    selection = swept.get("images") if isinstance(swept, dict) else None
    if isinstance(selection, dict) and (count := selection.get("count") or split):
        return int(count)
    matrices = files.find_json(dataset, key, "cm")
    if matrices is not None:
        try:
            _, row = next(files.iter_json_file(matrices, dataset, key, "cm"))
            return count_images("cm", row, is_single=files.is_single(dataset, key))
        except (StopIteration, ValueError):  # no rows, or fractions instead of counts
            pass
    return split if files.sweep is None else None


def add_intervals(frame: pd.DataFrame, files: ResultFiles, level: float = 0.95) -> pd.DataFrame:
    """Add columns `low` and `high`, the interval of each accuracy for sampling of images (see `accuracy_intervals`).

    The bounds are NaN if the number of images is unknown.
    """
    layers = {str(layer.path): layer for layer in files.layers} if isinstance(files, OverlaidFiles) else {}

    @functools.cache
    def count(dataset: str, key: str, source: str | None) -> float:
        n_images = evaluated_image_count(files if source is None else layers[source], dataset, key)
        return np.nan if n_images is None else float(n_images)

    sources = frame["source"] if "source" in frame else [None] * len(frame)
    counts = np.array([count(*position) for position in zip(frame["dataset"], frame["key"], sources, strict=True)])
    low, high = accuracy_intervals(frame["value"].to_numpy(np.float64), counts, level)
    position = list(frame.columns).index("value") + 1
    columns = [*frame.columns[:position], "low", "high", *frame.columns[position:]]
    return frame.assign(low=low, high=high)[columns]


def check_outcomes(outcomes: Outcomes, accuracies: "pd.Series[float]", what: str) -> None:
    """Check that outcomes are consistent with the accuracies of the architectures that have both.

    Raises:
        ResultsError: the outcomes are from other evaluations.
    """
    common = [architecture for architecture in outcomes.architectures if architecture in accuracies.index]
    accuracies_of_outcomes = count_correct(outcomes.of(common).packed) / outcomes.n_images
    differs = np.abs(accuracies_of_outcomes - accuracies.loc[common].to_numpy(np.float64)) > _MAX_ROUNDING_ERROR
    if differs.any():
        raise ResultsError(
            f"Reading outcomes failed for {what}: the per-image outcomes of {common[int(differs.argmax())]} contradict "
            "its accuracy. Read folders of the same evaluations together."
        )


def find_ties(
    accuracies: "pd.Series[float]", n_images: int, outcomes: Outcomes | None, *, level: float, what: str
) -> tuple[Ties, Packed | None]:
    """Find the architectures that are tied with the best under a key at a strength.

    Args:
        accuracies: accuracies by architecture.
        n_images: number of images.
        outcomes: per-image outcomes, which are compared if all architectures have them; else accuracies are compared.
        level: level of significance.
        what: dataset and key, for error messages.

    Returns:
        The ties, and the packed outcomes in the order of `accuracies` if outcomes were compared, else None.

    Raises:
        ConfigError: the level is not between 0 and 1.
        ResultsError: outcomes contradict the accuracies.
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

    `frame` has accuracies in the form of `RobustnessDataset.to_frame`.

    Returns:
        The table of `RobustnessDataset.rank`, and the ties of the evaluated architectures.
    """
    if n_images is None:
        raise ConfigError(
            f"Ranking failed for {what}: the number of images, which is needed to find ties, is unknown. Export the "
            "dataset with Parquet, or rank without ties."
        )
    ranks = rank_by_value(frame, (strength,), lowest_first=False, what=what)
    rows = frame[frame["strength"] == strength].set_index("architecture").loc[ranks.index]
    # Isomorphic architectures share one evaluation, which is compared only once.
    evaluated = rows.groupby("isomorph", sort=False)["value"].first()
    ties, _ = find_ties(evaluated, n_images, outcomes, level=level, what=what)
    by_class = pd.DataFrame({"p_value": ties.p_values, "tied": ties.tied}, index=evaluated.index)
    compared = by_class.loc[rows["isomorph"]].set_index(ranks.index)
    columns = {"rank": ranks, "value": rows["value"], "p_value": compared["p_value"], "tied": compared["tied"]}
    return pd.DataFrame(columns), ties
