"""The driver of a run: it counts outcomes, while an executor distributes the parts to workers.

Each executor is a module ``executor_NAME.py`` of this folder; NAME is the value of `execution.executor` in a YAML. Its
function ``execute(run, events, drain)`` takes parts from the queue of the run and finishes them, until the queue is
empty, or until a signal requests draining (no new parts begin) and the parts in progress have ended.
"""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Generic

from robust201.core.interrupts import SignalInterrupt
from robust201.run.guard import SIGNALS
from robust201.run.queue import PartQueue
from robust201.run.work import OnProgress, Outcome, PartT, Say, Tally, Work
from robust201.store.events import Events

REPEAT_SECONDS = 1.0
"""Time in which a repeated signal is ignored; `ray job stop` and `scancel` signal both a guard and its child."""


def run_work(work: Work[PartT], say: Say, on_progress: OnProgress = lambda _tally, _seconds_left: None) -> Tally:
    """Compute the missing parts of `work`.

    Raises:
        ConfigError: workers cannot be started as configured, or the plan was replaced during the run.
        EvaluationError: Ray was lost, or too many workers died.
        StorageError: results cannot be written.
        SignalInterrupt: a second signal arrived.
    """
    run = Run(work, PartQueue(work.parts, work.execution.max_attempts), say, on_progress)
    if not run.queue.is_empty:
        executor = import_module(f"robust201.run.executor_{work.execution.executor}")
        with draining(say) as drain, Events(work.folder, work.role) as events:
            executor.execute(run, events, drain)
            drain.note_end(run.tally)
    work.end(say)
    run.tally.n_done = work.n_done
    return run.tally


@dataclass
class Drain:
    """Request to drain, made by a signal.

    Attributes:
        since: time of the signal (`time.monotonic`); None if there was none.
        signal: number of the signal.
        deadline: seconds from the signal to `DeadlineError`; None if the executor watches the time, or has no limit.
    """

    since: float | None = None
    signal: int | None = None
    deadline: float | None = None

    @property
    def is_requested(self) -> bool:
        return self.since is not None

    def is_over(self, seconds: float | None) -> bool:
        """Return whether draining has lasted longer than a limit; None means no limit."""
        return self.since is not None and seconds is not None and time.monotonic() - self.since > seconds

    def note_end(self, tally: Tally) -> None:
        """Record whether the request stopped the run before it was complete."""
        tally.is_drained = self.is_requested and not tally.is_complete
        tally.is_out_of_time = tally.is_drained and self.signal == signal.SIGUSR1


class DeadlineError(BaseException):
    """Draining took too long, so the part in progress is abandoned. `except Exception` in user code misses it."""


@contextmanager
def draining(say: Say) -> Iterator[Drain]:
    """Turn the first signal in a block into a request to drain; a second one raises SignalInterrupt.

    A repeat within `REPEAT_SECONDS` is ignored.
    """
    drain = Drain()

    def request(number: int, _frame: object) -> None:
        if drain.is_requested:
            if number == drain.signal and not drain.is_over(REPEAT_SECONDS):
                return
            raise SignalInterrupt(number)
        drain.since, drain.signal = time.monotonic(), number
        signal.setitimer(signal.ITIMER_REAL, drain.deadline or 0)
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
class Run(Generic[PartT]):
    """A run in progress: its queue of parts, its counted outcomes, and its output. Each notice is shown once."""

    work: Work[PartT]
    queue: PartQueue[PartT]
    say: Say
    on_progress: OnProgress
    _notices: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tally = Tally.of(self.work)

    def finish(self, part: PartT, outcome: Outcome, n_workers: int) -> None:
        """Count the outcome of a part, and update the queue."""
        self.queue.succeed(self.count(part, outcome, n_workers))
        if outcome.blocks_network:
            self.queue.block(part.network)

    def count(self, part: PartT, outcome: Outcome, n_workers: int) -> Sequence[PartT]:
        """Count the outcome of a part, and return the parts that can begin now because of it."""
        next_parts = self.work.finish(part, outcome)
        for notice in outcome.notices:
            if notice not in self._notices:
                self.say(f"warning: {notice}")
        self._notices.update(outcome.notices)
        self.tally.count(outcome, self.work.n_done)
        self.show(n_workers)
        return next_parts

    def show(self, n_workers: int) -> None:
        seconds_left = self.work.seconds_left(n_workers)
        self.tally.n_done = self.work.n_done
        self.on_progress(self.tally, seconds_left)
