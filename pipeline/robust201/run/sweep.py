"""The work of a sweep: plans once, compares the plan with the results folder, and tells the driver what is missing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.errors import InputError
from robust201.core.files import remove_leftovers
from robust201.run.driver import run_work
from robust201.run.events import Events, read_all_events
from robust201.run.images import CorruptedImages, ImagePart
from robust201.run.lock import hold_lock
from robust201.run.work import OnMoment, Outcome, Say, Tally, Work
from robust201.store.folder import ResultsFolder
from robust201.sweep.config import SweepConfig
from robust201.sweep.costs import Speeds
from robust201.sweep.facts import gather_facts, load_plan, save_plan
from robust201.sweep.filters import EVERYTHING, Filters
from robust201.sweep.inputs import Inputs
from robust201.sweep.parts import SlicePart, SweepState, compare, is_stored
from robust201.sweep.plan import Plan, choose_slices, make_plan

if TYPE_CHECKING:
    from robust201.run.worker import Worker


class SweepWork(Work[SlicePart | ImagePart]):
    """What a run of a sweep computes (see `run.work.Work`)."""

    def __init__(self, folder: ResultsFolder, plan: Plan, state: SweepState) -> None:
        self.plan, self.state = plan, state
        self.execution, self.precision, self.folder = plan.config.execution, plan.config.precision, folder.root
        images = CorruptedImages(plan.config, plan.facts, Inputs(plan.config))
        self.parts = chain(images.missing_parts(state), state.missing())
        self.n_planned, self.n_done = plan.n_evaluations, state.n_done
        self.start_worker = partial(start_worker, folder.root.resolve())
        self._results = folder
        self._speeds = Speeds(
            event for event in read_all_events(folder.root) if event["event"] == "done" and "macs" in event
        )
        self._missing_macs = {(key.key.dataset, key.key.key): key.missing_macs for key in state.keys}

    def find_stored(self, part: SlicePart | ImagePart) -> Outcome | None:
        if isinstance(part, ImagePart):
            return None  # making images that exist costs nothing
        folder = self._results
        listing = folder.list_unit(part.unit.dataset, part.unit.id)
        return Outcome(part.label, part.part.strengths) if is_stored(part, listing, folder.read_tuple) else None

    def finish(self, part: SlicePart | ImagePart, outcome: Outcome) -> Sequence[SlicePart]:
        if isinstance(part, ImagePart):
            return ()
        self._missing_macs[part.unit.dataset, part.unit.key] -= part.macs
        if outcome.strengths:
            self.n_done += self.state.add(part)
        if outcome.seconds and not outcome.failure:
            self._speeds.add(part.unit.dataset, part.unit.key, part.macs, outcome.seconds)
        return ()

    def seconds_left(self, n_workers: int) -> float | None:
        seconds = self._speeds.estimate_seconds(self._missing_macs)
        return None if seconds is None or not n_workers else seconds / n_workers


def start_worker(results: Path) -> "Worker":
    """Start a worker for the plan of a results folder, in this process."""
    from robust201.run.worker import Worker

    config, facts = load_plan(results)
    return Worker(config, facts, ResultsFolder.open(results), Events(results, "worker"))


def run_sweep(
    config: SweepConfig,
    filters: Filters = EVERYTHING,
    *,
    say: Say = lambda _line: None,
    on_start: Callable[[SweepWork], None] = lambda _work: None,
    on_moment: OnMoment = lambda _moment: None,
) -> Tally:
    """Compute the missing parts of a sweep.

    `on_start` receives the work before anything is computed.

    Raises:
        InputError: bad input; nothing was started.
        EvaluationError: Ray was lost, or too many workers died.
        StorageError: results cannot be written.
    """
    with prepare_run(config, filters, say) as work:
        on_start(work)
        return run_work(work, say, on_moment)


@contextmanager
def prepare_run(config: SweepConfig, filters: Filters, say: Say) -> Iterator[SweepWork]:
    """Check all inputs, hold the lock, and write the plan and the inputs of workers.

    Raises:
        ConfigError: a filter has an unknown name; nothing was written.
        InputError: an input is missing or wrong; nothing was written.
        LeaseHeldError: another driver is working in the folder.
    """
    filters.check(config)
    inputs = Inputs(config, say, keys=filters.keys, datasets=filters.datasets)
    inputs.check()
    facts = gather_facts(config, say)
    folder = ResultsFolder.create(config.results, choose_slices(config), config.shards or "")
    _check_device(config, folder)
    with hold_lock(config.results):
        full_plan = make_plan(config, facts, folder.slices)
        full_plan.save_records(folder)
        save_plan(config, facts)
        inputs.copy_images()
        inputs.save_code_copies()
        remove_leftovers(config.results)
        CorruptedImages(config, facts, inputs).remove_leftovers()
        plan = full_plan.narrow(architectures=filters.architectures, datasets=filters.datasets, keys=filters.keys)
        yield SweepWork(folder, plan, compare(plan, folder.list(), folder.read_tuple))


def _check_device(config: SweepConfig, folder: ResultsFolder) -> None:
    """Keep results of CPUs and of other devices apart, because their last bits differ."""
    if config.execution.is_on_cpu() != folder.slices.is_cpu:
        expected = "cpu" if folder.slices.is_cpu else "auto or cuda"
        raise InputError(
            f"Starting a run failed for {folder.root}: expected execution.device {expected}, with which the folder was "
            f"made, got {config.execution.device}. Change the device, or choose another folder."
        )
