"""How rate and time left age between two finished parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust201.monitoring.activity import MeasuredRate, RateEstimate, estimate_rate


def aged(seconds: float) -> MeasuredRate:
    """A rate that was measured some time ago."""
    return MeasuredRate(0.5, 10.0, span_seconds=100.0, age_seconds=seconds)


def estimate(age: float) -> RateEstimate:
    return estimate_rate([aged(age)], work_left=1000.0, work_in_flight=600.0)


def test_time_left_goes_down_by_the_clock_while_parts_are_in_flight() -> None:
    assert [estimate(age).seconds_left for age in (0.0, 30.0, 60.0)] == [100.0, 70.0, 40.0]


def test_past_the_time_at_which_parts_should_be_done_the_rate_falls_and_the_time_left_grows() -> None:
    late, later = estimate(100.0), estimate(300.0)
    assert late.seconds_left == pytest.approx(400 / (10 * (100 + 60) / 200))
    assert later.seconds_left is not None
    assert later.seconds_left > late.seconds_left
    assert (late.evaluations_per_second, later.evaluations_per_second) == (0.25, 0.125)


@given(
    ages=st.lists(st.floats(0, 1e5), min_size=1, max_size=4),
    work=st.floats(0, 1e7),
    share=st.floats(0, 1),
)
def test_an_estimate_is_never_negative_nor_faster_than_what_was_measured(
    ages: list[float], work: float, share: float
) -> None:
    result = estimate_rate([aged(age) for age in ages], work_left=work, work_in_flight=share * work)
    assert result.seconds_left is not None
    assert result.seconds_left >= 0
    assert result.seconds_left >= (work - sum(10 * age for age in ages)) / (10 * len(ages)) - 1e-6 * work
    assert result.evaluations_per_second is not None
    assert 0 < result.evaluations_per_second <= 0.5 * len(ages) + 1e-9


def test_before_anything_is_known_nothing_is_estimated() -> None:
    assert estimate_rate([MeasuredRate(None, None, 0.0, 5.0)], work_left=10.0, work_in_flight=0.0) == RateEstimate(
        None, None
    )
