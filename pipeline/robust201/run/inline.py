"""A run in this process, without Ray: for small sweeps, debugging and tests."""

from collections.abc import Callable

from robust201.run.events import Events
from robust201.run.sweep import PreparedRun, Say, Tally, make_corrupted_images, prepare_run
from robust201.run.worker import Worker
from robust201.sweep.config import SweepConfig
from robust201.sweep.filters import EVERYTHING, Filters


def run_inline(
    config: SweepConfig,
    filters: Filters = EVERYTHING,
    *,
    say: Say = lambda _line: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Tally:
    """Compute the missing parts of a sweep in this process.

    Raises:
        InputError: bad input; nothing was started.
        StorageError: results cannot be written.
    """
    with prepare_run(config, filters, say) as run:
        tally = Tally(run.plan.n_evaluations, run.state.n_done)
        if run.state.n_missing_parts:
            _compute_inline(run, tally, say, should_stop)
        return tally


def _compute_inline(run: PreparedRun, tally: Tally, say: Say, should_stop: Callable[[], bool]) -> None:
    make_corrupted_images(run, say)
    with Events(run.folder.root, "worker") as events:
        worker = Worker(run.plan.config, run.plan.facts, run.folder, events)
        for part in run.state.missing():
            if should_stop():
                tally.is_drained = True
                return
            tally.count(worker.compute(part))
