"""Derived metrics of a dataset, which are computed from stored results and not stored themselves.

Definitions and required measurements are in docs/statistics.md; the formulas are in `robust201.statistics`.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.core.errors import ConfigError
from robust201.core.records import CLEAN_STRENGTH, ArchitectureId, show_architecture
from robust201.reader.arguments import as_draws, as_level
from robust201.reader.frames import read_frame
from robust201.reader.outcomes import Outcomes
from robust201.reader.rankings import Ranking, StoredResults, plain_number, rank_evaluations
from robust201.reader.result_files import ResultFiles
from robust201.reader.steps import has_steps, iter_steps
from robust201.reader.value_checks import CLEAN, architecture_of
from robust201.statistics.calibration import BINS_NEED, NEEDS, binned_calibration, stored_calibration
from robust201.statistics.outcomes import attack_success_rates, count_correct, worst_case
from robust201.statistics.rank_correlation import correlate_ranks
from robust201.statistics.robustness import (
    corruption_errors,
    relative_changes,
    relative_corruption_errors,
    robustness_r,
)
from robust201.statistics.steps import steps_of_success
from robust201.statistics.variance import summarise_seeds
from robust201.tasks import expand_keys
from robust201.tasks.columns import CALIBRATION, STEPS

MIN_RANKED = 8
"""Minimum number of architectures for which the agreement of two rankings is computed."""

OUTCOMES_NEED = "per-image outcomes: measure `predictions`, and export with --parquet --outcomes bits"


class MetricRow(NamedTuple):
    """A metric (see docs/statistics.md) for each architecture.

    Attributes:
        dataset: name of the dataset.
        metric: name of the metric.
        key: the key; several keys are joined with ``+``.
        strength: the strength; None for a metric over all strengths.
        values: values by architecture; NaN if undefined.
        note: remark for readers.
    """

    dataset: str
    metric: str
    key: str
    strength: float | None
    values: "pd.Series[float]"
    note: str = ""


class RankAgreement(NamedTuple):
    """Agreement of the rankings by robustness R and by the mean accuracy under the same attack.

    The mean is over the attack's strengths, without clean images.

    Attributes:
        dataset: name of the dataset.
        key: the attack.
        n: number of architectures with both numbers.
        kendall: tau-b; NaN if either metric is the same for all architectures.
        low: lower bound of its 95% interval over architectures.
        high: upper bound.
        top: size of the compared top groups; ties are broken by lowest id.
        overlap: number of architectures among the best by both numbers.
    """

    dataset: str
    key: str
    n: int
    kendall: float
    low: float
    high: float
    top: int
    overlap: int


TOP = 20
"""Number of best architectures whose overlap is counted, but at most half of all architectures."""


@dataclass(frozen=True)
class DerivedMetrics:
    """Derived metrics of a dataset.

    Attributes:
        rankings: rankings with their uncertainty.
        metrics: the metrics.
        needs: requirements of the missing metrics, by metric name.
        agreements: agreement of robustness R with mean accuracies.
    """

    rankings: Sequence[Ranking]
    metrics: Sequence[MetricRow]
    needs: Mapping[str, str]
    agreements: Sequence[RankAgreement] = ()

    def to_payload(self) -> dict[str, Any]:
        metrics = [
            {
                **{name: value for name, value in row._asdict().items() if name != "values"},
                "values": {str(architecture): plain_number(value) for architecture, value in row.values.items()},
            }
            for row in self.metrics
        ]
        rankings = [ranking.to_payload() for ranking in self.rankings]
        agreements = [
            {name: plain_number(value) for name, value in agreement._asdict().items()} for agreement in self.agreements
        ]
        return {"rankings": rankings, "metrics": metrics, "agreements": agreements, "needs": dict(self.needs)}

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per metric, key, strength and architecture."""
        parts = [
            pd.DataFrame({"value": row.values})
            .rename_axis("architecture")
            .reset_index()
            .assign(dataset=row.dataset, metric=row.metric, key=row.key, strength=row.strength)
            for row in self.metrics
        ]
        names = ["dataset", "metric", "key", "strength", "architecture", "value"]
        return pd.concat(parts, ignore_index=True)[names] if parts else pd.DataFrame(columns=names)


def derive_metrics(
    files: ResultFiles,
    datasets: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    reference: ArchitectureId | None = None,
    level: float = 0.05,
    n_draws: int = 0,
    seed: int = 0,
) -> DerivedMetrics:
    """Compute derived metrics (see `RobustnessDataset.metrics`)."""
    what = f"Computing metrics failed for {files.path}"
    level, n_draws = as_level(level, what), as_draws(n_draws, what)
    datasets = None if datasets is None else tuple(dict.fromkeys(datasets))
    keys = None if keys is None else expand_keys(keys, files.keys)
    metrics: list[MetricRow] = []
    rankings: list[Ranking] = []
    agreements: list[RankAgreement] = []
    needs: dict[str, str] = {"equal-mass and class-wise calibration error, brier, aurc": NEEDS}
    if datasets is None:  # a copy of the published dataset may lack some
        names = [
            name
            for name in files.datasets
            if any(files.find(name, key, "accuracy") is not None for key in keys or files.keys)
        ]
        datasets = tuple(names or files.datasets)
    for dataset in datasets:
        results = StoredResults.read(files, dataset, keys)
        rankings += rank_evaluations(results, level, n_draws, seed)
        metrics += [row for make in _METRICS for row in make(results, needs)]
        metrics += _corruption_errors(results, needs, reference)
        agreements += [
            _compare_ranks(results, row) for row in metrics if row.dataset == dataset and _is_comparable(row)
        ]
    metrics += _seed_rows(files, datasets, keys, needs)
    return DerivedMetrics(rankings, metrics, needs, agreements)


def _is_comparable(row: MetricRow) -> bool:
    return row.metric == "robustness_r" and len(row.values.dropna()) >= MIN_RANKED


def _compare_ranks(results: StoredResults, row: MetricRow) -> RankAgreement:
    attacked = results.accuracies[row.key].drop(columns=CLEAN_STRENGTH)
    pairs = pd.DataFrame({"r": row.values, "mean": attacked.mean(axis=1, skipna=False)}).dropna().sort_index()
    tau = correlate_ranks(pairs.to_numpy()).kendall.interval(0, 1)
    top = min(TOP, len(pairs) // 2)
    # A stable sort keeps equal architectures in the order of their ids.
    best = [set(pairs[name].sort_values(ascending=False, kind="stable").index[:top]) for name in pairs]
    return RankAgreement(results.name, row.key, len(pairs), *tau, top, len(best[0] & best[1]))


def worst_case_accuracies(outcomes_of_attacks: Sequence[Outcomes]) -> "pd.Series[float]":
    """Compute the fraction of images that each architecture classifies correctly under every attack."""
    first, *others = outcomes_of_attacks
    common = [name for name in first.architectures if all(name in other.architectures for other in others)]
    packed = worst_case([outcomes.of(common).packed for outcomes in outcomes_of_attacks])
    return pd.Series(count_correct(packed) / outcomes_of_attacks[0].n_images, index=common)


def _robustness(results: StoredResults, needs: dict[str, str]) -> Iterator[MetricRow]:
    for key in results.keys("attack"):
        if not results.files.repeats_clean(results.name, key):  # its curve does not start at the clean accuracy
            continue
        curves = results.accuracies[key].dropna()
        if CLEAN_STRENGTH not in curves or len(curves.columns) < 2:
            needs["robustness_r, relative_change"] = "clean accuracies and an attack"
            continue
        robustness = robustness_r(curves.columns, curves.to_numpy())
        note = f"over strengths 0 to {curves.columns[-1]:g}; floor {robustness.floor:.4g}"
        if robustness.exceeds_one.any():
            note += f"; {robustness.exceeds_one.sum():,} above 1"
        yield MetricRow(results.name, "robustness_r", key, None, pd.Series(robustness.value, index=curves.index), note)
        changes = relative_changes(curves.columns, curves.to_numpy())
        for strength, column in zip(curves.columns[1:], changes.T[1:], strict=True):
            yield MetricRow(
                results.name, "relative_change", key, float(strength), pd.Series(column, index=curves.index)
            )


def _success(results: StoredResults, needs: dict[str, str]) -> Iterator[MetricRow]:
    clean = results.outcomes(CLEAN, CLEAN_STRENGTH)
    for key, strength in results.evaluations():
        if results.files.kind_of(key) != "attack":
            continue
        attacked = results.outcomes(key, strength)
        if clean is None or attacked is None:
            needs["attack_success_rate"] = OUTCOMES_NEED
            continue
        common = [name for name in attacked.architectures if name in set(clean.architectures)]
        rates = attack_success_rates(clean.of(common).packed, attacked.of(common).packed)
        yield MetricRow(results.name, "attack_success_rate", key, strength, pd.Series(rates, index=common))


def _worst_cases(results: StoredResults, needs: dict[str, str]) -> Iterator[MetricRow]:
    attacks = [(key, s) for key, s in results.evaluations() if results.files.kind_of(key) == "attack"]
    groups: dict[tuple[Any, float], list[str]] = {}
    for key, strength in attacks:
        if (ball := results.files.norm_ball_of(key)) is not None:
            groups.setdefault((ball, strength), []).append(key)
    for (_, strength), keys in groups.items():
        outcomes_of_attacks = [results.outcomes(key, strength) for key in keys]
        if len(keys) < 2:
            continue
        if any(outcomes is None for outcomes in outcomes_of_attacks):
            needs["worst_case_accuracy"] = OUTCOMES_NEED
            continue
        worst = worst_case_accuracies([outcomes for outcomes in outcomes_of_attacks if outcomes is not None])
        yield MetricRow(results.name, "worst_case_accuracy", "+".join(keys), strength, worst)


def _calibration(results: StoredResults, needs: dict[str, str]) -> Iterator[MetricRow]:
    files = results.files
    for key in results.accuracies:
        if any(files.find(results.name, key, name) is None for name in ("confidence", "cm")):
            needs["overconfidence, class_calibration_gap"] = "the measurements `confidence` and `cm`"
            continue
        confidences, counts = files.read(results.name, key, "confidence"), files.read(results.name, key, "cm")
        strengths, single = files.strengths(results.name, key), files.is_single(results.name, key)
        by_strength: dict[float, dict[ArchitectureId, tuple[float, float]]] = {strength: {} for strength in strengths}
        for identifier, row in confidences.items():
            if identifier not in counts:
                continue
            for position, strength in enumerate(strengths):
                confidence, cm = (value if single else value[position] for value in (row, counts[identifier]))
                if confidence is None or cm is None:
                    continue
                stored = stored_calibration(cm, *(_numbers(confidence[name]) for name in ("prediction", "argmax")))
                by_strength[strength][architecture_of(identifier)] = (stored.overconfidence, stored.class_gap)
        for strength, by_network in by_strength.items():
            for position, metric in enumerate(("overconfidence", "class_calibration_gap")):
                values = pd.Series({name: pair[position] for name, pair in by_network.items()}, dtype=np.float64)
                yield MetricRow(results.name, metric, key, strength, values.sort_index())


def _binned_calibration(results: StoredResults, needs: dict[str, str]) -> Iterator[MetricRow]:
    files = results.files
    for key in results.accuracies:
        if files.find(results.name, key, CALIBRATION) is None:
            needs["ece, maximum_calibration_error"] = BINS_NEED
            continue
        bins, single = files.read(results.name, key, CALIBRATION), files.is_single(results.name, key)
        for position, strength in enumerate(files.strengths(results.name, key)):
            values = {
                architecture_of(identifier): binned_calibration(value["counts"], value["confidence"])
                for identifier, row in bins.items()
                if (value := row if single else row[position]) is not None
            }
            for number, metric in enumerate(("ece", "maximum_calibration_error")):
                series = pd.Series({name: pair[number] for name, pair in values.items()}, dtype=np.float64)
                yield MetricRow(results.name, metric, key, strength, series.sort_index())


def _steps(results: StoredResults, needs: dict[str, str]) -> Iterator[MetricRow]:
    for key in results.keys("attack"):
        if not has_steps(results.files, results.name, key):
            needs["mean_steps_of_success, median_steps_of_success"] = f"the measurement `{STEPS}`"
            continue
        by_strength: dict[float, dict[ArchitectureId, tuple[float, float]]] = {}
        for network in iter_steps(results.files, results.name, key):
            by_strength.setdefault(network.strength, {})[network.architecture] = steps_of_success(network.steps)
        for strength, by_network in sorted(by_strength.items()):
            for position, metric in enumerate(("mean_steps_of_success", "median_steps_of_success")):
                values = pd.Series({name: pair[position] for name, pair in by_network.items()}, dtype=np.float64)
                yield MetricRow(results.name, metric, key, strength, values.sort_index())


def _numbers(nested: Any) -> NDArray[np.float64]:
    array = np.array(nested, dtype=object)
    if array.dtype == object and array.ndim == 1 and any(isinstance(row, list) for row in nested):
        width = max(len(row) for row in nested if row is not None)
        return np.array([[math.nan] * width if row is None else row for row in nested], dtype=np.float64)
    return array.astype(np.float64)


_METRICS: tuple[Callable[[StoredResults, dict[str, str]], Iterator[MetricRow]], ...] = (
    _robustness,
    _success,
    _worst_cases,
    _calibration,
    _binned_calibration,
    _steps,
)


def _corruption_errors(
    results: StoredResults, needs: dict[str, str], reference: ArchitectureId | None
) -> Iterator[MetricRow]:
    keys = results.keys("corruption")
    if reference is None:
        if keys:
            needs["corruption_error, mean_corruption_error"] = "a reference network: --reference ARCHITECTURE"
        return
    if not keys:
        needs["corruption_error, mean_corruption_error"] = "results of a corruption"
        return
    errors, relative = {}, {}
    clean = results.accuracies[CLEAN][CLEAN_STRENGTH] if CLEAN in results.accuracies else None
    for key in keys:
        frame = results.accuracies[key].dropna()
        if reference not in frame.index:
            raise ConfigError(
                f"Computing corruption errors failed for {results.name} {key}: expected results of the reference "
                f"{show_architecture(reference)}, got none. Choose another reference."
            )
        reference_accuracies = frame.loc[reference].to_numpy()[None]
        values = frame.to_numpy()[:, None]
        errors[key] = pd.Series(corruption_errors(values, reference_accuracies)[:, 0], index=frame.index)
        note = f"relative to {show_architecture(reference)}"
        if errors[key].isna().all():
            note += "; undefined: the reference makes no error"
        yield MetricRow(results.name, "corruption_error", key, None, errors[key], note)
        if clean is not None:
            common = frame.index.intersection(clean.dropna().index)
            if reference in common:
                values = frame.loc[common].to_numpy()[:, None]
                reference_clean = float(clean[reference])
                relative_errors = relative_corruption_errors(
                    values, clean[common], reference_accuracies, reference_clean
                )
                relative[key] = pd.Series(relative_errors[:, 0], index=common)
    for metric, by_key, reason in (
        ("mean_corruption_error", errors, "the reference makes no error under"),
        ("relative_mean_corruption_error", relative, "the reference loses no accuracy under"),
    ):
        if by_key:
            mean = pd.DataFrame(by_key).mean(axis=1, skipna=False)
            note = f"over {len(by_key)} corruptions, relative to {show_architecture(reference)}"
            if undefined := [key for key, values in by_key.items() if values.isna().all()]:
                note += f"; undefined: {reason} {', '.join(undefined)}"
            yield MetricRow(results.name, metric, "+".join(by_key), None, mean, note)


def _seed_rows(
    files: ResultFiles, datasets: Sequence[str], keys: Sequence[str] | None, needs: dict[str, str]
) -> Iterator[MetricRow]:
    recorded = {} if files.sweep is None else files.sweep.get("weights") or {}
    trained = [
        ((weights.get("recipe"), weights.get("epochs"), weights.get("steps")), name)
        for name, weights in recorded.items()
        if weights.get("seed") is not None
    ]
    trained.sort(key=lambda pair: str(pair[0]))
    groups = [[name for _, name in rows] for _, rows in itertools.groupby(trained, key=lambda pair: pair[0])]
    groups = [names for names in groups if len(names) > 1]
    if not groups:
        needs["training_seed_deviation"] = (
            "weights from several training seeds (`weights` in the sweep), exported with --parquet"
        )
    for names, dataset in itertools.product(groups, datasets):
        frames = [read_frame(files.choosing(name), [dataset], keys).assign(trained=name) for name in names]
        for (key, strength), rows in pd.concat(frames).groupby(["key", "strength"], observed=True):
            if strength == CLEAN_STRENGTH and files.repeats_clean(dataset, str(key)):
                continue
            wide = rows.pivot_table(index="architecture", columns="trained", values="value", dropna=False)
            deviations, pooled = summarise_seeds(wide.to_numpy())
            note = f"over {', '.join(names)}; pooled {pooled:.4g}"
            deviation = pd.Series(deviations, index=wide.index)
            yield MetricRow(dataset, "training_seed_deviation", str(key), float(str(strength)), deviation, note)
