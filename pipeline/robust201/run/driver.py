"""The driver of a run on Ray: distributes parts, counts outcomes, retries lost work and drains."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.run.environment import ray_variables
from robust201.run.events import Events, describe_part
from robust201.run.guard import SIGNALS, Attachment, attach
from robust201.run.queue import PartQueue
from robust201.run.sweep import Outcome, PreparedRun, Say, Tally, make_corrupted_images, prepare_run
from robust201.store.folder import ResultsFolder
from robust201.sweep.config import SweepConfig
from robust201.sweep.facts import load_plan
from robust201.sweep.filters import Filters
from robust201.sweep.parts import SlicePart, is_stored

if TYPE_CHECKING:
    from robust201.run.cluster import Cluster, Lost
    from robust201.run.worker import Worker

WAIT_SECONDS = 1.0


def run_ray(config: SweepConfig, filters: Filters, say: Say) -> Tally:
    """Compute the missing parts of a sweep on Ray. The process should have been started by `guard`.

    Raises:
        InputError: bad input; nothing was started.
        EvaluationError: Ray was lost, or too many workers died.
        StorageError: results cannot be written.
    """
    attachment = attach() or Attachment(Path(tempfile.gettempdir()), lambda _message: None)
    with prepare_run(config, filters, say) as run, Events(config.results, "driver") as events:
        tally = Tally(run.plan.n_evaluations, run.state.n_done)
        if run.state.n_missing_parts:
            make_corrupted_images(run, say)
            _Driver(run, tally, events, attachment).run(say)
        return tally


def start_worker(results: Path) -> "Worker":
    """Start a worker for the plan of a results folder, in this process."""
    from robust201.run.worker import Worker

    config, facts = load_plan(results)
    return Worker(config, facts, ResultsFolder.open(results), Events(results, "worker"))


class _Driver:
    """Drives one run."""

    def __init__(self, run: PreparedRun, tally: Tally, events: Events, attachment: Attachment) -> None:
        self._run, self._tally, self._events, self._attachment = run, tally, events, attachment
        self._execution = run.plan.config.execution
        self._queue = PartQueue(run.state.missing(), self._execution.max_attempts)

    def run(self, say: Say) -> None:
        """Compute the parts of the queue, or those in progress if a signal asks the run to drain."""
        self._attachment.beat()
        os.environ.update(ray_variables(self._execution))
        from robust201.run.cluster import Cluster, Finished

        config = self._run.plan.config
        start = partial(start_worker, config.results.resolve())
        with ExitStack() as stack:
            # Ray prints messages about lost processes to stdout, from a thread.
            stack.enter_context(redirect_stdout(stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))))
            cluster: Cluster[SlicePart] = Cluster(self._execution, config.precision, start, self._attachment.folder)
            stack.enter_context(closing(cluster))
            drain = stack.enter_context(draining(say))
            while self._may_continue(cluster, drain):
                self._attachment.beat()
                if not drain.is_requested:
                    cluster.fill(self._queue.take)
                for event in cluster.wait(WAIT_SECONDS):
                    if isinstance(event, Finished):
                        self._count(event.part, event.outcome)
                    else:
                        self._handle_loss(event)
        self._attachment.end()

    def _may_continue(self, cluster: "Cluster[SlicePart]", drain: "Drain") -> bool:
        self._tally.is_drained = drain.is_requested and (cluster.n_in_flight > 0 or not self._queue.is_empty)
        if drain.is_requested:
            return cluster.n_in_flight > 0 and not drain.is_over(self._execution.drain_seconds)
        return cluster.n_in_flight > 0 or not self._queue.is_empty

    def _count(self, part: SlicePart, outcome: Outcome) -> None:
        self._tally.count(outcome)
        self._queue.succeed()

    def _handle_loss(self, lost: "Lost") -> None:
        """Queue the parts of a lost worker again, except those that it had stored, which only their folder tells."""
        parts = [part for part in lost.parts if not self._is_stored(part)]
        self._events.write("worker_lost", reason=lost.reason, preempted=lost.preempted, parts=[p.label for p in parts])
        failed = self._queue.lose(parts, reason=lost.reason, preempted=lost.preempted)
        if failed is not None:
            failure = f"its worker died {self._execution.max_attempts} times ({lost.reason})"
            self._tally.count(Outcome(failed.label, failure=failure))
            self._events.write("failed", **describe_part(failed), failure=failure)

    def _is_stored(self, part: SlicePart) -> bool:
        folder = self._run.folder
        return is_stored(part, folder.list_unit(part.unit.dataset, part.unit.id), folder.read_tuple)


@dataclass
class Drain:
    """Whether a signal has asked the run to drain, and since when (`time.monotonic`)."""

    since: float | None = None

    @property
    def is_requested(self) -> bool:
        return self.since is not None

    def is_over(self, seconds: float | None) -> bool:
        """Return whether draining has lasted longer than a limit; None is no limit."""
        return self.since is not None and seconds is not None and time.monotonic() - self.since > seconds


@contextmanager
def draining(say: Say) -> Iterator[Drain]:
    """Turn the first signal in a block into a request to drain; a second one raises KeyboardInterrupt."""
    drain = Drain()

    def request(_number: int, _frame: object) -> None:
        if drain.is_requested:
            raise KeyboardInterrupt
        drain.since = time.monotonic()
        say("Stopping after the evaluations in progress; a second signal stops immediately.")

    previous = {number: signal.signal(number, request) for number in SIGNALS}
    try:
        yield drain
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
