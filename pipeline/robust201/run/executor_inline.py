"""Executor `inline`: a worker in the process of the driver."""

from contextlib import closing

from robust201.run.driver import DeadlineError, Drain, Run
from robust201.run.work import PartT
from robust201.store.events import Events


def execute(run: Run[PartT], events: Events, drain: Drain) -> None:
    """Compute the parts of a run in this process; abandon the part in progress at the end of `drain_seconds`."""
    drain.deadline = run.work.execution.drain_seconds
    try:
        _compute(run, events.run, drain)
    except DeadlineError:
        run.tally.n_abandoned = 1


def _compute(run: Run[PartT], token: str, drain: Drain) -> None:
    with closing(run.work.start_worker(token)) as worker:
        network = None
        while not drain.is_requested and (part := run.queue.take(network)) is not None:
            network = part.network
            run.finish(part, worker.compute(part, lambda: drain.is_requested), 1)
