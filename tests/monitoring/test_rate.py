"""Estimates of the rate and of the time left, made while parts are in flight."""

import pytest

from robust201.monitoring.activity import MeasuredRate, RateEstimate, estimate_rate


def rate_of_age(seconds: float) -> MeasuredRate:
    """Return a rate whose last part finished some seconds ago."""
    return MeasuredRate(evaluations_per_second=0.5, macs_per_second=10.0, span_seconds=100.0, age_seconds=seconds)


def estimate(age_seconds: float) -> RateEstimate:
    return estimate_rate([rate_of_age(age_seconds)], work_left=1000.0, work_in_flight=600.0)


def test_time_left_decreases_with_time_while_parts_are_in_flight() -> None:
    assert [estimate(age).seconds_left for age in (0.0, 30.0, 60.0)] == [100.0, 70.0, 40.0]


def test_rate_falls_and_time_left_grows_if_parts_are_overdue() -> None:
    overdue, long_overdue = estimate(100.0), estimate(300.0)
    # The rate of 10 MACs per second was measured over 100 s, and this measurement ended 100 s ago. The 600 MACs in
    # flight account for 60 s of the time since then, and 400 MACs are left after them.
    assert overdue.seconds_left == pytest.approx(400 / (10 * (100 + 60) / 200))
    assert long_overdue.seconds_left is not None
    assert long_overdue.seconds_left > overdue.seconds_left
    assert (overdue.evaluations_per_second, long_overdue.evaluations_per_second) == (0.25, 0.125)
