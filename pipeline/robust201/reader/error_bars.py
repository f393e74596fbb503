"""Confidence intervals of accuracies and ties with the best architecture, as columns of DataFrames."""

import functools

import numpy as np
import pandas as pd

from robust201.core.errors import ResultsError
from robust201.core.records import format_architecture
from robust201.images import DATASETS
from robust201.reader.arguments import as_level
from robust201.reader.outcomes import Outcomes
from robust201.reader.overlay import OverlaidFiles
from robust201.reader.result_files import ResultFiles
from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.outcomes import Packed, count_correct
from robust201.statistics.significance import Ties, ties_with_best
from robust201.tasks.columns import count_images

_MAX_ROUNDING_ERROR = 5.1e-4
"""Maximum difference between an accuracy with three decimals, as published, and the exact fraction."""


def count_evaluated_images(files: ResultFiles, dataset: str, key: str) -> int | None:
    """Return the number of images on which a key's accuracies were computed, or None if it is unknown.

    The number is read from the Parquet file, the image selection in sweep.json or a confusion matrix. A folder without
    sweep.json, such as the published dataset, is assumed to contain accuracies on the whole test split.
    """
    if isinstance(files, OverlaidFiles):
        distinct_counts = {
            count_evaluated_images(layer, dataset, key) for layer in files.layers if layer.has_key(dataset, key)
        }
        return distinct_counts.pop() if len(distinct_counts) == 1 else None
    file = files.find(dataset, key, "accuracy")
    if file is not None and file.suffix == ".parquet":
        from robust201.reader.parquet_results import read_n_images

        if (n_images := read_n_images(file)) is not None:
            return n_images
    n_test = DATASETS[dataset].n_test if dataset in DATASETS else None
    sweep_record = None if files.sweep is None else files.sweep.get("sweep")
    selection = sweep_record.get("images") if isinstance(sweep_record, dict) else None
    if isinstance(selection, dict) and (n_selected := selection.get("count") or n_test):
        return int(n_selected)
    matrix_file = files.find_json(dataset, key, "cm")
    if matrix_file is not None:
        try:
            _, matrix = next(files.iter_json_file(matrix_file, dataset, key, "cm"))
            return count_images("cm", matrix, is_single=files.has_single_value(dataset, key))
        except (StopIteration, ValueError):  # no rows, or fractions instead of counts
            pass
    return n_test if files.sweep is None else None


def add_intervals(frame: pd.DataFrame, files: ResultFiles, level: float = 0.95) -> pd.DataFrame:
    """Add columns `low` and `high` with the bounds of each accuracy's confidence interval over samples of images.

    The bounds are NaN if the number of images is unknown. See `accuracy_intervals`.
    """

    @functools.cache
    def find_image_count(dataset: str, key: str) -> float:
        n_images = count_evaluated_images(files, dataset, key)
        return np.nan if n_images is None else float(n_images)

    image_counts = np.array([*map(find_image_count, frame["dataset"], frame["key"])], np.float64)
    low, high = accuracy_intervals(frame["value"].to_numpy(np.float64), image_counts, level)
    value_index = list(frame.columns).index("value") + 1
    columns = [*frame.columns[:value_index], "low", "high", *frame.columns[value_index:]]
    return frame.assign(low=low, high=high)[columns]


def check_outcomes(outcomes: Outcomes, accuracies: "pd.Series[float]", label: str) -> None:
    """Check that outcomes agree with the accuracies of the architectures that have both.

    Raises:
        ResultsError: an architecture's outcomes contradict its accuracy.
    """
    common_architectures = [architecture for architecture in outcomes.architectures if architecture in accuracies.index]
    accuracies_of_outcomes = count_correct(outcomes.of(common_architectures).packed) / outcomes.n_images
    is_contradiction = (
        np.abs(accuracies_of_outcomes - accuracies.loc[common_architectures].to_numpy(np.float64)) > _MAX_ROUNDING_ERROR
    )
    if is_contradiction.any():
        architecture = common_architectures[int(is_contradiction.argmax())]
        raise ResultsError(
            f"Reading outcomes failed for {label}: the per-image outcomes of {format_architecture(architecture)} "
            "contradict its accuracy. Only read folders together if they contain the same evaluations."
        )


def find_ties(
    accuracies: "pd.Series[float]", n_images: int, outcomes: Outcomes | None, *, level: float, label: str
) -> tuple[Ties, Packed | None]:
    """Find the architectures that are tied with the best under a key at a strength.

    Args:
        accuracies: accuracies by architecture.
        n_images: number of images.
        outcomes: per-image outcomes. They are compared if all architectures have them; if not, only accuracies are
            compared.
        level: significance level.
        label: dataset and key, for error messages.

    Returns:
        The ties, and the packed outcomes in the order of `accuracies`, or None if accuracies were compared.

    Raises:
        ConfigError: the level is not between 0 and 1.
        ResultsError: outcomes contradict the accuracies.
    """
    level = as_level(level, f"Ranking failed for {label}")
    packed = None
    if outcomes is not None and accuracies.index.isin(outcomes.architectures).all():
        check_outcomes(outcomes, accuracies, label)
        packed = outcomes.of(accuracies.index).packed
    return ties_with_best(accuracies.to_numpy(np.float64), n_images, outcomes=packed, level=level), packed
