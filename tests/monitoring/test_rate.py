"""The estimate of rate and time left between two finished parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust201.monitoring.activity import MeasuredRate, RateEstimate, estimate_rate


def aged(seconds: float) -> MeasuredRate:
    """Return a rate that was measured some seconds ago."""
    return MeasuredRate(0.5, 10.0, span_seconds=100.0, age_seconds=seconds)


def estimate(age: float) -> RateEstimate:
    return estimate_rate([aged(age)], work_left=1000.0, work_in_flight=600.0)


def test_time_left_decreases_by_the_clock_while_parts_are_in_flight() -> None:
    assert [estimate(age).seconds_left for age in (0.0, 30.0, 60.0)] == [100.0, 70.0, 40.0]


def test_rate_falls_and_time_left_grows_if_parts_are_overdue() -> None:
    late, later = estimate(100.0), estimate(300.0)
    assert late.seconds_left == pytest.approx(400 / (10 * (100 + 60) / 200))
    assert later.seconds_left is not None
    assert later.seconds_left > late.seconds_left
    assert (late.evaluations_per_second, later.evaluations_per_second) == (0.25, 0.125)


@given(
    ages=st.lists(st.floats(0, 1e5), min_size=1, max_size=4),
    work=st.floats(0, 1e7),
    fraction=st.floats(0, 1),
)
def test_estimate_is_never_negative_or_faster_than_measured(ages: list[float], work: float, fraction: float) -> None:
    result = estimate_rate([aged(age) for age in ages], work_left=work, work_in_flight=fraction * work)
    assert result.seconds_left is not None
    assert result.seconds_left >= 0
    assert result.seconds_left >= (work - sum(10 * age for age in ages)) / (10 * len(ages)) - 1e-6 * work
    assert result.evaluations_per_second is not None
    assert 0 < result.evaluations_per_second <= 0.5 * len(ages) + 1e-9


def test_estimate_without_a_measurement_is_unknown() -> None:
    assert estimate_rate([MeasuredRate(None, None, 0.0, 5.0)], work_left=10.0, work_in_flight=0.0) == RateEstimate(
        None, None
    )
