"""Comparison of two result sets, such as results of two seeds, engines or devices, or new and published results."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from robust201.core.errors import ConfigError, InputError
from robust201.core.records import ArchitectureId
from robust201.dataset.layout import RESULTS_FOLDER_FILE, paper_key, sort_by_task_order
from robust201.dataset.reader import Dataset
from robust201.dataset.shard_rows import KeyRows
from robust201.dataset.unstable_networks import list_stable_results
from robust201.sweep.parts import compare
from robust201.sweep.plan import open_results

MAX_LISTED_DIFFERENCES = 5
"""Maximum number of listed evaluations, beginning with the largest difference."""

_EVALUATION = ["dataset", "key", "strength"]
_IDENTITY = ["weights", *_EVALUATION, "architecture"]

_NumberRow = tuple[str, str, str, float, ArchitectureId, float]
"""Weights, dataset, key, strength, architecture and value."""


@dataclass(frozen=True)
class ComparisonReport:
    """Comparison of two result sets.

    Attributes:
        comparisons: one row per dataset, key and strength that both sets have: `dataset`, `key`, `strength`,
            `n_architectures` (architectures in both sets, once per set of weights), `max_difference` and
            `mean_absolute_difference` (absolute), `mean_difference` (second minus first) and `kendall_tau` (NaN if all
            numbers of one of the sets are equal).
        largest: the evaluations with the largest differences: their identity, `first` and `second`.
        only_first: names of the keys, and of the strengths of common keys, that are in the first set only.
        only_second: the same for the second set.
        architectures: numbers of architectures in the first set only, in both sets, and in the second set only, over
            all common evaluations.
        tolerance: largest absolute difference that is accepted.
    """

    comparisons: pd.DataFrame
    largest: pd.DataFrame
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    architectures: tuple[int, int, int]
    tolerance: float

    @property
    def differing_comparisons(self) -> pd.DataFrame:
        return self.comparisons[self.comparisons["max_difference"] > 0]

    @property
    def max_difference(self) -> float:
        return float(self.comparisons["max_difference"].max())

    @property
    def is_within_tolerance(self) -> bool:
        return self.max_difference <= self.tolerance

    def to_payload(self) -> dict[str, Any]:
        n_only_first, n_common, n_only_second = self.architectures
        comparisons = self.comparisons.astype(object).where(self.comparisons.notna(), None)
        return {
            "within": self.is_within_tolerance,
            "tolerance": self.tolerance,
            "max_difference": self.max_difference,
            "architectures": {"only_first": n_only_first, "both": n_common, "only_second": n_only_second},
            "only_first": list(self.only_first),
            "only_second": list(self.only_second),
            "comparisons": comparisons.to_dict("records"),
            "largest": self.largest.to_dict("records"),
        }


def compare_results(first: Path, second: Path, *, tolerance: float = 0.0) -> ComparisonReport:
    """Compare the accuracies and measures that two result sets have in common.

    Each set is a results folder, an exported dataset, or the published dataset. If architectures have several sets of
    weights, results for weights of the same name are compared. Evaluations in only one set are reported, but do not
    affect `ComparisonReport.is_within_tolerance`, so that a part of a sweep can be compared with the whole sweep.

    Raises:
        ConfigError: the tolerance (the largest accepted absolute difference) is negative or not finite.
        InputError: a folder is not a result set, or the two sets have no evaluation of an architecture in common.
        ResultsError: a dataset's file is missing, damaged or invalid.
        ShardDamagedError: a file of a results folder is damaged.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ConfigError(
            f"Comparing failed for the tolerance: expected a finite number, 0 or more, got {tolerance}. "
            "Set it to the largest accepted difference in accuracy, such as 0.001."
        )
    sets = [read_numbers(folder) for folder in (first, second)]
    if all(numbers["weights"].nunique() == 1 for numbers in sets):
        sets = [numbers.assign(weights="") for numbers in sets]
    common = sets[0].merge(sets[1], on=_IDENTITY, suffixes=("_first", "_second"))
    common = common.rename(columns={"value_first": "first", "value_second": "second"})
    if common.empty:
        raise InputError(
            f"Comparing failed for {first} and {second}: they have no dataset, key, strength and architecture in "
            "common. Use two sets of results for the same datasets."
        )
    differences = common["second"] - common["first"]
    # Equal decimals can differ by floating-point errors of about 1e-17, which must not count as differences.
    common = common.assign(difference=differences, absolute=differences.abs().round(12))
    evaluations = common[_EVALUATION].drop_duplicates()
    architectures = [set(numbers.merge(evaluations, on=_EVALUATION)["architecture"]) for numbers in sets]
    largest = common[common["absolute"] > 0].nlargest(MAX_LISTED_DIFFERENCES, "absolute")
    return ComparisonReport(
        comparisons=_compare(common),
        largest=largest[[*_IDENTITY, "first", "second"]].reset_index(drop=True),
        only_first=_name_evaluations(sets[0], sets[1]),
        only_second=_name_evaluations(sets[1], sets[0]),
        architectures=(
            len(architectures[0] - architectures[1]),
            len(architectures[0] & architectures[1]),
            len(architectures[1] - architectures[0]),
        ),
        tolerance=tolerance,
    )


def _compare(common: pd.DataFrame) -> pd.DataFrame:
    """Return the table `ComparisonReport.comparisons`; keys are in the order of the task table."""
    groups = common.groupby(_EVALUATION)
    table = pd.DataFrame(
        {
            "n_architectures": groups.size(),
            "max_difference": groups["absolute"].max(),
            "mean_absolute_difference": groups["absolute"].mean(),
            "mean_difference": groups["difference"].mean(),
            "kendall_tau": groups[["first", "second"]].apply(_kendall_tau),
        }
    ).reset_index()
    return _sort_by_key(table)


def _kendall_tau(numbers: pd.DataFrame) -> float:
    return float(numbers["first"].corr(numbers["second"], method="kendall")) if len(numbers) > 1 else math.nan


def _sort_by_key(table: pd.DataFrame) -> pd.DataFrame:
    positions = {key: position for position, key in enumerate(sort_by_task_order(_task_keys(table)))}
    order = table.assign(position=_task_keys(table).map(positions)).sort_values(
        ["dataset", "position", "key", "strength"], kind="stable"
    )
    return order.drop(columns="position").reset_index(drop=True)


def _task_keys(table: pd.DataFrame) -> "pd.Series[str]":
    """Return the keys of tasks, without the column name that follows the key of a measure."""
    keys: pd.Series[str] = table["key"].str.split(" ").str[0]
    return keys


def _name_evaluations(numbers: pd.DataFrame, other: pd.DataFrame) -> tuple[str, ...]:
    """Name the keys that only `numbers` has; strengths are added if the other set has the key at other strengths."""
    evaluations, other_evaluations = (table[_EVALUATION].drop_duplicates() for table in (numbers, other))
    merged = evaluations.merge(other_evaluations, on=_EVALUATION, how="left", indicator=True)
    unmatched = _sort_by_key(merged[merged["_merge"] == "left_only"])
    other_keys = {*zip(other_evaluations["dataset"], other_evaluations["key"], strict=True)}
    return tuple(
        f"{dataset} {key}"
        + (f" at {', '.join(f'{strength:g}' for strength in strengths)}" if (dataset, key) in other_keys else "")
        for (dataset, key), strengths in unmatched.groupby(["dataset", "key"], sort=False)["strength"]
    )


def read_numbers(folder: Path) -> pd.DataFrame:
    """Read the accuracies and measures in a results folder, an exported dataset or the published dataset.

    Returns:
        One row per number: `weights` (name of the weights; empty if architectures have only one set), `dataset`, `key`
        (in the paper's style; for a measure, followed by the name of a column, as in ``jacobian squared_norm``, and by
        an index if the column contains lists, as in ``mine norm[2]``), `strength`, `architecture` and `value`.

    Raises:
        InputError: the folder is none of these.
    """
    is_results_folder = (folder / RESULTS_FOLDER_FILE).is_file()
    rows = _iter_results_folder(folder) if is_results_folder else _iter_dataset(Dataset(folder))
    return pd.DataFrame(rows, columns=[*_IDENTITY, "value"])


def _iter_results_folder(results: Path) -> Iterator[_NumberRow]:
    plan, folder = open_results(results)
    listing = list_stable_results(plan, folder)
    for state in compare(plan.comparable, listing, folder.read_tuple).keys:
        names = state.key.task.columns or ("accuracy",)
        rows, is_complete = KeyRows(folder, state.key, listing), state.complete
        for network in np.flatnonzero(is_complete.any(axis=1)).tolist():
            unit = state.key.unit(network)
            strengths = np.array(unit.strengths)[is_complete[network]].tolist()
            for name, values in rows.read(network, names, strengths).items():
                key = f"{unit.key} {name}" if unit.columns else unit.key
                for strength, value in zip(strengths, values, strict=True):
                    for label, number in _iter_scalars(key, value.tolist()):
                        yield unit.weights, unit.dataset, label, strength, unit.architecture, number


def _iter_dataset(dataset: Dataset) -> Iterator[_NumberRow]:
    weights_names = dataset.weights or [""]
    for weights in weights_names:
        selected = dataset.with_weights(weights) if len(weights_names) > 1 else dataset
        for name, key in itertools.product(dataset.data, dataset.keys_all):
            is_measure = dataset.kind_of(key) == "measure"
            for measurement in dataset.measurements(name, key) if is_measure else ["accuracy"]:
                if not dataset.has(name, key, measurement):
                    continue
                label = f"{paper_key(key)} {measurement}" if is_measure else paper_key(key)
                table = selected.read_table(name, key, measurement)
                columns = table["architecture"].tolist(), table["strength"], table["value"]
                for architecture, strength, value in zip(*columns, strict=True):
                    for scalar_label, number in _iter_scalars(label, value):
                        yield weights, name, scalar_label, strength, architecture, number


def _iter_scalars(key: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the key and number of a value, or, for nested lists, an indexed key and the number of each element.

    Missing numbers are skipped.
    """
    if isinstance(value, list):
        for index, element in enumerate(value):
            yield from _iter_scalars(f"{key}[{index}]", element)
    elif value is not None and not math.isnan(value):
        yield key, float(value)
