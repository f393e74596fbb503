"""What a run reports to a monitoring system: one table of metrics, and where their values go.

The shards say what is done; metrics are for watching. Who counts knows no monitoring system: it records values under
the names of `METRICS`, and the executor says where they go (`runtime.executors`).
"""

from dataclasses import dataclass
from typing import Literal

_UNIT_TAGS = ("dataset", "key")


@dataclass(frozen=True)
class Metric:
    """One row of the table."""

    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    description: str
    tags: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()


METRICS = {
    "robust201_evaluations_total": Metric(
        "counter", "evaluations", "evaluations computed, slices counted by their share of the images", _UNIT_TAGS
    ),
    "robust201_images_total": Metric("counter", "images", "images perturbed and measured, per strength", _UNIT_TAGS),
    "robust201_part_seconds": Metric(
        "histogram", "seconds", "worker time of one shard's work", _UNIT_TAGS, (0.1, 1, 3, 10, 30, 100, 300, 1000, 3000)
    ),
    "robust201_failures_total": Metric("counter", "parts", "parts given up", (*_UNIT_TAGS, "kind")),
    "robust201_worker_deaths_total": Metric("counter", "workers", "workers that died under a bundle"),
    "robust201_preemptions_total": Metric("counter", "workers", "workers whose machine was taken away"),
    "robust201_micro_batch_halvings_total": Metric(
        "counter", "halvings", "times that memory ran out and fewer images were shown at once", _UNIT_TAGS
    ),
    "robust201_missing_evaluations": Metric("gauge", "evaluations", "evaluations left to compute", _UNIT_TAGS),
    "robust201_seconds_left": Metric("gauge", "seconds", "estimated time to the end at the rate so far"),
}
"""Metrics by name (docs/watching.md lists them). Ray puts ``ray_`` before each name."""


class Metrics:
    """Where values go: nowhere, unless a subclass says otherwise."""

    def record(self, name: str, value: float = 1.0, **tags: str) -> None:
        """Add (counter), set (gauge) or observe (histogram) one of `METRICS`; never waits and never fails a run."""
