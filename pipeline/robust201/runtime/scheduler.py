"""The loop between a list of bundles and an executor: submits, counts, retries, isolates, drains.

Failures come in three kinds that are never mixed. A lost machine (preempted) is no one's fault and is retried without
limit. A worker that dies puts the part that it was computing under suspicion: that part is retried alone, so that it
can take nothing else with it, and given up after `max_attempts` deaths. An error raised by the evaluation itself would
come again, so it is reported at once.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from robust201.core.errors import EvaluationError
from robust201.core.interrupts import DrainDeadlineError
from robust201.core.records import Bundle, Part, Receipt, UnitFailure
from robust201.runtime.executors.base import BundleDone, BundleLost, Event, Executor, WorkerLost

POLL_SECONDS = 0.5

MAX_FRUITLESS_DEATHS = 20
"""Workers that may die without one result between them: past that the machines are at fault, not the units.

A part that has killed a worker before and does so again, alone, says nothing new of the machines and is not counted.
"""


@dataclass
class RunTally:
    """What a run did.

    Attributes:
        evaluations: (strength, slice) results committed.
        computed: evaluations committed, slices counted by their share of the images; set by who knows the units.
        seconds: worker time of the committed work.
        failures: parts given up, with the reason.
        deaths: workers that died under a bundle.
        preemptions: workers whose machine was taken away.
        drained: whether the run stopped because it was asked to.
        abandoned: bundles whose part in progress was given up because draining took too long.
        time_limit: whether a time limit that is near had asked (see `core.interrupts`).
        remaining: (strength, slice) results that were asked for and are neither committed nor given up.
    """

    evaluations: int = 0
    computed: float = 0.0
    parts: int = 0
    seconds: float = 0.0
    failures: list[UnitFailure] = field(default_factory=list)
    deaths: int = 0
    preemptions: int = 0
    drained: bool = False
    abandoned: int = 0
    time_limit: bool = False
    remaining: int = 0

    @property
    def complete(self) -> bool:
        return not self.remaining and not self.failures

    @property
    def end_state(self) -> str:
        """How the run ended, for progress.json: a request to stop that came with the last result left nothing out."""
        return "drained" if self.drained and self.remaining else "finished"


_Slice = tuple[str, int, int]
"""Unit id, first image position, one past the last."""


class Scheduler:
    """Runs bundles to the end.

    A part that kills its worker `max_attempts` times is given up. `should_drain` is asked between events; once true,
    nothing more is submitted and workers stop after their part. `interruptible` is a block in which an expired
    `core.interrupts.DrainRequest` may interrupt the executor. `on_event` takes every event once it is counted;
    `find_committed` is asked, when a worker was lost, which of its bundle's parts it had committed without telling.
    `tally` is that of an earlier stage of the same run, on which this one goes on counting. `doing` is what messages
    call the work.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        max_attempts: int = 3,
        should_drain: Callable[[], bool] = lambda: False,
        interruptible: Callable[[], AbstractContextManager[None]] = nullcontext,
        on_event: Callable[[Event, RunTally], None] = lambda _event, _tally: None,
        find_committed: Callable[[Sequence[Part]], Sequence[Receipt]] = lambda _parts: (),
        tally: RunTally | None = None,
        doing: str = "Evaluating",
    ) -> None:
        self._executor = executor
        self._max_attempts = max_attempts
        self._should_drain = should_drain
        self._interruptible = interruptible
        self._on_event = on_event
        self._find_committed = find_committed
        self._tally = tally or RunTally()
        self._doing = doing
        self._waiting: deque[Bundle] = deque()
        self._in_flight = 0
        # By slice, since a sweep has a million evaluations: most strengths are then a part's own tuple.
        self._pending: dict[_Slice, tuple[float, ...]] = {}
        self._deaths: Counter[tuple[_Slice, float]] = Counter()
        self._fruitless_deaths = 0

    def run(self, bundles: Iterable[Bundle]) -> RunTally:
        """Compute every bundle, or as many as are done before draining.

        Raises:
            EvaluationError: workers die one after the other without a result.
            StorageError: results cannot be written.
        """
        self._waiting.extend(bundles)
        for bundle in self._waiting:
            for part in bundle.parts:
                piece = _slice_of(part)
                known = self._pending.get(piece, ())
                self._pending[piece] = (*known, *part.strengths) if known else part.strengths
        try:
            self._loop()
        except DrainDeadlineError:
            self._tally.drained = True
            self._tally.abandoned = self._in_flight
        self._tally.remaining += sum(map(len, self._pending.values()))
        return self._tally

    def _loop(self) -> None:
        while self._in_flight or (self._waiting and not self._tally.drained):
            if not self._tally.drained and self._should_drain():
                self._tally.drained = True
                self._executor.drain()
            while self._waiting and not self._tally.drained and self._executor.free_slots() > 0:
                self._executor.submit(self._waiting.popleft())
                self._in_flight += 1
            with self._interruptible():
                events = self._executor.poll(POLL_SECONDS)
            for event in events:
                self._count(event)
                self._on_event(event, self._tally)
        # A signal may have come while the last bundle was computed, or have ended it.
        self._tally.drained = self._tally.drained or self._should_drain()

    def _count(self, event: Event) -> None:
        match event:
            case Receipt():
                self._close((event.unit_id, event.start, event.stop), event.strengths)
                self._fruitless_deaths = 0
                self._tally.evaluations += len(event.strengths)
                self._tally.parts += 1
                self._tally.seconds += event.seconds
            case UnitFailure():
                self._give_up(event)
            case BundleDone():
                self._in_flight -= 1
            case BundleLost():
                self._in_flight -= 1
                self._requeue(event)
            case WorkerLost():
                self._count_lost_worker(event.preempted)
                if not event.preempted:
                    self._count_fruitless_death(event.reason, "a worker without work")

    def _count_lost_worker(self, preempted: bool) -> None:
        self._tally.preemptions += preempted
        self._tally.deaths += not preempted

    def _count_fruitless_death(self, reason: str, what: str) -> None:
        self._fruitless_deaths += 1
        if self._fruitless_deaths > MAX_FRUITLESS_DEATHS:
            raise EvaluationError(
                f"Running workers failed for {what}: expected results, got {self._fruitless_deaths} deaths in a row, "
                f"each at another piece of work ({reason}). Look at the workers' logs, or run it in one process with "
                "--executor inline."
            )

    def _close(self, piece: _Slice, strengths: tuple[float, ...]) -> None:
        left = tuple(strength for strength in self._pending.pop(piece, ()) if strength not in strengths)
        if left:
            self._pending[piece] = left

    def _give_up(self, failure: UnitFailure) -> None:
        self._close(_slice_of(failure.part), failure.part.strengths)
        self._tally.failures.append(failure)

    def _requeue(self, lost: BundleLost) -> None:
        remaining = self._pending_parts(lost.bundle)
        if lost.started:
            for receipt in self._find_committed(remaining):
                self._count(receipt)
                self._on_event(receipt, self._tally)
            remaining = self._pending_parts(lost.bundle)
            self._count_lost_worker(lost.preempted)
        if not remaining:
            return
        if not lost.started or lost.preempted:
            self._waiting.appendleft(lost.bundle.keep(remaining))
            return
        suspect, *others = remaining
        if others:
            self._waiting.appendleft(lost.bundle.keep(others))
        piece = _slice_of(suspect), suspect.strengths[0]
        self._deaths[piece] += 1
        if self._deaths[piece] == 1:
            self._count_fruitless_death(lost.reason, suspect.label)
        if self._deaths[piece] >= self._max_attempts:
            message = f"{self._doing} failed for {suspect.label}: its worker died each time ({lost.reason})."
            failure = UnitFailure(suspect, "killed", message, "", self._deaths[piece])
            self._give_up(failure)
            self._on_event(failure, self._tally)
        else:
            # Half way to the end: whatever killed it may have passed by then, and the end of the run stays short.
            self._waiting.insert(len(self._waiting) // 2, lost.bundle.keep([suspect]))

    def _pending_parts(self, bundle: Bundle) -> list[Part]:
        return [part for part in map(self._pending_of, bundle.parts) if part is not None]

    def _pending_of(self, part: Part) -> Part | None:
        pending = self._pending.get(_slice_of(part), ())
        strengths = tuple(strength for strength in part.strengths if strength in pending)
        return Part(part.unit, strengths, part.start, part.stop) if strengths else None


def _slice_of(part: Part) -> _Slice:
    return part.unit.id, part.start, part.stop
