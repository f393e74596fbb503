"""Driver of a sweep or of training runs: computes bundles in stages, tracks progress, and drains on signals.

A bundle has parts of one network, which one worker computes in order. When a run drains, workers finish the part in
progress and start no other.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from robust201.core.interrupts import draining_on_signals
from robust201.core.records import Bundle, Part, Receipt
from robust201.runtime.executors.base import Event, Executor
from robust201.runtime.progress import RunProgress, Tracker
from robust201.runtime.scheduler import RunTally, Scheduler
from robust201.runtime.work_log import WorkLog
from robust201.sweep.config import ExecutionSection

OnProgress = Callable[[RunProgress, Event | None], None]
"""Callback for progress, called after each event, and regularly with None."""


class Driver:
    """Executes the stages of one run in order, and counts their results in `tally`.

    `check` is called between events and raises an error if the run must stop, for example because another driver has
    taken over the results folder. `say` receives a line when draining begins. `activity` is the name of the work in
    messages.
    """

    def __init__(
        self,
        tracker: Tracker,
        log: WorkLog,
        execution: ExecutionSection,
        *,
        on_progress: OnProgress,
        check: Callable[[], None] = lambda: None,
        say: Callable[[str], None],
        activity: str = "Evaluating",
    ) -> None:
        self.tracker = tracker
        self.tally = RunTally()
        self._log, self._execution, self._activity = log, execution, activity
        self._on_progress, self._check, self._say = on_progress, check, say

    def run_stage(
        self,
        start_executor: Callable[[], Executor],
        make_bundles: Callable[[Executor], Sequence[Bundle]],
        *,
        find_committed: Callable[[Sequence[Part]], Sequence[Receipt]],
        on_receipt: Callable[[Receipt], None] = lambda _receipt: None,
    ) -> None:
        """Compute bundles on a new executor until they are done or a signal requests draining.

        `make_bundles` divides the work among the executor's workers. `find_committed` receives the parts of a lost
        worker, and returns receipts of the results that the worker stored but did not report. `on_receipt` is called
        with each receipt before it is counted.
        """
        executors: list[Executor] = []

        def drain(line: str) -> None:
            self.tracker.note_draining()
            for executor in executors:
                executor.drain()  # an inline executor would otherwise notice only after its next receipt
            self._say(line)

        def update_and_check_drain() -> bool:
            self._check()
            self.tracker.flush()
            self._on_progress(self.tracker.progress, None)
            return drain_request.signal is not None

        def observe(event: Event, tally: RunTally) -> None:
            if isinstance(event, Receipt):
                on_receipt(event)
            self.tracker.record_event(event, tally)
            self._on_progress(self.tracker.progress, event)

        draining = draining_on_signals(drain, self._execution.drain_seconds)
        with draining as drain_request, closing(start_executor()) as executor:
            executors.append(executor)
            self.tracker.attach(executor.gpus_per_worker)
            self.tracker.write(state="running")  # now, because the first event may come only after a quarter of an hour
            bundles = make_bundles(executor)
            self._log.write("run_started", "1 bundle" if len(bundles) == 1 else f"{len(bundles)} bundles")
            scheduler = Scheduler(
                executor,
                max_attempts=self._execution.max_attempts,
                should_drain=update_and_check_drain,
                interruptible=drain_request.interruptible,
                on_event=observe,
                find_committed=find_committed,
                tally=self.tally,
                activity=self._activity,
            )
            scheduler.run(bundles)
            self.tally.stopped_by_time_limit = self.tally.drained and drain_request.is_time_limit
        self._log.write("run_ended", self.tally.end_state, failures=len(self.tally.failures))

    @contextmanager
    def recording_errors(self) -> Iterator[None]:
        """If an error ends the run within the context, write the state "stopped" and log the error; raise it again."""
        try:
            yield
        except BaseException as error:
            self.tracker.stop()
            self._log.write("run_ended", f"stopped by {type(error).__name__}: {error}", level="error")
            raise

    def finish(self) -> RunTally:
        self.tally.evaluations = self.tracker.progress.evaluations_of_this_run
        self.tracker.write(state=self.tally.end_state)
        return self.tally
