"""Counts of a plan, and estimates of its storage and of the worker-hours of its missing parts.

These worker-hours follow from measured speeds; before the first measurement, from an assumed speed.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from robust201.sweep.parts import SweepState
from robust201.sweep.plan import Plan, PlannedKey
from robust201.tasks.columns import COLUMNS, count_numbers

# Measured in unpacked shards of a sweep with 10 classes: 0.8 bytes per confusion count in Parquet and 3.3 in JSON, 6.1
# and 21.7 bytes per mean confidence, and 670 bytes per row for the rest, including the row's part of the footer. Sizes
# for 100 classes have not been measured.
_SHARD_BYTES_PER_COUNT, _SHARD_BYTES_PER_MEAN, _SHARD_BYTES_PER_ROW = 1, 6, 670
_JSON_BYTES_PER_COUNT, _JSON_BYTES_PER_MEAN = 3, 22


class KeyCost(NamedTuple):
    """Estimated worker-hours of the missing parts of one key."""

    dataset: str
    key: str
    hours: float


class Speeds:
    """Seconds per multiply-accumulate by dataset and key, measured from events (see `store.events`)."""

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        self._totals: dict[tuple[str, str], tuple[float, float]] = {}
        for event in events:
            if event["event"] == "done" and "macs" in event:
                self.add(event["dataset"], event["key"], event["macs"], event["seconds"])

    def add(self, dataset: str, key: str, macs: float, seconds: float) -> None:
        """Add the measurement of a part."""
        total_macs, total_seconds = self._totals.get((dataset, key), (0.0, 0.0))
        self._totals[dataset, key] = total_macs + macs, total_seconds + seconds

    def estimate_seconds(self, macs: Mapping[tuple[str, str], float]) -> float | None:
        """Return the worker-seconds for `macs`, given by dataset and key; None if nothing was measured."""
        if not self._totals:
            return None
        return sum(n_macs * self.seconds_per_mac(dataset_and_key, 0.0) for dataset_and_key, n_macs in macs.items())

    def seconds_per_mac(self, dataset_and_key: tuple[str, str], assumed: float) -> float:
        """Return the measured seconds for a dataset and key, else the measured overall mean, else `assumed`."""
        macs, seconds = self._totals.get(dataset_and_key, (0.0, 0.0))
        if not (macs and seconds) and self._totals:
            macs, seconds = (sum(values) for values in zip(*self._totals.values(), strict=True))
        return seconds / macs if macs and seconds else assumed


def key_costs(state: SweepState, speeds: Speeds, assumed_gmacs: float) -> list[KeyCost]:
    """Return the cost of each key that has missing parts."""
    assumed, costs = 1 / (assumed_gmacs * 1e9), []
    for key_state in (key_state for key_state in state.keys if key_state.n_missing_parts):
        dataset, key = key_state.key.dataset, key_state.key.key
        seconds = key_state.missing_macs * speeds.seconds_per_mac((dataset, key), assumed)
        costs.append(KeyCost(dataset, key, seconds / 3600))
    return costs


def estimate_bytes(plan: Plan) -> tuple[int, int]:
    """Return the estimated bytes of a plan's shards and of its published JSON."""
    shard_bytes = json_bytes = 0
    for key in plan.keys:
        n_counts, n_means = _numbers_per_row(plan, key)
        size = _SHARD_BYTES_PER_ROW + n_counts * _SHARD_BYTES_PER_COUNT + n_means * _SHARD_BYTES_PER_MEAN
        shard_bytes += key.n_evaluations * size
        json_bytes += key.n_evaluations * (n_counts * _JSON_BYTES_PER_COUNT + n_means * _JSON_BYTES_PER_MEAN)
    return shard_bytes, json_bytes


def _numbers_per_row(plan: Plan, key: PlannedKey) -> tuple[int, int]:
    """Return the number of counts and the number of means in a row."""
    if key.task.columns:
        return 0, len(key.task.columns)
    n_classes = plan.config.dataset_spec(key.dataset).n_classes
    return count_numbers((name for name in key.columns if COLUMNS[name].dimensions), n_classes, key.n_images)


def estimate(plan: Plan, state: SweepState, speeds: Speeds) -> dict[str, Any]:
    """Return the counts of a plan and estimates of its bytes and hours, as a JSON value.

    `worker_hours` and `hours_by_key` cover the missing parts, at each key's measured speed if there is one;
    `estimated_worker_hours` covers the whole plan at the assumed speed.
    """
    execution = plan.config.execution
    costs = key_costs(state, speeds, execution.assumed_gmacs())
    shard_bytes, json_bytes = estimate_bytes(plan)
    macs = sum(float(key.macs.sum()) * len(key.strengths) for key in plan.keys)
    return {
        "name": plan.config.name,
        "architectures": len({network.architecture for key in plan.keys for network in key.networks}),
        "units": sum(len(key.networks) for key in plan.keys),
        "evaluations": plan.n_evaluations,
        "evaluations_done": state.n_done,
        "evaluated_images": sum(key.n_evaluations * key.n_images for key in plan.keys),
        "estimated_shard_bytes": shard_bytes,
        "estimated_json_bytes": json_bytes,
        **execution.estimate_hours(macs),
        "worker_hours": sum(cost.hours for cost in costs),
        "hours_by_key": [cost._asdict() for cost in costs],
    }
