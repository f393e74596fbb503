"""Metrics through Ray, whose agent on every machine offers them to Prometheus."""

from ray.util.metrics import Counter, Gauge, Histogram

from robust201.runtime.metrics import METRICS, Metrics


class RayMetrics(Metrics):
    """Records values with the Ray that this process is connected to."""

    def __init__(self) -> None:
        self._instruments: dict[str, Counter | Gauge | Histogram] = {}

    def record(self, name: str, value: float = 1.0, **tags: str) -> None:
        instrument = self._instruments.get(name)
        if instrument is None:
            instrument = self._instruments[name] = _make_instrument(name)
        if isinstance(instrument, Counter):
            if value > 0:  # Ray refuses to add nothing
                instrument.inc(value, tags)
        elif isinstance(instrument, Gauge):
            instrument.set(value, tags)
        else:
            instrument.observe(value, tags)


def _make_instrument(name: str) -> Counter | Gauge | Histogram:
    metric = METRICS[name]
    described = f"{metric.description} ({metric.unit})"
    if metric.kind == "histogram":
        return Histogram(name, described, boundaries=list(metric.boundaries), tag_keys=metric.tags)
    return (Counter if metric.kind == "counter" else Gauge)(name, described, tag_keys=metric.tags)
