"""What every driver does, whether of a sweep or of trainings: stages of bundles, progress, and an orderly end."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from robust201.core.interrupts import draining_on_signals
from robust201.core.records import Bundle, Part, Receipt
from robust201.planning.config import ExecutionSection
from robust201.runtime.executors.base import Event, Executor
from robust201.runtime.progress import RunProgress, Tracker
from robust201.runtime.scheduler import RunTally, Scheduler
from robust201.runtime.work_log import WorkLog


class Driver:
    """Runs the stages of one run, one after the other.

    Args:
        tracker: keeps progress.json and failures.jsonl.
        log: receives when a stage began and how it ended.
        on_progress: called after each event, and without one now and then.
        check: called between events; raises if the run must stop, for example because another driver took over.
        say: called with a line about draining.
        doing: the work's name in messages.
    """

    def __init__(
        self,
        tracker: Tracker,
        log: WorkLog,
        *,
        on_progress: Callable[[RunProgress, Event | None], None],
        check: Callable[[], None] = lambda: None,
        say: Callable[[str], None],
        doing: str = "Evaluating",
    ) -> None:
        self._tracker, self._log, self._doing = tracker, log, doing
        self._on_progress, self._check, self._say = on_progress, check, say

    def run_stage(
        self,
        start_executor: Callable[[], Executor],
        make_bundles: Callable[[Executor], Sequence[Bundle]],
        *,
        execution: ExecutionSection,
        find_committed: Callable[[Sequence[Part]], Sequence[Receipt]],
        tally: RunTally,
        on_receipt: Callable[[Receipt], None] = lambda _receipt: None,
    ) -> RunTally:
        """Compute bundles on an executor until they are done or a signal asks to drain.

        Args:
            start_executor: starts what computes; it is closed at the end.
            make_bundles: divides the work among the executor's workers.
            execution: limits of attempts and of draining.
            find_committed: finds what a lost worker stored without reporting it.
            tally: counts of the stages before.
            on_receipt: called with each receipt before it is counted.
        """
        started: list[Executor] = []

        def drain(line: str) -> None:
            self._tracker.note_draining()
            for executor in started:
                executor.drain()  # now: an inline executor would otherwise notice only after its next receipt
            self._say(line)

        def should_drain() -> bool:
            self._check()
            self._tracker.flush()
            self._on_progress(self._tracker.progress, None)
            return request()

        def observe(event: Event, counted: RunTally) -> None:
            if isinstance(event, Receipt):
                on_receipt(event)
            self._tracker.count(event, counted)
            self._on_progress(self._tracker.progress, event)

        draining = draining_on_signals(drain, execution.drain_seconds)
        with draining as request, closing(start_executor()) as executor:
            started.append(executor)
            self._tracker.attach(metrics=executor.metrics, gpus_per_worker=executor.gpus_per_worker)
            self._tracker.write(state="running")  # the first event may be a quarter of an hour away
            bundles = make_bundles(executor)
            self._log.write("run_started", f"{len(bundles)} bundles")
            scheduler = Scheduler(
                executor,
                max_attempts=execution.max_attempts,
                should_drain=should_drain,
                interruptible=request.interruptible,
                on_event=observe,
                find_committed=find_committed,
                tally=tally,
                doing=self._doing,
            )
            tally = scheduler.run(bundles)
            tally.time_limit = tally.drained and request.is_time_limit
        self._log.write("run_ended", tally.end_state, failures=len(tally.failures))
        return tally

    @contextmanager
    def recording_an_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._tracker.stop()
            self._log.write("run_ended", f"stopped by {type(error).__name__}: {error}", level="error")
            raise

    def finish(self, tally: RunTally) -> RunTally:
        tally.computed = self._tracker.progress.evaluations_of_this_run
        self._tracker.write(state=tally.end_state)
        return tally
