"""Executor `ray`: workers on a Ray cluster or a local Ray; parts of lost workers are retried.

The process must have been started by `run.guard`.
"""

import os
from contextlib import ExitStack, closing, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from robust201.run.driver import Drain, Run
from robust201.run.environment import ray_variables
from robust201.run.guard import Attachment, attach
from robust201.run.work import Outcome, PartT
from robust201.store.events import Events

if TYPE_CHECKING:
    from robust201.run.cluster import Cluster, LostWorker

WAIT_SECONDS = 1.0


def execute(run: Run[PartT], events: Events, drain: Drain) -> None:
    """Compute the parts of a run on Ray.

    Raises:
        ConfigError: workers cannot be started as configured.
        EvaluationError: Ray was lost, or too many workers died.
    """
    RayExecution(run, events, drain, attach()).compute()


@dataclass
class RayExecution(Generic[PartT]):
    """A run on Ray."""

    run: Run[PartT]
    events: Events
    drain: Drain
    attachment: Attachment
    _is_stopped: bool = False

    def compute(self) -> None:
        """Compute the parts of the queue; once a signal asks the run to drain, finish only the parts in progress."""
        os.environ.update(ray_variables(self.run.work.execution))
        from robust201.run.cluster import Cluster

        with ExitStack() as stack:
            stack.callback(self.attachment.end)
            # Ray prints messages about lost processes to stdout, from a thread.
            stack.enter_context(redirect_stdout(stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))))
            work = self.run.work
            start_worker = partial(work.start_worker, self.events.run)
            self.attachment.beat()
            cluster: Cluster[PartT] = Cluster(work.execution, work.precision, start_worker, self.attachment.folder)
            stack.enter_context(closing(cluster))
            stack.callback(self.attachment.beat)
            while self._may_continue(cluster):
                self._step(cluster)

    def _step(self, cluster: "Cluster[PartT]") -> None:
        from robust201.run.cluster import FinishedPart

        self.attachment.beat()
        if not self.drain.is_requested:
            cluster.fill(self.run.queue.take)
        elif not self._is_stopped:
            cluster.stop()
            self._is_stopped = True
        events = cluster.wait(WAIT_SECONDS)
        self.attachment.end()  # the next calls may wait for a file server or the user's terminal
        for event in events:
            if isinstance(event, FinishedPart):
                self.run.finish(event.part, event.outcome, cluster.n_busy)
            else:
                self._handle_loss(event, cluster.n_busy)
        self.run.show(cluster.n_busy)

    def _may_continue(self, cluster: "Cluster[PartT]") -> bool:
        self.drain.note_end(self.run.tally)
        if self.drain.is_requested and self.drain.is_over(self.run.work.execution.drain_seconds):
            self.run.tally.n_abandoned = cluster.n_in_flight
            return False
        return cluster.n_in_flight > 0 or not (self.drain.is_requested or self.run.queue.is_empty)

    def _handle_loss(self, lost: "LostWorker", n_workers: int) -> None:
        """Queue the parts of a lost worker again, except parts that are stored or have now failed."""
        missing_parts = []
        for part in lost.parts:
            outcome = self.run.work.find_stored(part)
            missing_parts += [part] if outcome is None else []
            if outcome is not None:
                self.run.finish(part, outcome, n_workers)
        self.run.tally.n_died += not lost.preempted
        self.run.tally.n_preempted += lost.preempted
        for part in missing_parts:
            self.events.write("worker_lost", **part.fields, reason=lost.reason, preempted=lost.preempted)
        failed_part = self.run.queue.lose(missing_parts, reason=lost.reason, preempted=lost.preempted)
        if failed_part is not None:
            failure = f"its worker died {self.run.work.execution.max_attempts} times ({lost.reason})"
            self.events.write("failed", **failed_part.fields, failure=failure)
            self.run.count(failed_part, Outcome(failed_part.label, failure=failure), n_workers)
