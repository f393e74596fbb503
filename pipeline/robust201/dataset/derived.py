"""Derived metrics of a dataset, which are computed from stored results.

docs/statistics.md defines the metrics and lists the measurements that they require. `robust201.statistics` contains the
formulas.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from robust201.core.errors import ConfigError
from robust201.core.records import CLEAN_STRENGTH, ArchitectureId, format_architecture
from robust201.dataset.layout import CLEAN
from robust201.dataset.outcomes import Outcomes, checked_outcomes
from robust201.statistics.outcomes import attack_success_rates, count_correct, worst_case
from robust201.statistics.robustness import (
    corruption_errors,
    relative_changes,
    relative_corruption_errors,
    robustness_r,
)

if TYPE_CHECKING:
    from robust201.dataset.merged_folders import MergedFolders

OUTCOMES_REQUIREMENT = "per-image outcomes: export with --parquet --outcomes bits"


class MetricRow(NamedTuple):
    """Values of one metric (see docs/statistics.md), one per architecture.

    Attributes:
        dataset: name of the dataset.
        metric: name of the metric.
        key: the key; several keys are joined with ``+``.
        strength: the strength; None for a metric over all strengths.
        values: values by architecture; NaN if undefined.
        note: remark on how the values were computed; may be empty.
    """

    dataset: str
    metric: str
    key: str
    strength: float | None
    values: "pd.Series[float]"
    note: str = ""


@dataclass(frozen=True)
class DerivedMetrics:
    """Derived metrics of a dataset.

    Attributes:
        metrics: the metrics.
        needs: what the metrics that could not be computed require, by the comma-separated names of these metrics.
    """

    metrics: Sequence[MetricRow]
    needs: Mapping[str, str]

    def to_payload(self) -> dict[str, Any]:
        metrics = [
            {
                **{name: value for name, value in metric._asdict().items() if name != "values"},
                "values": {str(architecture): _to_plain_number(value) for architecture, value in metric.values.items()},
            }
            for metric in self.metrics
        ]
        return {"metrics": metrics, "needs": dict(self.needs)}

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per metric, key, strength and architecture."""
        frames = [
            pd.DataFrame({"value": metric.values})
            .rename_axis("architecture")
            .reset_index()
            .assign(dataset=metric.dataset, metric=metric.metric, key=metric.key, strength=metric.strength)
            for metric in self.metrics
        ]
        column_names = ["dataset", "metric", "key", "strength", "architecture", "value"]
        return pd.concat(frames, ignore_index=True)[column_names] if frames else pd.DataFrame(columns=column_names)


class _Results:
    """Accuracies and per-image outcomes of one dataset.

    Attributes:
        name: name of the dataset.
        reader: reader of the dataset's files.
        accuracies: by key, a DataFrame with one row per network and one column per strength.
        curves: accuracies of attacks, beginning with the clean accuracy at strength 0.
    """

    def __init__(self, reader: "MergedFolders", name: str) -> None:
        self.reader, self.name = reader, name
        table = reader.accuracies(name)
        keys = dict.fromkeys(map(str, table.columns.get_level_values(0)))
        self.accuracies = {key: table[key].dropna(how="all") for key in keys if reader.kind_of(key) != "measure"}
        self.curves = dict(self.accuracies)
        for key in self.keys("attack"):
            if CLEAN_STRENGTH not in self.accuracies[key] and CLEAN in table:
                self.curves[key] = table[CLEAN].join(self.accuracies[key], how="right")
        self._outcomes: dict[tuple[str, float], Outcomes | None] = {}

    def keys(self, kind: str) -> list[str]:
        return [key for key in self.accuracies if self.reader.kind_of(key) == kind]

    def attacks(self) -> Iterator[tuple[str, float]]:
        """Yield attacks and strengths."""
        for key in self.keys("attack"):
            yield from ((key, float(strength)) for strength in self.accuracies[key].columns)

    def outcomes(self, key: str, strength: float) -> Outcomes | None:
        """Return per-image outcomes, checked against the accuracies; None if outcomes are not stored."""
        if (key, strength) not in self._outcomes:
            self._outcomes[key, strength] = checked_outcomes(self.reader, self.name, key, strength)
        return self._outcomes[key, strength]


def derive_metrics(
    reader: "MergedFolders", datasets: Sequence[str] | None = None, *, reference: ArchitectureId | None = None
) -> DerivedMetrics:
    """Compute derived metrics (see `Dataset.metrics`)."""
    metrics: list[MetricRow] = []
    requirements: dict[str, str] = {}
    # A copy of the published data may lack some of its datasets.
    evaluated = [name for name in reader.data if any(reader.has(name, key) for key in reader.keys_all)]
    datasets = tuple(dict.fromkeys(datasets or evaluated or reader.data))
    for dataset in datasets:
        if dataset not in evaluated:
            raise reader.folders[0].missing_file_error(dataset, CLEAN, "accuracy")
        results = _Results(reader, dataset)
        metrics += [metric_row for derive in _DERIVATIONS for metric_row in derive(results, requirements)]
        metrics += _derive_corruption_errors(results, requirements, reference)
    metrics += _derive_seed_deviations(reader, datasets, requirements)
    return DerivedMetrics(metrics, requirements)


def worst_case_accuracies(outcomes_of_tasks: Sequence[Outcomes]) -> "pd.Series[float]":
    """Return the fraction of images that each architecture classifies correctly under every one of several tasks."""
    first_outcomes, *other_outcomes = outcomes_of_tasks
    common_architectures = [
        architecture
        for architecture in first_outcomes.architectures
        if all(architecture in other.architectures for other in other_outcomes)
    ]
    packed = worst_case([outcomes.of(common_architectures).packed for outcomes in outcomes_of_tasks])
    return pd.Series(count_correct(packed) / first_outcomes.n_images, index=common_architectures)


def _derive_robustness(results: _Results, requirements: dict[str, str]) -> Iterator[MetricRow]:
    for key in results.keys("attack"):
        if CLEAN_STRENGTH in results.accuracies[key]:  # its curve does not begin with the clean accuracy
            continue
        curves = results.curves[key].dropna()
        values = np.ascontiguousarray(curves)  # the last bits of R depend on the layout
        if CLEAN_STRENGTH not in curves:
            requirements["robustness_r, relative_change"] = "clean accuracies and an attack"
            continue
        robustness = robustness_r(curves.columns, values)
        note = f"over strengths 0 to {curves.columns[-1]:g}; floor {robustness.floor:.4g}"
        if robustness.exceeds_one.any():
            note += f"; {robustness.exceeds_one.sum():,} above 1"
        yield MetricRow(results.name, "robustness_r", key, None, pd.Series(robustness.value, index=curves.index), note)
        changes = relative_changes(curves.columns, values)
        for strength, changes_at_strength in zip(curves.columns[1:], changes.T[1:], strict=True):
            yield MetricRow(
                results.name,
                "relative_change",
                key,
                float(strength),
                pd.Series(changes_at_strength, index=curves.index),
            )


def _derive_success_rates(results: _Results, requirements: dict[str, str]) -> Iterator[MetricRow]:
    clean_outcomes = results.outcomes(CLEAN, CLEAN_STRENGTH)
    for key, strength in results.attacks():
        outcomes_under_attack = results.outcomes(key, strength)
        if clean_outcomes is None or outcomes_under_attack is None:
            requirements["attack_success_rate"] = OUTCOMES_REQUIREMENT
            continue
        common_architectures = [
            architecture
            for architecture in outcomes_under_attack.architectures
            if architecture in set(clean_outcomes.architectures)
        ]
        rates = attack_success_rates(
            clean_outcomes.of(common_architectures).packed, outcomes_under_attack.of(common_architectures).packed
        )
        yield MetricRow(
            results.name, "attack_success_rate", key, strength, pd.Series(rates, index=common_architectures)
        )


def _derive_worst_cases(results: _Results, requirements: dict[str, str]) -> Iterator[MetricRow]:
    keys_by_ball: dict[tuple[Any, float], list[str]] = {}
    for key, strength in results.attacks():
        if (ball := results.reader.norm_ball_of(key)) is not None:
            keys_by_ball.setdefault((ball, strength), []).append(key)
    for (_, strength), keys in keys_by_ball.items():
        outcomes_of_attacks = [results.outcomes(key, strength) for key in keys]
        if len(keys) < 2:
            continue
        if any(outcomes is None for outcomes in outcomes_of_attacks):
            requirements["worst_case_accuracy"] = OUTCOMES_REQUIREMENT
            continue
        accuracies = worst_case_accuracies([outcomes for outcomes in outcomes_of_attacks if outcomes is not None])
        yield MetricRow(results.name, "worst_case_accuracy", "+".join(keys), strength, accuracies)


_DERIVATIONS: tuple[Callable[[_Results, dict[str, str]], Iterator[MetricRow]], ...] = (
    _derive_robustness,
    _derive_success_rates,
    _derive_worst_cases,
)
"""Functions that yield metrics of a dataset. They add what is required for metrics that they cannot compute to the
dict."""


def _derive_corruption_errors(
    results: _Results, requirements: dict[str, str], reference: ArchitectureId | None
) -> Iterator[MetricRow]:
    keys = results.keys("corruption")
    if reference is None:
        if keys:
            requirements["corruption_error, mean_corruption_error"] = "a reference network (metrics(reference=…))"
        return
    if not keys:
        requirements["corruption_error, mean_corruption_error"] = "results of a corruption"
        return
    errors_by_key, relative_errors_by_key = {}, {}
    clean_accuracies = results.accuracies[CLEAN][CLEAN_STRENGTH] if CLEAN in results.accuracies else None
    for key in keys:
        frame = results.accuracies[key].dropna()
        if reference not in frame.index:
            raise ConfigError(
                f"Computing corruption errors failed for {results.name} {key}: the reference "
                f"{format_architecture(reference)} has no results. Choose another reference."
            )
        reference_accuracies = frame.loc[reference].to_numpy()[None]
        accuracies = frame.to_numpy()[:, None]
        errors_by_key[key] = pd.Series(corruption_errors(accuracies, reference_accuracies)[:, 0], index=frame.index)
        note = f"relative to {format_architecture(reference)}"
        if errors_by_key[key].isna().all():
            note += "; undefined: the reference makes no errors"
        yield MetricRow(results.name, "corruption_error", key, None, errors_by_key[key], note)
        if clean_accuracies is not None:
            common_architectures = frame.index.intersection(clean_accuracies.dropna().index)
            if reference in common_architectures:
                accuracies = frame.loc[common_architectures].to_numpy()[:, None]
                reference_clean = float(clean_accuracies[reference])
                relative_errors = relative_corruption_errors(
                    accuracies, clean_accuracies[common_architectures], reference_accuracies, reference_clean
                )
                relative_errors_by_key[key] = pd.Series(relative_errors[:, 0], index=common_architectures)
    for metric, series_by_key, undefined_reason in (
        ("mean_corruption_error", errors_by_key, "the reference makes no errors under"),
        ("relative_mean_corruption_error", relative_errors_by_key, "the reference loses no accuracy under"),
    ):
        if series_by_key:
            mean = pd.DataFrame(series_by_key).mean(axis=1, skipna=False)
            note = f"over {len(series_by_key)} corruptions, relative to {format_architecture(reference)}"
            if undefined_keys := [key for key, series in series_by_key.items() if series.isna().all()]:
                note += f"; undefined: {undefined_reason} {', '.join(undefined_keys)}"
            yield MetricRow(results.name, metric, "+".join(series_by_key), None, mean, note)


def _derive_seed_deviations(
    reader: "MergedFolders", datasets: Sequence[str], requirements: dict[str, str]
) -> Iterator[MetricRow]:
    recorded_weights = {} if reader.sweep is None else reader.sweep.get("weights") or {}
    trained_weights = [
        ((weights.get("recipe"), weights.get("epochs"), weights.get("steps")), weights_name)
        for weights_name, weights in recorded_weights.items()
        if weights.get("seed") is not None
    ]
    trained_weights.sort(key=lambda pair: str(pair[0]))
    weights_of_recipes = [
        [weights_name for _, weights_name in group]
        for _, group in itertools.groupby(trained_weights, key=lambda pair: pair[0])
    ]
    weights_of_recipes = [weights_names for weights_names in weights_of_recipes if len(weights_names) > 1]
    if not weights_of_recipes:
        requirements["training_seed_deviation"] = (
            "weights from several training seeds (`weights` in the sweep), exported with --parquet"
        )
    for weights_names, dataset in itertools.product(weights_of_recipes, datasets):
        tables = {name: reader.with_weights(name).accuracies(dataset) for name in weights_names}
        tables = {name: table for name, table in tables.items() if len(table)}
        if not tables:
            continue
        wide = pd.concat(tables, axis=1, names=["weights"])
        for key, strength in dict.fromkeys((str(key), float(strength)) for _, key, strength in wide.columns.tolist()):
            deviation = wide.xs((key, strength), axis=1, level=["key", "strength"]).std(axis=1, ddof=1)
            note = f"over {', '.join(weights_names)}"
            yield MetricRow(dataset, "training_seed_deviation", key, strength, deviation, note)


def _to_plain_number(value: Any) -> Any:
    """Convert a NumPy number to a JSON value; NaN becomes None."""
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and math.isnan(number) else number
