"""Comparison of two result sets, such as results of two seeds, engines or devices, or the published dataset."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from robust201.core.errors import ConfigError, InputError
from robust201.core.files import MAX_LISTED_BYTES, sha256_of
from robust201.core.records import ArchitectureId, Unit
from robust201.export.key_rows import count_decimals
from robust201.export.listing import explain_changes
from robust201.planning.plan import counted_plan
from robust201.planning.plan_file import load_plan
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.result_files import RESULTS_FOLDER_FILE, paper_key, values_by_strength
from robust201.reader.value_checks import architecture_of, show_id
from robust201.shards import ShardStore
from robust201.tasks import TASKS

MAX_MOVED = 5
"""Number of architectures listed for each key and strength, those with the largest differences."""

_SAMPLED = 20

EvaluationKey = tuple[str, str, float]
"""Dataset, key in the paper's style with a measure's column (``jacobian squared_norm``, ``mine norm[2]``), strength."""

Numbers = Mapping[EvaluationKey, Mapping[ArchitectureId, float]]
"""Accuracies, or numbers of a measure, by architecture for each evaluation."""


@dataclass(frozen=True)
class ResultSet:
    """Numbers of a results folder, an exported dataset or the published one.

    Attributes:
        by_weights: numbers by name of the weights; the name is empty if architectures have a single set of weights.
        decimals: number of decimals of the accuracies; None if they were not rounded.
        source: what the numbers were read from, such as ``"shards"`` or ``"JSON"``.
        remarks: messages about files that were changed or deleted after the export.
    """

    by_weights: Mapping[str, Numbers]
    decimals: int | None
    source: str
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeyComparison:
    """Comparison of two result sets under one key at one strength.

    Attributes:
        dataset: name of the dataset.
        key: the key in the paper's style, for a measure followed by its column and, in a list, the index.
        strength: the strength.
        n_architectures: number of architectures in both sets.
        max_difference: largest absolute difference.
        mean_absolute_difference: mean absolute difference.
        mean_difference: mean of the second set's numbers minus the first set's.
        kendall_tau: rank correlation, tau-b; None if all numbers of a set are equal.
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
        only_first: evaluations that only the first set has.
        only_second: evaluations that only the second set has.
        architectures: numbers of architectures that only the first set has, both have, and only the second set has,
            over all common evaluations.
        tolerance: largest absolute difference that is accepted.
        decimals: number of decimals of each set's accuracies; None if they were not rounded.
        sources: what each set was read from, such as ``"shards"`` or ``"JSON"``.
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
    def different(self) -> tuple[KeyComparison, ...]:
        return tuple(comparison for comparison in self.comparisons if comparison.max_difference > 0)

    @property
    def names_only_first(self) -> tuple[str, ...]:
        """Keys, and strengths of common keys, that only the first set has."""
        return self._name_keys(self.only_first, self.only_second)

    @property
    def names_only_second(self) -> tuple[str, ...]:
        return self._name_keys(self.only_second, self.only_first)

    def _name_keys(self, evaluations: Iterable[EvaluationKey], others: Iterable[EvaluationKey]) -> tuple[str, ...]:
        """Return the names of keys, with their strengths if the other set has the key too."""
        elsewhere = {(row.dataset, row.key) for row in self.comparisons} | {(name, key) for name, key, _ in others}
        strengths_by_key: dict[tuple[str, str], list[str]] = {}
        for dataset, key, strength in evaluations:
            strengths_by_key.setdefault((dataset, key), []).append(f"{strength:g}")
        return tuple(
            f"{dataset} {key} at {', '.join(strengths)}" if (dataset, key) in elsewhere else f"{dataset} {key}"
            for (dataset, key), strengths in strengths_by_key.items()
        )

    @property
    def rounding(self) -> float:
        """Largest difference between equal accuracies that rounding alone can cause."""
        first, second = self.decimals
        return 0.0 if first == second else sum(0.5 * 10.0**-count for count in self.decimals if count is not None)

    @property
    def max_difference(self) -> float:
        return max(comparison.max_difference for comparison in self.comparisons)

    @property
    def within(self) -> bool:
        return self.max_difference <= self.tolerance

    def to_payload(self) -> dict[str, Any]:
        first, both, second = self.architectures
        return {
            "within": self.within,
            "tolerance": self.tolerance,
            "max_difference": self.max_difference,
            "decimals": list(self.decimals),
            "sources": list(self.sources),
            "remarks": list(self.remarks),
            "architectures": {"only_first": first, "both": both, "only_second": second},
            "only_first": [list(evaluation) for evaluation in self.only_first],
            "only_second": [list(evaluation) for evaluation in self.only_second],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
        }


def compare_results(first: Path, second: Path, *, tolerance: float = 0.0) -> ComparisonReport:
    """Compare the accuracies and the numbers of measures that two result sets have in common.

    Each set is a results folder, an exported dataset, or the published one. If architectures have several sets of
    weights, those of the same name are compared. Evaluations that only one set has are reported, but do not affect
    `ComparisonReport.within`, so that a part of a sweep can be compared with the whole.

    Raises:
        ConfigError: the tolerance, the largest accepted absolute difference, is not a number of 0 or more.
        InputError: a folder is not a result set, or the two sets have nothing in common.
        ResultsError: a row has more or fewer values than strengths.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ConfigError(
            f"Comparing failed for the tolerance: expected a finite number, 0 or more, got {tolerance}. "
            "Give the largest accepted difference in accuracy, such as 0.001."
        )
    sets = read_result_set(first), read_result_set(second)
    numbers_first, numbers_second = _match_weights(sets[0].by_weights, sets[1].by_weights)
    common = [
        evaluation
        for evaluation in numbers_first
        if evaluation in numbers_second and numbers_first[evaluation].keys() & numbers_second[evaluation].keys()
    ]
    if not common:
        raise InputError(
            f"Comparing failed for {first} and {second}: expected a dataset, key, strength and architecture in both, "
            "got none. Name two sets of results of the same datasets."
        )
    first_ids: set[ArchitectureId] = set().union(*(numbers_first[evaluation] for evaluation in common))
    second_ids: set[ArchitectureId] = set().union(*(numbers_second[evaluation] for evaluation in common))
    return ComparisonReport(
        comparisons=tuple(
            _compare(evaluation, numbers_first[evaluation], numbers_second[evaluation])
            for evaluation in sorted(common, key=_table_order)
        ),
        only_first=tuple(sorted(numbers_first.keys() - numbers_second.keys(), key=_table_order)),
        only_second=tuple(sorted(numbers_second.keys() - numbers_first.keys(), key=_table_order)),
        architectures=(len(first_ids - second_ids), len(first_ids & second_ids), len(second_ids - first_ids)),
        tolerance=tolerance,
        decimals=(sets[0].decimals, sets[1].decimals),
        sources=(sets[0].source, sets[1].source),
        remarks=tuple(dict.fromkeys(sets[0].remarks + sets[1].remarks)),
    )


def _match_weights(first: Mapping[str, Numbers], second: Mapping[str, Numbers]) -> tuple[Numbers, Numbers]:
    """Return the numbers to compare: those of common names of weights, or all if each set has a single name."""
    if len(first) == len(second) == 1:
        return next(iter(first.values())), next(iter(second.values()))
    names = [name for name in first if name in second]
    return _merge_weights(first, names), _merge_weights(second, names)


def _merge_weights(by_weights: Mapping[str, Numbers], names: Sequence[str]) -> Numbers:
    """Merge the numbers of some names of weights; if there are several, they are appended to the architectures."""
    merged: dict[EvaluationKey, dict[ArchitectureId, float]] = {}
    for weights in names:
        for evaluation, by_architecture in by_weights[weights].items():
            numbers = merged.setdefault(evaluation, {})
            for architecture, number in by_architecture.items():
                numbers[architecture if len(names) == 1 else f"{architecture} {weights}"] = number
    return merged


def _table_order(evaluation: EvaluationKey) -> tuple[str, int, str, float]:
    dataset, key, strength = evaluation
    order = list(TASKS)
    name = key.partition(" ")[0]
    return dataset, order.index(name) if name in order else len(order), key, strength


def _compare(
    evaluation: EvaluationKey,
    numbers_first: Mapping[ArchitectureId, float],
    numbers_second: Mapping[ArchitectureId, float],
) -> KeyComparison:
    architectures: list[Any] = sorted(numbers_first.keys() & numbers_second.keys())  # all indices or all text
    before, after = (np.array([values[i] for i in architectures]) for values in (numbers_first, numbers_second))
    differences = after - before
    # Differences of rounded decimals have floating-point errors of about 1e-17, which must not count as differences.
    absolute = np.round(np.abs(differences), 12)
    by_difference = np.argsort(-absolute, kind="stable")[:MAX_MOVED]
    largest = [(architectures[i], float(before[i]), float(after[i])) for i in by_difference.tolist() if absolute[i] > 0]
    tau = None
    if len(np.unique(before)) > 1 and len(np.unique(after)) > 1:
        from scipy.stats import kendalltau

        tau = float(kendalltau(before, after).statistic)
    dataset, key, strength = evaluation
    return KeyComparison(
        dataset=dataset,
        key=key,
        strength=strength,
        n_architectures=len(architectures),
        max_difference=float(absolute.max()),
        mean_absolute_difference=float(absolute.mean()),
        mean_difference=float(differences.mean()),
        kendall_tau=tau,
        moved_most=tuple(largest),
    )


def read_result_set(folder: Path) -> ResultSet:
    """Read the result set of a results folder, an exported dataset or the published one.

    Raises:
        InputError: the folder is none of these.
    """
    if (folder / RESULTS_FOLDER_FILE).is_file():
        return _read_shards(folder)
    dataset = RobustnessDataset(folder)
    recorded = (dataset.sweep or {}).get("weights", {})
    names = dataset.weights if len(dataset.weights) > 1 else [*recorded] if len(recorded) == 1 else [""]
    by_weights = {name: _read_dataset(dataset, name if len(names) > 1 else None) for name in names}
    if dataset.sweep is None:
        accuracies = [row for evaluation, row in by_weights[names[0]].items() if " " not in evaluation[1]]
        values = [value for by_index in accuracies for value in islice(by_index.values(), _SAMPLED)]
        decimals = count_decimals(values)
    else:
        decimals = _fewest_decimals({"round_to": dataset.sweep.get("round_to"), **dataset.sweep.get("sweep", {})})
    source = dataset.files.describe_source(dataset.data, dataset.keys_all)
    read = [dataset.files.find(name, key, "accuracy") for name in dataset.data for key in dataset.keys_all]
    # Parquet files contain all measurements; hashing them would take longer than the comparison.
    json_files = [file for file in read if file is not None and file.suffix != ".parquet"]
    remarks = explain_changes(folder, {file: sha256_of(file, MAX_LISTED_BYTES) for file in json_files})
    return ResultSet(by_weights, decimals, source, remarks=tuple(remarks))


def _fewest_decimals(record: Mapping[str, Any]) -> int | None:
    """Return the smallest number of decimals of accuracies that sweep.json records; None if none were rounded."""
    # Protocols record decimals if an earlier version had imported the results from another dataset.
    recorded = [protocol.get("decimals", {}).get("accuracy") for protocol in record.get("protocols", ())]
    counts = [record.get("round_to"), *recorded]
    return min((count for count in counts if count is not None), default=None)


def _read_shards(folder: Path) -> ResultSet:
    plan, store = counted_plan(load_plan(folder)), ShardStore.open(folder)
    inventory = store.inventory()
    units: dict[tuple[str, ...], list[Unit]] = {}
    for unit in plan.units:
        measurements = unit.columns or ("accuracy",)
        strengths = tuple(s for s in unit.strengths if inventory.is_complete(unit, s, measurements))
        if strengths:
            units.setdefault(measurements, []).append(replace(unit, strengths=strengths))
    by_weights: dict[str, dict[EvaluationKey, dict[ArchitectureId, float]]] = {}
    for measurements, selected in units.items():
        for unit, values in store.select(selected, inventory, measurements).iter_values(None):
            numbers = by_weights.setdefault(unit.weights, {})
            for strength, columns in values.items():
                for name in measurements:
                    key = f"{unit.key} {name}" if unit.columns else unit.key
                    for label, number in _numbers(key, columns[name].tolist()):
                        numbers.setdefault((unit.dataset, label, strength), {})[unit.architecture] = number
    return ResultSet(by_weights or {"": {}}, None, "shards")


def _read_dataset(dataset: RobustnessDataset, weights: str | None) -> Numbers:
    numbers: dict[EvaluationKey, dict[ArchitectureId, float]] = {}
    for name in dataset.data:
        for key in dataset.keys_all:
            is_measure, single = dataset.files.kind_of(key) == "measure", dataset.files.is_single(name, key)
            measurements = dataset.measurements(name, key) if is_measure else ["accuracy"]
            spelled = paper_key(key)
            read = dataset.query(name, key, measurements, missing_ok=True, weights=weights)
            for measurement, values in read[name].get(key, {}).items():
                strengths = dataset.strengths(name, key)
                for identifier, value in values.items():
                    what = f"{show_id(identifier)} {name} {key} {measurement}"
                    by_strength = [value] if single else values_by_strength(value, strengths, what)
                    for strength, stored in zip(strengths, by_strength, strict=True):
                        for label, number in _numbers(f"{spelled} {measurement}" if is_measure else spelled, stored):
                            numbers.setdefault((name, label, strength), {})[architecture_of(identifier)] = number
    return numbers


def _numbers(key: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield a label and number for a value, or for each item of a list; missing numbers are skipped."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers(f"{key}[{index}]", item)
    elif value is not None and not math.isnan(value):
        yield key, float(value)
