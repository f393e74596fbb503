"""The driver of a run: distributes parts to workers, counts outcomes, retries lost work and drains.

`run_work` computes in this process, or on Ray if `guard` has started the process.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from robust201.core.interrupts import SignalInterrupt
from robust201.run.environment import ray_variables
from robust201.run.guard import SIGNALS, Attachment, attach
from robust201.run.queue import PartQueue
from robust201.run.work import OnProgress, Outcome, PartT, Say, Tally, Work
from robust201.store.events import Events

if TYPE_CHECKING:
    from robust201.run.cluster import Cluster, Lost

WAIT_SECONDS = 1.0
REPEAT_SECONDS = 1.0
"""Time in which a repeated signal is the same one: `ray job stop` and `scancel` signal a guard and its child."""


def run_work(work: Work[PartT], say: Say, on_progress: OnProgress = lambda _tally, _seconds_left: None) -> Tally:
    """Compute the missing parts of a work.

    Raises:
        EvaluationError: Ray was lost, or too many workers died.
        StorageError: results cannot be written.
        SignalInterrupt: a second signal came.
    """
    count, queue = _Count(work, say, on_progress), PartQueue(work.parts, work.execution.max_attempts)
    attachment = attach() if work.execution.executor == "ray" else None
    if not queue.is_empty:
        _compute(queue, count, attachment)
    work.end(say)
    count.tally.n_done = work.n_done
    return count.tally


def _compute(queue: PartQueue[PartT], count: "_Count[PartT]", attachment: Attachment | None) -> None:
    work, say = count.work, count.say
    deadline = work.execution.drain_seconds if attachment is None else None  # the other driver polls the time
    with draining(say, deadline) as drain, Events(work.folder, work.role) as events:
        if attachment is not None:
            _RayDriver(queue, count, events, attachment, drain).run()
        else:
            try:
                _run_inline(queue, count, events.run, drain)
            except DeadlineError:
                count.tally.n_abandoned = 1
            drain.note_end(count.tally)


@dataclass
class Drain:
    """Whether a signal has asked the run to drain, which one, and since when (`time.monotonic`)."""

    since: float | None = None
    signal: int | None = None

    @property
    def is_requested(self) -> bool:
        return self.since is not None

    def is_over(self, seconds: float | None) -> bool:
        """Return whether draining has lasted longer than a limit; None is no limit."""
        return self.since is not None and seconds is not None and time.monotonic() - self.since > seconds

    def note_end(self, tally: Tally) -> None:
        """Note whether the request ended the run before its end."""
        tally.is_drained = self.is_requested and not tally.is_complete
        tally.is_out_of_time = tally.is_drained and self.signal == signal.SIGUSR1


class DeadlineError(BaseException):
    """Draining took too long, so the part in progress is abandoned. Code of a user does not catch this class."""


@contextmanager
def draining(say: Say, deadline: float | None = None) -> Iterator[Drain]:
    """Turn the first signal in a block into a request to drain; a second one raises SignalInterrupt.

    A repeat within `REPEAT_SECONDS` is ignored. `DeadlineError` is raised `deadline` seconds after the request.
    """
    drain = Drain()

    def request(number: int, _frame: object) -> None:
        if drain.is_requested:
            if number == drain.signal and not drain.is_over(REPEAT_SECONDS):
                return
            raise SignalInterrupt(number)
        drain.since, drain.signal = time.monotonic(), number
        signal.setitimer(signal.ITIMER_REAL, deadline or 0)
        # The line is printed in a thread, because the signal may have interrupted the output of another line.
        message = "Stopping after the work in progress; a second signal stops immediately."
        threading.Thread(target=say, args=(message,), daemon=True).start()

    def expire(_number: int, _frame: object) -> None:
        raise DeadlineError

    previous = {number: signal.signal(number, request) for number in SIGNALS}
    previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, expire)
    try:
        yield drain
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)


@dataclass
class _Count(Generic[PartT]):
    """Counts outcomes, and shows them to the user, each notice once."""

    work: Work[PartT]
    say: Say
    on_progress: OnProgress
    _notices: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tally = Tally.of(self.work)

    def finish(self, part: PartT, outcome: Outcome, n_workers: int) -> tuple[PartT, ...]:
        """Count an outcome, and return parts that can begin only now."""
        following = self.work.finish(part, outcome)
        for notice in outcome.notices:
            if notice not in self._notices:
                self.say(f"warning: {notice}")
        self._notices.update(outcome.notices)
        self.tally.count(outcome, self.work.n_done)
        self.show(n_workers)
        return tuple(following)

    def show(self, n_workers: int) -> None:
        seconds_left = self.work.seconds_left(n_workers)
        self.tally.n_done = self.work.n_done
        self.on_progress(self.tally, seconds_left)


def _finish(queue: PartQueue[PartT], count: _Count[PartT], part: PartT, outcome: Outcome, n_workers: int) -> None:
    """Count what a worker returned, and update the queue."""
    queue.succeed(count.finish(part, outcome, n_workers))
    if outcome.blocks_network:
        queue.block(part.network)


def _run_inline(queue: PartQueue[PartT], count: _Count[PartT], run: str, drain: Drain) -> None:
    """Compute the parts of a queue in this process."""
    with closing(count.work.start_worker(run)) as worker:
        network = None
        while not drain.is_requested and (part := queue.take(network)) is not None:
            network = part.network
            outcome = worker.compute(part, lambda: drain.is_requested)
            _finish(queue, count, part, outcome, 1)


class _RayDriver(Generic[PartT]):
    """Drives one run on Ray."""

    def __init__(
        self, queue: PartQueue[PartT], count: _Count[PartT], events: Events, attachment: Attachment, drain: Drain
    ) -> None:
        self._queue, self._count, self._work, self._events = queue, count, count.work, events
        self._attachment, self._drain = attachment, drain
        self._is_stopped = False

    @property
    def tally(self) -> Tally:
        return self._count.tally

    def run(self) -> None:
        """Compute the parts of the queue, or those in progress if a signal asks the run to drain."""
        os.environ.update(ray_variables(self._work.execution))
        from robust201.run.cluster import Cluster

        with ExitStack() as stack:
            stack.callback(self._attachment.end)
            # Ray prints messages about lost processes to stdout, from a thread.
            stack.enter_context(redirect_stdout(stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))))
            work = self._work
            start = partial(work.start_worker, self._events.run)
            self._attachment.beat()
            cluster: Cluster[PartT] = Cluster(work.execution, work.precision, start, self._attachment.folder)
            stack.enter_context(closing(cluster))
            stack.callback(self._attachment.beat)
            while self._may_continue(cluster):
                self._step(cluster)

    def _step(self, cluster: "Cluster[PartT]") -> None:
        from robust201.run.cluster import Finished

        self._attachment.beat()
        if not self._drain.is_requested:
            cluster.fill(self._queue.take)
        elif not self._is_stopped:
            cluster.stop()
            self._is_stopped = True
        events = cluster.wait(WAIT_SECONDS)
        self._attachment.end()  # what follows may wait for a file server or the user's terminal
        for event in events:
            if isinstance(event, Finished):
                _finish(self._queue, self._count, event.part, event.outcome, cluster.n_busy)
            else:
                self._handle_loss(event, cluster.n_busy)
        self._count.show(cluster.n_busy)

    def _may_continue(self, cluster: "Cluster[PartT]") -> bool:
        self._drain.note_end(self.tally)
        if self._drain.is_requested and self._drain.is_over(self._work.execution.drain_seconds):
            self.tally.n_abandoned = cluster.n_in_flight
            return False
        return cluster.n_in_flight > 0 or not (self._drain.is_requested or self._queue.is_empty)

    def _handle_loss(self, lost: "Lost", n_workers: int) -> None:
        """Queue the parts of a lost worker again, except those that it had stored, which only their folder tells."""
        parts = []
        for part in lost.parts:
            outcome = self._work.find_stored(part)
            parts += [part] if outcome is None else []
            if outcome is not None:
                _finish(self._queue, self._count, part, outcome, n_workers)
        self.tally.n_died += not lost.preempted
        self.tally.n_preempted += lost.preempted
        for part in parts:
            self._events.write("worker_lost", **part.fields, reason=lost.reason, preempted=lost.preempted)
        failed = self._queue.lose(parts, reason=lost.reason, preempted=lost.preempted)
        if failed is not None:
            failure = f"its worker died {self._work.execution.max_attempts} times ({lost.reason})"
            self._events.write("failed", **failed.fields, failure=failure)
            self._count.finish(failed, Outcome(failed.label, failure=failure), n_workers)
