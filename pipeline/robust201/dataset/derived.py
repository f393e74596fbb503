"""Derived metrics of a dataset, which are computed from stored results.

docs/statistics.md defines the metrics and lists the measurements that they require. `robust201.statistics` contains the
formulas.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from robust201.core.records import CLEAN_STRENGTH
from robust201.dataset.layout import CLEAN
from robust201.dataset.outcomes import Outcomes, read_checked_outcomes
from robust201.statistics.outcomes import attack_success_rates, count_correct, worst_case
from robust201.statistics.robustness import relative_changes, robustness_r

if TYPE_CHECKING:
    from robust201.dataset.merged_folders import MergedFolders

OUTCOMES_REQUIREMENT = "per-image outcomes: export with --parquet --outcomes bits"


class DerivedMetrics(NamedTuple):
    """Derived metrics of a dataset.

    Attributes:
        table: one row per metric, key, strength and network: `dataset`, `metric`, `key` (several keys are joined with
            ``+``), `strength` (NaN for a metric over all strengths), `note` (remark on how the values were computed;
            may be empty), `network` and `value` (NaN if undefined).
        needs: requirements of the metrics that could not be computed for some or all keys, by the comma-separated names
            of these metrics.
    """

    table: pd.DataFrame
    needs: Mapping[str, str]


class Metric(NamedTuple):
    """One metric's values by network, under a key at a strength; see `DerivedMetrics` for the fields."""

    metric: str
    key: str
    strength: float
    values: "pd.Series[float]"
    note: str = ""


class _Results:
    """Accuracies and per-image outcomes of one dataset.

    Attributes:
        reader: reader of the dataset's files.
        accuracies: accuracies by network (index) and (key, strength).
        attacks: accuracies of each attack, by network and strength.
    """

    def __init__(self, reader: "MergedFolders", name: str) -> None:
        self.reader, self._name, self.accuracies = reader, name, reader.accuracies(name)
        keys = dict.fromkeys(map(str, self.accuracies.columns.get_level_values(0)))
        self.attacks = {key: self.accuracies[key].dropna(how="all") for key in keys if reader.kind_of(key) == "attack"}
        self._outcomes: dict[tuple[str, float], Outcomes | None] = {}

    def attack_strengths(self) -> Iterator[tuple[str, float]]:
        """Yield each attack with each of its strengths."""
        for key, accuracies in self.attacks.items():
            yield from ((key, float(strength)) for strength in accuracies.columns)

    def outcomes(self, key: str, strength: float) -> Outcomes | None:
        """Return per-image outcomes, checked against the accuracies; None if outcomes are not stored."""
        if (key, strength) not in self._outcomes:
            self._outcomes[key, strength] = read_checked_outcomes(self.reader, self._name, key, strength)
        return self._outcomes[key, strength]


def derive_metrics(reader: "MergedFolders", datasets: Sequence[str] | None = None) -> DerivedMetrics:
    """Compute derived metrics (see `Dataset.metrics`)."""
    tables = [pd.DataFrame(columns=["dataset", "metric", "key", "strength", "note", "network", "value"])]
    needs: dict[str, str] = {}
    # A copy of the published data may lack some of its datasets.
    evaluated_datasets = [name for name in reader.data if any(reader.has(name, key) for key in reader.keys_all)]
    for dataset in dict.fromkeys(datasets or evaluated_datasets or reader.data):
        if dataset not in evaluated_datasets:
            raise reader.folders[0].missing_file_error(dataset, CLEAN, "accuracy")
        results = _Results(reader, dataset)
        for metric, key, strength, values, note in (row for derive in _DERIVATIONS for row in derive(results, needs)):
            identity = {"dataset": dataset, "metric": metric, "key": key, "strength": strength, "note": note}
            tables.append(pd.DataFrame(identity | {"network": values.index, "value": values.array}))
    return DerivedMetrics(pd.concat(tables[1:] or tables, ignore_index=True), needs)


def _derive_robustness(results: _Results, needs: dict[str, str]) -> Iterator[Metric]:
    if CLEAN not in results.accuracies or not results.attacks:
        needs["robustness_r, relative_change"] = "clean accuracies and an attack"
        return
    for key, accuracies in results.attacks.items():
        if CLEAN_STRENGTH in accuracies:  # such as a grid of rotations, which has no curve over strengths
            continue
        curves = results.accuracies[CLEAN].join(accuracies, how="right").dropna()
        values = np.ascontiguousarray(curves)  # the last bits of R depend on the memory layout
        robustness = robustness_r(curves.columns, values)
        note = f"over strengths 0 to {curves.columns[-1]:g}; floor {robustness.floor:.4g}"
        if robustness.exceeds_one.any():
            note += f"; {robustness.exceeds_one.sum():,} above 1"
        yield Metric("robustness_r", key, np.nan, pd.Series(robustness.value, index=curves.index), note)
        changes = pd.DataFrame(relative_changes(curves.columns, values), index=curves.index, columns=curves.columns)
        for strength in changes.columns[1:]:
            yield Metric("relative_change", key, float(strength), changes[strength])


def _derive_success_rates(results: _Results, needs: dict[str, str]) -> Iterator[Metric]:
    clean = results.outcomes(CLEAN, CLEAN_STRENGTH)
    for key, strength in results.attack_strengths():
        attacked = results.outcomes(key, strength)
        if clean is None or attacked is None:
            needs["attack_success_rate"] = OUTCOMES_REQUIREMENT
            continue
        networks = _common_networks([attacked, clean])
        rates = attack_success_rates(clean.of(networks).packed, attacked.of(networks).packed)
        yield Metric("attack_success_rate", key, strength, pd.Series(rates, index=networks))


def _derive_worst_cases(results: _Results, needs: dict[str, str]) -> Iterator[Metric]:
    keys_by_ball: dict[tuple[Any, float], list[str]] = {}
    for key, strength in results.attack_strengths():
        if (ball := results.reader.norm_ball_of(key)) is not None:
            keys_by_ball.setdefault((ball, strength), []).append(key)
    for (_, strength), keys in keys_by_ball.items():
        if len(keys) < 2:
            continue
        outcomes = [attacked for key in keys if (attacked := results.outcomes(key, strength)) is not None]
        if len(outcomes) < len(keys):
            needs["worst_case_accuracy"] = OUTCOMES_REQUIREMENT
            continue
        networks = _common_networks(outcomes)
        packed = worst_case([attacked.of(networks).packed for attacked in outcomes])
        accuracies = pd.Series(count_correct(packed) / outcomes[0].n_images, index=networks)
        yield Metric("worst_case_accuracy", "+".join(keys), strength, accuracies)


def _common_networks(outcomes: Sequence[Outcomes]) -> list[Any]:
    others = [{*other.architectures} for other in outcomes[1:]]
    return [network for network in outcomes[0].architectures if all(network in networks for networks in others)]


_DERIVATIONS: tuple[Callable[[_Results, dict[str, str]], Iterator[Metric]], ...] = (
    _derive_robustness,
    _derive_success_rates,
    _derive_worst_cases,
)
"""Functions that yield metrics of a dataset. They add the requirements of metrics that they cannot compute to the
dict."""
