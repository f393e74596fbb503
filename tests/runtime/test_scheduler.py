"""The scheduler with a scripted executor: retries, isolation of parts that kill workers, and draining."""

from collections import deque

import pytest

from robust201.core.errors import EvaluationError
from robust201.core.records import Bundle, Part, Receipt, Unit, UnitFailure
from robust201.runtime.executors.base import BundleDone, BundleLost
from robust201.runtime.scheduler import Scheduler


def make_bundle(architecture: int, keys: tuple[str, ...] = ("clean", "pgd", "fog")) -> Bundle:
    parts = tuple(
        Part(Unit(f"{architecture}-{key}", architecture, "digits", key, (1.0, 2.0), 10, "p", "c"), (1.0, 2.0), 0, 10)
        for key in keys
    )
    return Bundle(architecture, "digits", parts)


def make_receipt(part: Part) -> Receipt:
    return Receipt(part.unit.id, part.strengths, part.start, part.stop, "shard", 1.0)


class ScriptedExecutor:
    """Executor that computes bundles in order, with room for two.

    Args:
        n_deaths: number of times that a unit kills its worker, by unit ID.
        n_preemptions: number of times that a unit's worker is preempted, by unit ID.
        failing_units: IDs of units that fail with an application error.
    """

    def __init__(
        self,
        *,
        n_deaths: dict[str, int] | None = None,
        n_preemptions: dict[str, int] | None = None,
        failing_units: frozenset[str] = frozenset(),
    ):
        self.n_deaths = dict(n_deaths or {})
        self.n_preemptions = dict(n_preemptions or {})
        self.failing_units = failing_units
        self.queue: deque[Bundle] = deque()
        self.computed: list[str] = []
        self.draining = False

    def free_slots(self) -> int:
        return 2 - len(self.queue)

    def submit(self, bundle: Bundle) -> None:
        self.queue.append(bundle)

    def drain(self) -> None:
        self.draining = True

    def close(self) -> None:
        self.queue.clear()

    def poll(self, timeout: float):
        del timeout
        if not self.queue:
            return []
        bundle = self.queue.popleft()
        events = []
        for part in bundle.parts:
            if self.draining:
                break
            for remaining_losses, preempted in ((self.n_preemptions, True), (self.n_deaths, False)):
                if remaining_losses.get(part.unit.id, 0) > 0:
                    remaining_losses[part.unit.id] -= 1
                    events.append(BundleLost(bundle, was_started=True, preempted=preempted, reason="died"))
                    events.extend(
                        BundleLost(waiting, was_started=False, preempted=preempted, reason="died")
                        for waiting in self.queue
                    )
                    self.queue.clear()
                    return events
            if part.unit.id in self.failing_units:
                events.append(UnitFailure(part, "application", "broken", "", 1))
                continue
            self.computed.append(part.unit.id)
            events.append(make_receipt(part))
        events.append(BundleDone(bundle))
        return events


ALL_UNITS = [f"{architecture}-{key}" for architecture in range(3) for key in ("clean", "pgd", "fog")]


def test_scheduler_computes_each_part_once() -> None:
    executor = ScriptedExecutor()
    tally = Scheduler(executor).run([make_bundle(a) for a in range(3)])
    assert sorted(executor.computed) == sorted(ALL_UNITS)
    assert (tally.results, tally.failures, tally.drained) == (18, [], False)


def test_part_that_always_kills_its_worker_is_isolated_and_given_up() -> None:
    executor = ScriptedExecutor(n_deaths={"1-pgd": 99})
    tally = Scheduler(executor, max_attempts=3).run([make_bundle(a) for a in range(3)])
    assert sorted(executor.computed) == sorted(set(ALL_UNITS) - {"1-pgd"})
    assert [(f.part.unit.id, f.kind, f.attempt) for f in tally.failures] == [("1-pgd", "killed", 3)]
    assert tally.deaths == 3


def test_part_that_kills_its_worker_once_or_twice_is_retried() -> None:
    executor = ScriptedExecutor(n_deaths={"0-fog": 1, "2-clean": 2})
    tally = Scheduler(executor, max_attempts=3).run([make_bundle(a) for a in range(3)])
    assert sorted(executor.computed) == sorted(ALL_UNITS)
    assert tally.failures == []


def test_preemptions_do_not_count_as_deaths() -> None:
    executor = ScriptedExecutor(n_preemptions={"0-clean": 25})
    tally = Scheduler(executor, max_attempts=1).run([make_bundle(a) for a in range(3)])
    assert sorted(executor.computed) == sorted(ALL_UNITS)
    assert (tally.preemptions, tally.deaths, tally.failures) == (25, 0, [])


def test_application_error_is_not_retried() -> None:
    executor = ScriptedExecutor(failing_units=frozenset({"2-fog"}))
    tally = Scheduler(executor).run([make_bundle(a) for a in range(3)])
    assert [(f.part.unit.id, f.kind) for f in tally.failures] == [("2-fog", "application")]
    assert tally.results == 16


def test_drained_run_ends_early_with_state_drained() -> None:
    executor = ScriptedExecutor()
    tally = Scheduler(executor, should_drain=lambda: len(executor.computed) >= 3).run(
        [make_bundle(a) for a in range(9)]
    )
    assert tally.drained
    assert tally.end_state == "drained"
    assert 0 < tally.parts < 27


def test_run_ends_if_all_workers_die() -> None:
    class FailingExecutor(ScriptedExecutor):
        def poll(self, timeout: float):
            del timeout
            return (
                [BundleLost(self.queue.popleft(), was_started=True, preempted=False, reason="no libtorch")]
                if self.queue
                else []
            )

    with pytest.raises(EvaluationError, match="no libtorch"):
        Scheduler(FailingExecutor(), max_attempts=3).run([make_bundle(a) for a in range(500)])


class UnreportingExecutor(ScriptedExecutor):
    """Executor whose worker's receipts are lost if it dies in the same poll."""

    def __init__(self, n_deaths: dict[str, int]):
        super().__init__(n_deaths=n_deaths)
        self.committed: list[Receipt] = []

    def poll(self, timeout: float):
        events = super().poll(timeout)
        self.committed += [event for event in events if isinstance(event, Receipt)]
        worker_died = any(isinstance(event, BundleLost) for event in events)
        return [event for event in events if not (worker_died and isinstance(event, Receipt))]


def test_unreported_results_of_dead_worker_are_counted():
    executor = UnreportingExecutor({"1-fog": 99})
    queried_parts: list[Part] = []
    events = []

    def find_committed(parts):
        queried_parts.extend(parts)
        ids = {part.unit.id for part in parts}
        return [receipt for receipt in executor.committed if receipt.unit_id in ids]

    tally = Scheduler(
        executor,
        max_attempts=3,
        on_event=lambda event, _: events.append(event),
        find_committed=find_committed,
    ).run([make_bundle(1), make_bundle(2)])
    assert sorted(executor.computed) == ["1-clean", "1-pgd", "2-clean", "2-fog", "2-pgd"]
    assert [(failure.part.unit.id, failure.attempt) for failure in tally.failures] == [("1-fog", 3)]
    assert (tally.deaths, tally.parts, tally.remaining) == (3, 5, 0)
    assert sorted(event.unit_id for event in events if isinstance(event, Receipt)) == sorted(executor.computed)
    assert {part.unit.id for part in queried_parts} >= {"1-clean", "1-pgd", "1-fog"}
