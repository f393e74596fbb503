"""Estimates of the remaining time, for simulated sequences of events with a simulated clock."""

import heapq
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from robust201.core.records import Part, Receipt, Unit
from robust201.runtime.heartbeat import LastBeat, TrainingSteps
from robust201.runtime.progress import MIN_RATE_SECONDS, RunProgress, Tracker
from robust201.runtime.scheduler import RunTally
from robust201.runtime.work_log import WorkLog

COSTS = {"clean": (1, 40), "fgsm": (5, 12), "pgd": (17, 19), "square": (17, 60), "apgd": (33, 18)}
"""Forward passes per evaluation, and worker seconds per 10^11 multiply-accumulates, by key.

The numbers are similar to the demo's numbers.
"""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("robust201.runtime.progress.time.monotonic", clock)
    return clock


class FakePlan:
    """Simulated plan; its argument `macs` returns the multiply-accumulates of one evaluation of a unit."""

    def __init__(self, macs: Callable[[Unit], float]) -> None:
        self._macs = macs
        self.n_evaluations = 0

    def macs(self, part: Part) -> float:
        previous_strength = dict(zip(part.unit.strengths, (0.0, *part.unit.strengths), strict=False))
        if part.unit.key == "plain":  # a training run; its strengths are step numbers
            return sum(strength - previous_strength[strength] for strength in part.strengths) * self._macs(part.unit)
        return len(part.strengths) * self._macs(part.unit)


def make_part(key: str, network: int, strengths: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0)) -> Part:
    unit = Unit(f"{key}{network}", network, "digits", key, strengths, 1, "p", "c")
    return Part(unit, strengths, 0, 1)


def forward_macs(network: int) -> float:
    return 2e7 * (1 + network / 4)


def demo_macs(unit: Unit) -> float:
    return COSTS.get(unit.key, COSTS["clean"])[0] * forward_macs(int(unit.architecture))


def demo_seconds(part: Part) -> float:
    return demo_macs(part.unit) * len(part.strengths) * COSTS.get(part.unit.key, COSTS["clean"])[1] / 1e11


def run_parts(parts: list[Part], tracker: Tracker, clock: Clock, *, workers: int = 2) -> Iterator[RunProgress]:
    """Simulate workers that finish parts in order; yield the progress after each part."""
    finish_times = [(clock.now, -1)] * workers
    waiting_parts = list(enumerate(parts))
    while finish_times:
        clock.now, part_index = heapq.heappop(finish_times)
        if part_index >= 0:
            part = parts[part_index]
            tracker.record_event(Receipt(part.unit.id, part.strengths, 0, 1, "shard", demo_seconds(part)), RunTally())
            yield tracker.progress
        if waiting_parts:
            part_index, part = waiting_parts.pop(0)
            heapq.heappush(finish_times, (clock.now + demo_seconds(part), part_index))


def test_seconds_left_follows_from_the_rate_of_the_finished_work(tmp_path: Path, clock: Clock) -> None:
    parts = [make_part("pgd", network) for network in range(100)]
    plan = FakePlan(demo_macs)
    plan.n_evaluations = 5 * len(parts)
    tracker = Tracker(plan, parts, tmp_path, 0, WorkLog(tmp_path))
    tracker.attach(0)
    clock.now += 17.0  # workers start
    readings = []
    for progress in run_parts(parts, tracker, clock):
        if progress.is_rate_reliable and progress.remaining_macs:
            assert progress.seconds_left is not None
            readings.append((clock.now, progress.seconds_left))
    assert len(readings) > len(parts) / 2
    for now, seconds_left in readings:
        assert seconds_left == pytest.approx(clock.now - now, rel=1 / 4, abs=2.0)
    assert tracker.progress.done_evaluations == tracker.progress.total_evaluations
    assert tracker.progress.seconds_left == 0.0


def make_beat(part: Part, step: int, *, first_step: int, seconds: float, age: float = 0.0) -> LastBeat:
    training = TrainingSteps(step, first_step, int(part.strengths[-1]), 100, seconds, 0.5, 0.9)
    return LastBeat(age, None, part.unit.id, part.strengths, (0, 1), seconds, part.label, training)


def test_training_steps_determine_time_left_before_snapshot(tmp_path: Path, clock: Clock) -> None:
    """Each of two workers computes ten steps per second; one of four training runs is resumed after 250 steps."""
    parts = [make_part("plain", network, (500.0, 1000.0)) for network in range(4)]
    plan = FakePlan(lambda _unit: 1e6)
    plan.n_evaluations = 8
    tracker = Tracker(plan, parts, tmp_path, 0, WorkLog(tmp_path))
    for seconds in (10.0, 20.0, 40.0):
        clock.now = 1000.0 + seconds
        steps = int(10 * seconds)
        tracker.note_steps(
            [
                make_beat(parts[0], steps, first_step=0, seconds=seconds),
                make_beat(parts[1], 250 + steps, first_step=250, seconds=seconds) if seconds < 25 else LastBeat(0.0),
                make_beat(parts[2], 1, first_step=0, seconds=90.0, age=60.0),  # its worker was killed
            ]
        )
        assert tracker.progress.is_rate_reliable == (seconds >= MIN_RATE_SECONDS)
        if seconds == 20.0:
            assert tracker.progress.seconds_left == pytest.approx((4000 - 250 - 2 * steps) / 20)
    assert tracker.progress.done_evaluations == 0
    assert [beat.unit for beat in tracker.progress.training_heartbeats] == [parts[0].unit.id]
