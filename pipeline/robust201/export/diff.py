"""Comparison of two result sets, such as results of two seeds, engines or devices, or new and published results."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from robust201.core.errors import ConfigError, InputError
from robust201.core.files import MAX_EXPORTED_FILE_BYTES, sha256_of
from robust201.core.records import ArchitectureId, Unit
from robust201.export.key_rows import count_decimals
from robust201.export.listing import describe_changes
from robust201.planning.plan_file import load_plan
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.result_files import RESULTS_FOLDER_FILE, list_values_per_strength, paper_key
from robust201.reader.value_checks import format_id, parse_architecture_id
from robust201.shards import ShardStore
from robust201.tasks import TASKS

MAX_LISTED_DIFFERENCES = 5
"""Maximum number of architectures listed for each key and strength, beginning with the largest difference."""

_N_EXAMINED_NETWORKS = 20

EvaluationKey = tuple[str, str, float]
"""Dataset, key and strength. The key is in the paper's style. For a measure, it is followed by the name of a column, as
in ``jacobian squared_norm``, and by an index if the column contains lists, as in ``mine norm[2]``."""

ResultNumbers = Mapping[EvaluationKey, Mapping[ArchitectureId, float]]
"""Accuracies, or numbers of a measure, by evaluation and architecture."""


@dataclass(frozen=True)
class ResultSet:
    """Accuracies and numbers of measures in a results folder, an exported dataset or the published dataset.

    Attributes:
        by_weights: numbers by name of the weights; the name is empty if architectures have only one set of weights.
        decimals: number of decimals of the accuracies; None if they were not rounded.
        source: kind of files that were read, such as ``"shards"`` or ``"JSON"``.
        remarks: messages about files that were changed or deleted after the export.
    """

    by_weights: Mapping[str, ResultNumbers]
    decimals: int | None
    source: str
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeyComparison:
    """Comparison of two result sets under one key at one strength.

    Attributes:
        dataset: name of the dataset.
        key: the key, as in `EvaluationKey`.
        strength: the strength.
        n_architectures: number of architectures in both sets.
        max_difference: largest absolute difference.
        mean_absolute_difference: mean absolute difference.
        mean_difference: mean of the second set's numbers minus the first set's.
        kendall_tau: rank correlation Kendall's tau-b; None if all numbers of one of the sets are equal.
        moved_most: architectures with the largest differences, each with both numbers.
    """

    dataset: str
    key: str
    strength: float
    n_architectures: int
    max_difference: float
    mean_absolute_difference: float
    mean_difference: float
    kendall_tau: float | None
    moved_most: tuple[tuple[ArchitectureId, float, float], ...]


@dataclass(frozen=True)
class ComparisonReport:
    """Comparison of two result sets.

    Attributes:
        comparisons: one comparison per dataset, key and strength that both sets have.
        only_first: evaluations in the first set only.
        only_second: evaluations in the second set only.
        architectures: numbers of architectures in the first set only, in both sets, and in the second set only, over
            all common evaluations.
        tolerance: largest absolute difference that is accepted.
        decimals: number of decimals of each set's accuracies; None if they were not rounded.
        sources: kind of files that each set was read from, such as ``"shards"`` or ``"JSON"``.
        remarks: messages about files that were changed or deleted after the export.
    """

    comparisons: tuple[KeyComparison, ...]
    only_first: tuple[EvaluationKey, ...]
    only_second: tuple[EvaluationKey, ...]
    architectures: tuple[int, int, int]
    tolerance: float
    decimals: tuple[int | None, int | None]
    sources: tuple[str, str]
    remarks: tuple[str, ...]

    @property
    def differing_comparisons(self) -> tuple[KeyComparison, ...]:
        return tuple(comparison for comparison in self.comparisons if comparison.max_difference > 0)

    @property
    def names_only_first(self) -> tuple[str, ...]:
        """Names of the keys, and of strengths of common keys, that are in the first set only."""
        return self._name_keys(self.only_first, self.only_second)

    @property
    def names_only_second(self) -> tuple[str, ...]:
        return self._name_keys(self.only_second, self.only_first)

    def _name_keys(
        self, evaluations: Iterable[EvaluationKey], other_evaluations: Iterable[EvaluationKey]
    ) -> tuple[str, ...]:
        """Name the evaluations' keys; strengths are added if the other set has the key at other strengths."""
        keys_of_other_set = {(comparison.dataset, comparison.key) for comparison in self.comparisons} | {
            (name, key) for name, key, _ in other_evaluations
        }
        strengths_by_key: dict[tuple[str, str], list[str]] = {}
        for dataset, key, strength in evaluations:
            strengths_by_key.setdefault((dataset, key), []).append(f"{strength:g}")
        return tuple(
            f"{dataset} {key} at {', '.join(strengths)}" if (dataset, key) in keys_of_other_set else f"{dataset} {key}"
            for (dataset, key), strengths in strengths_by_key.items()
        )

    @property
    def max_rounding_difference(self) -> float:
        """Largest difference between the two sets that rounding alone can cause."""
        decimals_first, decimals_second = self.decimals
        return (
            0.0
            if decimals_first == decimals_second
            else sum(0.5 * 10.0**-n_decimals for n_decimals in self.decimals if n_decimals is not None)
        )

    @property
    def max_difference(self) -> float:
        return max(comparison.max_difference for comparison in self.comparisons)

    @property
    def is_within_tolerance(self) -> bool:
        return self.max_difference <= self.tolerance

    def to_payload(self) -> dict[str, Any]:
        n_only_first, n_common, n_only_second = self.architectures
        return {
            "within": self.is_within_tolerance,
            "tolerance": self.tolerance,
            "max_difference": self.max_difference,
            "decimals": list(self.decimals),
            "sources": list(self.sources),
            "remarks": list(self.remarks),
            "architectures": {"only_first": n_only_first, "both": n_common, "only_second": n_only_second},
            "only_first": [list(evaluation) for evaluation in self.only_first],
            "only_second": [list(evaluation) for evaluation in self.only_second],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
        }


def compare_results(first: Path, second: Path, *, tolerance: float = 0.0) -> ComparisonReport:
    """Compare the accuracies and the numbers of measures that two result sets have in common.

    Each set is a results folder, an exported dataset, or the published dataset. If architectures have several sets of
    weights, results for weights of the same name are compared. Evaluations in only one set are reported, but do not
    affect `ComparisonReport.is_within_tolerance`, so that a part of a sweep can be compared with the whole sweep.

    Raises:
        ConfigError: the tolerance (the largest accepted absolute difference) is negative or not finite.
        InputError: a folder is not a result set, or the two sets have no evaluation of an architecture in common.
        ResultsError: an architecture has more or fewer values than strengths.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ConfigError(
            f"Comparing failed for the tolerance: expected a finite number, 0 or more, got {tolerance}. "
            "Set it to the largest accepted difference in accuracy, such as 0.001."
        )
    result_sets = read_result_set(first), read_result_set(second)
    numbers_first, numbers_second = _match_weights(result_sets[0].by_weights, result_sets[1].by_weights)
    common_evaluations = [
        evaluation
        for evaluation in numbers_first
        if evaluation in numbers_second and numbers_first[evaluation].keys() & numbers_second[evaluation].keys()
    ]
    if not common_evaluations:
        raise InputError(
            f"Comparing failed for {first} and {second}: they have no dataset, key, strength and architecture in "
            "common. Use two sets of results for the same datasets."
        )
    first_architectures: set[ArchitectureId] = set().union(
        *(numbers_first[evaluation] for evaluation in common_evaluations)
    )
    second_architectures: set[ArchitectureId] = set().union(
        *(numbers_second[evaluation] for evaluation in common_evaluations)
    )
    return ComparisonReport(
        comparisons=tuple(
            _compare(evaluation, numbers_first[evaluation], numbers_second[evaluation])
            for evaluation in sorted(common_evaluations, key=_table_sort_key)
        ),
        only_first=tuple(sorted(numbers_first.keys() - numbers_second.keys(), key=_table_sort_key)),
        only_second=tuple(sorted(numbers_second.keys() - numbers_first.keys(), key=_table_sort_key)),
        architectures=(
            len(first_architectures - second_architectures),
            len(first_architectures & second_architectures),
            len(second_architectures - first_architectures),
        ),
        tolerance=tolerance,
        decimals=(result_sets[0].decimals, result_sets[1].decimals),
        sources=(result_sets[0].source, result_sets[1].source),
        remarks=tuple(dict.fromkeys(result_sets[0].remarks + result_sets[1].remarks)),
    )


def _match_weights(
    first: Mapping[str, ResultNumbers], second: Mapping[str, ResultNumbers]
) -> tuple[ResultNumbers, ResultNumbers]:
    """Select the numbers to compare: for common names of weights, or all numbers if each set has only one name."""
    if len(first) == len(second) == 1:
        return next(iter(first.values())), next(iter(second.values()))
    common_names = [name for name in first if name in second]
    return _merge_weights(first, common_names), _merge_weights(second, common_names)


def _merge_weights(numbers_by_weights: Mapping[str, ResultNumbers], names: Sequence[str]) -> ResultNumbers:
    """Merge the numbers for the given names of weights; if there are several, the architectures' names include them."""
    merged_results: dict[EvaluationKey, dict[ArchitectureId, float]] = {}
    for weights in names:
        for evaluation, numbers_by_architecture in numbers_by_weights[weights].items():
            merged_numbers = merged_results.setdefault(evaluation, {})
            for architecture, value in numbers_by_architecture.items():
                merged_numbers[architecture if len(names) == 1 else f"{architecture} {weights}"] = value
    return merged_results


def _table_sort_key(evaluation: EvaluationKey) -> tuple[str, int, str, float]:
    dataset, key, strength = evaluation
    task_keys = list(TASKS)
    task_key = key.partition(" ")[0]
    return dataset, task_keys.index(task_key) if task_key in task_keys else len(task_keys), key, strength


def _compare(
    evaluation: EvaluationKey,
    numbers_first: Mapping[ArchitectureId, float],
    numbers_second: Mapping[ArchitectureId, float],
) -> KeyComparison:
    architectures: list[Any] = sorted(numbers_first.keys() & numbers_second.keys())  # all indices or all text
    values_first, values_second = (
        np.array([numbers[architecture] for architecture in architectures])
        for numbers in (numbers_first, numbers_second)
    )
    differences = values_second - values_first
    # Equal decimals can differ by floating-point errors of about 1e-17, which must not count as differences.
    absolute_differences = np.round(np.abs(differences), 12)
    indices_of_largest = np.argsort(-absolute_differences, kind="stable")[:MAX_LISTED_DIFFERENCES]
    moved_most = [
        (architectures[index], float(values_first[index]), float(values_second[index]))
        for index in indices_of_largest.tolist()
        if absolute_differences[index] > 0
    ]
    tau = None
    if len(np.unique(values_first)) > 1 and len(np.unique(values_second)) > 1:
        from scipy.stats import kendalltau

        tau = float(kendalltau(values_first, values_second).statistic)
    dataset, key, strength = evaluation
    return KeyComparison(
        dataset=dataset,
        key=key,
        strength=strength,
        n_architectures=len(architectures),
        max_difference=float(absolute_differences.max()),
        mean_absolute_difference=float(absolute_differences.mean()),
        mean_difference=float(differences.mean()),
        kendall_tau=tau,
        moved_most=tuple(moved_most),
    )


def read_result_set(folder: Path) -> ResultSet:
    """Read the results in a results folder, an exported dataset or the published dataset.

    Raises:
        InputError: the folder is none of these.
    """
    if (folder / RESULTS_FOLDER_FILE).is_file():
        return _read_shards(folder)
    dataset = RobustnessDataset(folder)
    recorded_weights = (dataset.sweep or {}).get("weights", {})
    weights_names = (
        dataset.weights if len(dataset.weights) > 1 else [*recorded_weights] if len(recorded_weights) == 1 else [""]
    )
    numbers_by_weights = {
        weights: _read_dataset(dataset, weights if len(weights_names) > 1 else None) for weights in weights_names
    }
    if dataset.sweep is None:
        accuracies_by_evaluation = [
            accuracies
            for evaluation, accuracies in numbers_by_weights[weights_names[0]].items()
            if " " not in evaluation[1]
        ]
        examined_accuracies = [
            value
            for accuracies_by_architecture in accuracies_by_evaluation
            for value in islice(accuracies_by_architecture.values(), _N_EXAMINED_NETWORKS)
        ]
        decimals = count_decimals(examined_accuracies)
    else:
        decimals = _fewest_decimals({"round_to": dataset.sweep.get("round_to"), **dataset.sweep.get("sweep", {})})
    source = dataset.files.describe_source(dataset.data, dataset.keys_all)
    accuracy_files = [
        dataset.files.find(dataset_name, key, "accuracy") for dataset_name in dataset.data for key in dataset.keys_all
    ]
    # Parquet files are not hashed: they contain all measurements, so this would take longer than the comparison.
    json_files = [path for path in accuracy_files if path is not None and path.suffix != ".parquet"]
    remarks = describe_changes(folder, {path: sha256_of(path, MAX_EXPORTED_FILE_BYTES) for path in json_files})
    return ResultSet(numbers_by_weights, decimals, source, remarks=tuple(remarks))


def _fewest_decimals(record: Mapping[str, Any]) -> int | None:
    """Return the smallest number of decimals of accuracies that sweep.json contains; None if none were rounded."""
    # Protocols contain a number of decimals if an earlier version of robust201 imported the results from a dataset.
    protocol_decimals = [protocol.get("decimals", {}).get("accuracy") for protocol in record.get("protocols", ())]
    all_decimals = [record.get("round_to"), *protocol_decimals]
    return min((n_decimals for n_decimals in all_decimals if n_decimals is not None), default=None)


def _read_shards(folder: Path) -> ResultSet:
    plan, store = load_plan(folder), ShardStore.open(folder)
    inventory = store.inventory(verify="unverified")
    units: dict[tuple[str, ...], list[Unit]] = {}
    for unit in plan.units:
        measurements = unit.columns or ("accuracy",)
        strengths = tuple(
            strength for strength in unit.strengths if inventory.is_complete(unit, strength, measurements)
        )
        if strengths:
            units.setdefault(measurements, []).append(replace(unit, strengths=strengths))
    numbers_by_weights: dict[str, dict[EvaluationKey, dict[ArchitectureId, float]]] = {}
    for measurements, units_to_read in units.items():
        for unit, values in store.select(units_to_read, inventory, measurements).iter_values(None):
            numbers = numbers_by_weights.setdefault(unit.weights, {})
            for strength, columns in values.items():
                for name in measurements:
                    key = f"{unit.key} {name}" if unit.columns else unit.key
                    for label, value in _iter_scalars(key, columns[name].tolist()):
                        numbers.setdefault((unit.dataset, label, strength), {})[unit.architecture] = value
    return ResultSet(numbers_by_weights or {"": {}}, None, "shards")


def _read_dataset(dataset: RobustnessDataset, weights: str | None) -> ResultNumbers:
    numbers: dict[EvaluationKey, dict[ArchitectureId, float]] = {}
    for name in dataset.data:
        for key in dataset.keys_all:
            is_measure, is_single = dataset.files.kind_of(key) == "measure", dataset.files.has_single_value(name, key)
            measurements = dataset.measurements(name, key) if is_measure else ["accuracy"]
            paper_style_key = paper_key(key)
            values_by_dataset = dataset.query(name, key, measurements, missing_ok=True, weights=weights)
            for measurement, values in values_by_dataset[name].get(key, {}).items():
                strengths = dataset.strengths(name, key)
                for identifier, value in values.items():
                    value_label = f"{format_id(identifier)} {name} {key} {measurement}"
                    values_at_strengths = (
                        [value] if is_single else list_values_per_strength(value, strengths, value_label)
                    )
                    for strength, value_at_strength in zip(strengths, values_at_strengths, strict=True):
                        for label, scalar in _iter_scalars(
                            f"{paper_style_key} {measurement}" if is_measure else paper_style_key, value_at_strength
                        ):
                            numbers.setdefault((name, label, strength), {})[parse_architecture_id(identifier)] = scalar
    return numbers


def _iter_scalars(key: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the key and number of a value, or, for nested lists, an indexed key and the number of each element.

    Missing numbers are skipped.
    """
    if isinstance(value, list):
        for index, element in enumerate(value):
            yield from _iter_scalars(f"{key}[{index}]", element)
    elif value is not None and not math.isnan(value):
        yield key, float(value)
