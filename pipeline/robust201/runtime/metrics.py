"""Metrics of a run for monitoring systems, and the interface that records them.

Metrics are for monitoring only; completed work is recorded by the shards. Code that records metrics does not depend on
a monitoring system, because the executor provides the object that receives them (`runtime.executors`).
"""

from dataclasses import dataclass
from typing import Literal

_UNIT_TAGS = ("dataset", "key")


@dataclass(frozen=True)
class Metric:
    """Description of a metric; `boundaries` are the upper bounds of a histogram's buckets."""

    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    description: str
    tags: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()


METRICS = {
    "robust201_evaluations_total": Metric(
        "counter",
        "evaluations",
        "evaluations computed; an evaluation on a slice of the images counts as the slice's fraction",
        _UNIT_TAGS,
    ),
    "robust201_images_total": Metric("counter", "images", "images evaluated, counted once per strength", _UNIT_TAGS),
    "robust201_part_seconds": Metric(
        "histogram", "seconds", "worker time per shard", _UNIT_TAGS, (0.1, 1, 3, 10, 30, 100, 300, 1000, 3000)
    ),
    "robust201_failures_total": Metric("counter", "parts", "parts given up", (*_UNIT_TAGS, "kind")),
    "robust201_worker_deaths_total": Metric("counter", "workers", "workers that died while running a bundle"),
    "robust201_preemptions_total": Metric("counter", "workers", "workers lost to preemption of their machine"),
    "robust201_micro_batch_halvings_total": Metric(
        "counter", "halvings", "out-of-memory errors after which the micro-batch was halved", _UNIT_TAGS
    ),
    "robust201_missing_evaluations": Metric("gauge", "evaluations", "evaluations left to compute", _UNIT_TAGS),
    "robust201_seconds_left": Metric("gauge", "seconds", "estimated time to the end at the current rate"),
}
"""Metrics by name (docs/watching.md lists them). Ray adds the prefix ``ray_`` to each name."""


class Metrics:
    """Metrics sink; this base class discards all values."""

    def record(self, name: str, value: float = 1.0, **tags: str) -> None:
        """Increase a counter, set a gauge, or add a value to a histogram; this never blocks or fails a run."""
