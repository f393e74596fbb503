"""Scheduler: submits bundles to an executor, counts their results, and retries lost work.

A bundle has parts of one network and dataset, which one worker computes in order. The scheduler distinguishes three
kinds of failures. Work that is lost because a machine was preempted is retried without limit. If a worker dies, the
part that it was computing may be the cause. This part is retried alone, so that no other part is lost with it, and
counts as failed after `max_attempts` deaths. An error raised by an evaluation would occur again, so its part fails
immediately. When the run drains, which means that it was asked to stop, the scheduler submits no more bundles.
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

MAX_DEATHS_WITHOUT_RESULT = 20
"""Maximum number of consecutive worker deaths without a result. After more deaths, the run ends, because the machines
are probably at fault.

Only the first death with a given part is counted, because the part itself may have caused the others.
"""


@dataclass
class RunTally:
    """Summary of a run.

    Attributes:
        results: number of committed results, one per strength and slice of images.
        evaluations: number of committed evaluations; a slice of the images counts as a fraction of its evaluation. The
            driver sets this number.
        parts: number of receipts.
        seconds: worker time of the committed work.
        failures: failed parts, with the reason.
        deaths: number of workers that died.
        preemptions: number of workers whose machine was preempted.
        drained: whether the run was asked to stop and therefore started no more parts.
        abandoned: number of bundles whose part in progress was abandoned because draining took too long.
        stopped_by_time_limit: whether the run was asked to stop because a time limit is near (see `core.interrupts`).
        remaining: number of results, one per strength and slice, that are neither committed nor failed.
    """

    results: int = 0
    evaluations: float = 0.0
    parts: int = 0
    seconds: float = 0.0
    failures: list[UnitFailure] = field(default_factory=list)
    deaths: int = 0
    preemptions: int = 0
    drained: bool = False
    abandoned: int = 0
    stopped_by_time_limit: bool = False
    remaining: int = 0

    @property
    def complete(self) -> bool:
        return not self.remaining and not self.failures

    @property
    def end_state(self) -> str:
        """Final state for progress.json: "finished" if nothing remains, even if draining was requested at the end."""
        return "drained" if self.drained and self.remaining else "finished"


_Slice = tuple[str, int, int]
"""Unit id, first image position, and last image position plus one."""


class Scheduler:
    """Computes bundles with an executor.

    Args:
        executor: the executor.
        max_attempts: number of worker deaths after which a part counts as failed.
        should_drain: called between events; once it returns True, no more bundles are submitted and workers stop after
            their part.
        interruptible: context in which the deadline for draining may interrupt the executor (see
            `core.interrupts.DrainRequest`).
        on_event: called with each event after it has been counted.
        find_committed: called with the unreported parts of a lost worker's bundle; returns receipts of the results that
            the worker had committed.
        tally: tally of the earlier stages of the same run, to which results are added.
        activity: name of the work in messages.
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
        activity: str = "Evaluating",
    ) -> None:
        self._executor = executor
        self._max_attempts = max_attempts
        self._should_drain = should_drain
        self._interruptible = interruptible
        self._on_event = on_event
        self._find_committed = find_committed
        self._tally = tally or RunTally()
        self._activity = activity
        self._waiting: deque[Bundle] = deque()
        self._in_flight = 0
        # Strengths without a result by slice. Most tuples are shared with the parts, which saves memory in runs with a
        # million evaluations.
        self._pending_strengths: dict[_Slice, tuple[float, ...]] = {}
        self._deaths: Counter[tuple[_Slice, float]] = Counter()
        self._deaths_without_result = 0

    def run(self, bundles: Iterable[Bundle]) -> RunTally:
        """Compute all bundles, or stop early if draining is requested.

        Raises:
            EvaluationError: too many workers died in a row without a result.
            StorageError: results cannot be written.
        """
        self._waiting.extend(bundles)
        for bundle in self._waiting:
            for part in bundle.parts:
                part_slice = _slice_of(part)
                known_strengths = self._pending_strengths.get(part_slice, ())
                self._pending_strengths[part_slice] = (
                    (*known_strengths, *part.strengths) if known_strengths else part.strengths
                )
        try:
            self._loop()
        except DrainDeadlineError:
            self._tally.drained = True
            self._tally.abandoned = self._in_flight
        self._tally.remaining += sum(map(len, self._pending_strengths.values()))
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
        # A signal may have arrived during the last bundle, or have ended it.
        self._tally.drained = self._tally.drained or self._should_drain()

    def _count(self, event: Event) -> None:
        match event:
            case Receipt():
                self._remove_pending((event.unit_id, event.start, event.stop), event.strengths)
                self._deaths_without_result = 0
                self._tally.results += len(event.strengths)
                self._tally.parts += 1
                self._tally.seconds += event.seconds
            case UnitFailure():
                self._record_failure(event)
            case BundleDone():
                self._in_flight -= 1
            case BundleLost():
                self._in_flight -= 1
                self._requeue(event)
            case WorkerLost():
                self._count_lost_worker(event.preempted)
                if not event.preempted:
                    self._count_death_without_result(event.reason, "an idle worker")

    def _count_lost_worker(self, preempted: bool) -> None:
        self._tally.preemptions += preempted
        self._tally.deaths += not preempted

    def _count_death_without_result(self, reason: str, work: str) -> None:
        self._deaths_without_result += 1
        if self._deaths_without_result > MAX_DEATHS_WITHOUT_RESULT:
            raise EvaluationError(
                f"{self._activity} failed: {self._deaths_without_result} workers died in a row without a result, each "
                f"on a different part or while idle (last: {work}; {reason}). Look at the workers' logs, or rerun with "
                "--executor inline."
            )

    def _remove_pending(self, part_slice: _Slice, strengths: tuple[float, ...]) -> None:
        remaining_strengths = tuple(
            strength for strength in self._pending_strengths.pop(part_slice, ()) if strength not in strengths
        )
        if remaining_strengths:
            self._pending_strengths[part_slice] = remaining_strengths

    def _record_failure(self, failure: UnitFailure) -> None:
        self._remove_pending(_slice_of(failure.part), failure.part.strengths)
        self._tally.failures.append(failure)

    def _requeue(self, lost: BundleLost) -> None:
        """Queue the rest of a lost bundle again; isolate or give up the part that may have killed the worker."""
        remaining_parts = self._pending_parts(lost.bundle)
        if lost.was_started:
            for receipt in self._find_committed(remaining_parts):
                self._count(receipt)
                self._on_event(receipt, self._tally)
            remaining_parts = self._pending_parts(lost.bundle)
            self._count_lost_worker(lost.preempted)
        if not remaining_parts:
            return
        if not lost.was_started or lost.preempted:
            self._waiting.appendleft(lost.bundle.keep(remaining_parts))
            return
        suspect_part, *other_parts = remaining_parts
        if other_parts:
            self._waiting.appendleft(lost.bundle.keep(other_parts))
        suspect_id = _slice_of(suspect_part), suspect_part.strengths[0]
        self._deaths[suspect_id] += 1
        if self._deaths[suspect_id] == 1:
            self._count_death_without_result(lost.reason, suspect_part.label)
        if self._deaths[suspect_id] >= self._max_attempts:
            message = f"{self._activity} failed for {suspect_part.label}: its worker died each time ({lost.reason})."
            failure = UnitFailure(suspect_part, "killed", message, "", self._deaths[suspect_id])
            self._record_failure(failure)
            self._on_event(failure, self._tally)
        else:
            # The part is retried halfway through the queue: the cause may be gone by then, and a retry at the end
            # could delay the end of the run.
            self._waiting.insert(len(self._waiting) // 2, lost.bundle.keep([suspect_part]))

    def _pending_parts(self, bundle: Bundle) -> list[Part]:
        return [part for part in map(self._pending_part, bundle.parts) if part is not None]

    def _pending_part(self, part: Part) -> Part | None:
        pending_strengths = self._pending_strengths.get(_slice_of(part), ())
        strengths = tuple(strength for strength in part.strengths if strength in pending_strengths)
        return Part(part.unit, strengths, part.start, part.stop) if strengths else None


def _slice_of(part: Part) -> _Slice:
    return part.unit.id, part.start, part.stop
