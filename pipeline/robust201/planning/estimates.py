"""Count the units and evaluations of a plan, and estimate its storage and worker-hours."""

from collections import Counter
from typing import Any

from robust201.planning.plan import Plan
from robust201.tasks.columns import COLUMNS, columns_of, count_numbers

# Measured in a sweep with 10 classes, uncompacted: a confusion count takes 0.8 bytes in Parquet and
# 3.3 in JSON, a mean confidence 6.1 and 21.7, and the rest of a row including its part of the footer 670. Sizes for 100
# classes have not been measured.
_SHARD_BYTES_PER_COUNT, _SHARD_BYTES_PER_MEAN, _SHARD_BYTES_PER_ROW = 1, 6, 670
_JSON_BYTES_PER_COUNT, _JSON_BYTES_PER_MEAN = 3, 22


def estimate(plan: Plan) -> dict[str, Any]:
    """Return the counts of a plan and estimates of its bytes and worker-hours, as a JSON value."""
    planned_keys = plan.planned_keys
    n_units_by_key = Counter[tuple[str, str]]()
    for planned_key in planned_keys:
        n_units_by_key[planned_key.dataset, planned_key.key] += len(planned_key.networks)
    n_images = {(planned_key.dataset, planned_key.key): planned_key.n_images for planned_key in planned_keys}
    shard_bytes = json_bytes = 0
    for (dataset, key), n_units in n_units_by_key.items():
        n_rows = n_units * len(plan.strengths(dataset, key))
        n_counts, n_means = _numbers_per_row(plan, dataset, key, n_images[dataset, key])
        shard_bytes += n_rows * (
            _SHARD_BYTES_PER_ROW + n_counts * _SHARD_BYTES_PER_COUNT + n_means * _SHARD_BYTES_PER_MEAN
        )
        json_bytes += n_rows * (n_counts * _JSON_BYTES_PER_COUNT + n_means * _JSON_BYTES_PER_MEAN)
    macs = sum(sum(plan.unit_macs(planned_key)) for planned_key in planned_keys)
    return {
        "name": plan.config.name,
        "architectures": len(
            {network.architecture for planned_key in planned_keys for network in planned_key.networks}
        ),
        "units": n_units_by_key.total(),
        "evaluations": plan.n_evaluations,
        "evaluated_images": sum(planned_key.n_evaluations * planned_key.n_images for planned_key in planned_keys),
        "estimated_shard_bytes": shard_bytes,
        "estimated_json_bytes": json_bytes,
        **plan.config.execution.estimate_hours(macs),
        "units_by_dataset_and_key": {
            dataset: {
                key: n_units_by_key[dataset, key] for key in plan.keys(dataset) if (dataset, key) in n_units_by_key
            }
            for dataset in plan.datasets
        },
    }


def _numbers_per_row(plan: Plan, dataset: str, key: str, n_images: int) -> tuple[int, int]:
    """Return the number of counts and the number of means in a row."""
    if plan.tasks[key].columns:
        return 0, len(plan.tasks[key].columns)
    n_classes = plan.n_classes(dataset)
    names = (name for name in columns_of(plan.measurements, n_classes) if COLUMNS[name].dimensions)
    return count_numbers(names, n_classes, n_images)
