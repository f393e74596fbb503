"""Two result sets side by side: another seed, another engine or device, or the published dataset."""

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

MOVED_MOST = 5
"""Architectures named of each key and strength."""

_SAMPLED = 20

Place = tuple[str, str, float]
"""Dataset, key in the paper's style with a measure's column (``jacobian squared_norm``, ``mine norm[2]``), strength."""

NumbersByPlace = Mapping[Place, Mapping[ArchitectureId, float]]
"""Accuracy, or number of a measure, by architecture of each place."""


@dataclass(frozen=True)
class ResultSet:
    """What is compared of a results folder, of an exported dataset or of the published one (see `ComparisonReport`).

    Numbers are by the name of the weights, empty where an architecture has one state.
    """

    by_weights: Mapping[str, NumbersByPlace]
    decimals: int | None
    source: str
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeyComparison:
    """One key at one strength, in both sets.

    The key is in the paper's style; of a measure, its column and, in a list, the place follow. `mean_difference` is
    that of the second set's accuracies less the first's, the other two are absolute. The rank correlation, tau-b, is
    None where one set has no two different accuracies. `moved_most` has architectures with both accuracies.
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
    """Two result sets, compared; of pairs, the first is of the first set.

    `architectures` are how many only the first has, both have, and only the second has, over all places in common.
    `decimals` are those of the accuracies, None where all are kept; `sources` what the sets were read from, such as
    ``"shards"`` or ``"JSON"``; `remarks` what of a dataset's files was changed or is gone since they were exported.
    """

    comparisons: tuple[KeyComparison, ...]
    only_first: tuple[Place, ...]
    only_second: tuple[Place, ...]
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
        """What only the first set has: a key that the second has at other strengths with those that it lacks."""
        return self._name_places(self.only_first, self.only_second)

    @property
    def names_only_second(self) -> tuple[str, ...]:
        return self._name_places(self.only_second, self.only_first)

    def _name_places(self, places: Iterable[Place], others: Iterable[Place]) -> tuple[str, ...]:
        """Name keys, with their strengths where the other set has the key too."""
        elsewhere = {(row.dataset, row.key) for row in self.comparisons} | {(name, key) for name, key, _ in others}
        named: dict[tuple[str, str], list[str]] = {}
        for dataset, key, strength in places:
            named.setdefault((dataset, key), []).append(f"{strength:g}")
        return tuple(
            f"{dataset} {key} at {', '.join(strengths)}" if (dataset, key) in elsewhere else f"{dataset} {key}"
            for (dataset, key), strengths in named.items()
        )

    @property
    def rounding(self) -> float:
        """Largest difference that the sets' decimals make of equal accuracies."""
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
            "only_first": [list(place) for place in self.only_first],
            "only_second": [list(place) for place in self.only_second],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
        }


def compare_results(first: Path, second: Path, *, tolerance: float = 0.0) -> ComparisonReport:
    """Compare accuracies and numbers of measures of two result sets, as far as both have them.

    Each is a results folder, an exported dataset, or the published one. Where one has several weights of an
    architecture, those of the same name are compared. What only one of the two has is named, and makes no difference
    to `ComparisonReport.within`: a part of a sweep can be compared with the whole.

    Raises:
        ConfigError: the tolerance, a largest absolute difference, is no number of 0 or more.
        InputError: a folder is neither, or the two have nothing in common.
        ResultsError: a row has more or fewer values than strengths.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ConfigError(
            f"Comparing failed for the tolerance: expected a finite number, 0 or more, got {tolerance}. "
            "Give the largest accepted difference in accuracy, such as 0.001."
        )
    sets = read_result_set(first), read_result_set(second)
    one, other = _same_choices(sets[0].by_weights, sets[1].by_weights)
    common = [place for place in one if place in other and one[place].keys() & other[place].keys()]
    if not common:
        raise InputError(
            f"Comparing failed for {first} and {second}: expected a dataset, key, strength and architecture in both, "
            "got none. Name two sets of results of the same datasets."
        )
    left: set[ArchitectureId] = set().union(*(one[place] for place in common))
    right: set[ArchitectureId] = set().union(*(other[place] for place in common))
    return ComparisonReport(
        comparisons=tuple(_compare(place, one[place], other[place]) for place in sorted(common, key=_table_order)),
        only_first=tuple(sorted(one.keys() - other.keys(), key=_table_order)),
        only_second=tuple(sorted(other.keys() - one.keys(), key=_table_order)),
        architectures=(len(left - right), len(left & right), len(right - left)),
        tolerance=tolerance,
        decimals=(sets[0].decimals, sets[1].decimals),
        sources=(sets[0].source, sets[1].source),
        remarks=tuple(dict.fromkeys(sets[0].remarks + sets[1].remarks)),
    )


def _same_choices(
    first: Mapping[str, NumbersByPlace], second: Mapping[str, NumbersByPlace]
) -> tuple[NumbersByPlace, NumbersByPlace]:
    """Choose the weights to compare: the only ones of both, whatever their names, else those of the same names."""
    if len(first) == len(second) == 1:
        return next(iter(first.values())), next(iter(second.values()))
    names = [name for name in first if name in second]
    return _joined(first, names), _joined(second, names)


def _joined(by_weights: Mapping[str, NumbersByPlace], names: Sequence[str]) -> NumbersByPlace:
    """Merge the numbers of some weights, architectures named with their weights if there are several."""
    merged: dict[Place, dict[ArchitectureId, float]] = {}
    for weights in names:
        for place, by_architecture in by_weights[weights].items():
            numbers = merged.setdefault(place, {})
            for architecture, number in by_architecture.items():
                numbers[architecture if len(names) == 1 else f"{architecture} {weights}"] = number
    return merged


def _table_order(place: Place) -> tuple[str, int, str, float]:
    dataset, key, strength = place
    order = list(TASKS)
    name = key.partition(" ")[0]
    return dataset, order.index(name) if name in order else len(order), key, strength


def _compare(place: Place, one: Mapping[ArchitectureId, float], other: Mapping[ArchitectureId, float]) -> KeyComparison:
    architectures: list[Any] = sorted(one.keys() & other.keys())  # all indices or all text
    before, after = (np.array([values[i] for i in architectures]) for values in (one, other))
    differences = after - before
    # Differences of decimals are no decimals: what two files agree on to the last digit must not differ by 1e-17.
    absolute = np.round(np.abs(differences), 12)
    most = np.argsort(-absolute, kind="stable")[:MOVED_MOST]
    moved = [(architectures[i], float(before[i]), float(after[i])) for i in most.tolist() if absolute[i] > 0]
    tau = None
    if len(np.unique(before)) > 1 and len(np.unique(after)) > 1:
        from scipy.stats import kendalltau

        tau = float(kendalltau(before, after).statistic)
    dataset, key, strength = place
    return KeyComparison(
        dataset=dataset,
        key=key,
        strength=strength,
        n_architectures=len(architectures),
        max_difference=float(absolute.max()),
        mean_absolute_difference=float(absolute.mean()),
        mean_difference=float(differences.mean()),
        kendall_tau=tau,
        moved_most=tuple(moved),
    )


def read_result_set(folder: Path) -> ResultSet:
    """Read a results folder, an exported dataset or the published one; InputError if the folder is none of them."""
    if (folder / RESULTS_FOLDER_FILE).is_file():
        return _read_shards(folder)
    dataset = RobustnessDataset(folder)
    recorded = (dataset.sweep or {}).get("weights", {})
    names = dataset.weights if len(dataset.weights) > 1 else [*recorded] if len(recorded) == 1 else [""]
    by_weights = {name: _read_dataset(dataset, name if len(names) > 1 else None) for name in names}
    if dataset.sweep is None:
        accuracies = [row for place, row in by_weights[names[0]].items() if " " not in place[1]]
        values = [value for by_index in accuracies for value in islice(by_index.values(), _SAMPLED)]
        decimals = count_decimals(values)
    else:
        decimals = _fewest_decimals({"round_to": dataset.sweep.get("round_to"), **dataset.sweep.get("sweep", {})})
    source = dataset.files.describe_source(dataset.data, dataset.keys_all)
    read = [dataset.files.find(name, key, "accuracy") for name in dataset.data for key in dataset.keys_all]
    # Parquet files hold every measurement, and hashing them would take longer than the comparison.
    json_files = [file for file in read if file is not None and file.suffix != ".parquet"]
    remarks = explain_changes(folder, {file: sha256_of(file, MAX_LISTED_BYTES) for file in json_files})
    return ResultSet(by_weights, decimals, source, remarks=tuple(remarks))


def _fewest_decimals(record: Mapping[str, Any]) -> int | None:
    """Return the fewest decimals of accuracies, by an export's sweep.json; None where all are kept."""
    # Exports of results that an earlier version had read from another dataset name the decimals of that.
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
    by_weights: dict[str, dict[Place, dict[ArchitectureId, float]]] = {}
    for measurements, held in units.items():
        for unit, values in store.select(held, inventory, measurements).iter_values(None):
            found = by_weights.setdefault(unit.weights, {})
            for strength, columns in values.items():
                for name in measurements:
                    key = f"{unit.key} {name}" if unit.columns else unit.key
                    for label, number in _numbers(key, columns[name].tolist()):
                        found.setdefault((unit.dataset, label, strength), {})[unit.architecture] = number
    return ResultSet(by_weights or {"": {}}, None, "shards")


def _read_dataset(dataset: RobustnessDataset, weights: str | None) -> NumbersByPlace:
    found: dict[Place, dict[ArchitectureId, float]] = {}
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
                    numbers = [value] if single else values_by_strength(value, strengths, what)
                    for strength, one in zip(strengths, numbers, strict=True):
                        for label, number in _numbers(f"{spelled} {measurement}" if is_measure else spelled, one):
                            found.setdefault((name, label, strength), {})[architecture_of(identifier)] = number
    return found


def _numbers(key: str, value: Any) -> Iterator[tuple[str, float]]:
    """Name the number that a value is, or each of a list by its place; those that are missing are left out."""
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from _numbers(f"{key}[{place}]", item)
    elif value is not None and not math.isnan(value):
        yield key, float(value)
