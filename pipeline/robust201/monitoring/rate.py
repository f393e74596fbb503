"""How fast a sweep gets on and when it will end, from what its runs last measured."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """What a run reported when it last finished something, and how long ago; rates None before they are known."""

    evaluations_per_second: float | None
    macs_per_second: float | None
    span_seconds: float
    age_seconds: float

    def fade(self, on_time: float = 0.0) -> float:
        """Fraction of the rate that is left after its age, of which a fraction was computed at full rate."""
        span, age = self.span_seconds, self.age_seconds
        return (span + on_time * age) / (span + age) if age else 1.0


@dataclass(frozen=True, slots=True)
class RateEstimate:
    """How fast a sweep gets on."""

    evaluations_per_second: float | None
    seconds_left: float | None


def estimate_rate(rates: Sequence[MeasuredRate], *, work_left: float, work_in_flight: float) -> RateEstimate:
    """Estimate rate and time left.

    Work goes on at the known rate until all that is in flight should be done. From then on it counts as late, so that
    the rate falls and the time left grows.
    """
    known = [(rate, rate.macs_per_second) for rate in rates if rate.macs_per_second is not None]
    expected = sum(macs * rate.age_seconds for rate, macs in known)
    credited = min(expected, work_in_flight, work_left)
    on_time = credited / expected if expected else 1.0
    counted = [rate.evaluations_per_second * rate.fade() for rate in rates if rate.evaluations_per_second is not None]
    evaluations_rate = float(sum(counted)) if counted else None
    if not work_left:
        return RateEstimate(evaluations_rate, 0.0)
    macs_rate = sum(macs * rate.fade(on_time) for rate, macs in known)
    return RateEstimate(evaluations_rate, (work_left - credited) / macs_rate if macs_rate else None)
