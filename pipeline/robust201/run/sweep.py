"""The work of a sweep: its plan is compared with the results folder once, and workers compute the missing parts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.errors import InputError
from robust201.core.files import remove_old
from robust201.run.environment import choose_device_kind
from robust201.run.images import CorruptedImages, ImagePart
from robust201.run.lock import hold_lock
from robust201.run.work import Outcome, Say, Work
from robust201.store.events import Events, event_files, read_recent_events
from robust201.store.folder import ResultsFolder
from robust201.sweep.config import ExecutionSection, SweepConfig
from robust201.sweep.costs import Speeds
from robust201.sweep.explain import Cause, explain
from robust201.sweep.facts import find_plan, gather_facts, load_plan, save_plan
from robust201.sweep.filters import Filters
from robust201.sweep.inputs import Inputs
from robust201.sweep.parts import SlicePart, SweepState, compare, is_stored
from robust201.sweep.plan import Plan, choose_slices, make_plan
from robust201.sweep.shares import Share

if TYPE_CHECKING:
    from robust201.run.worker import Worker


class SweepWork(Work[SlicePart | ImagePart]):
    """The work of a sweep's run (see `run.work.Work`).

    Attributes:
        causes: causes of the missing parts.
    """

    causes: Sequence[Cause] = ()

    def __init__(self, folder: ResultsFolder, plan: Plan, state: SweepState, share: Share | None = None) -> None:
        self.execution, self.precision, self.folder = plan.config.execution, plan.config.precision, folder.root
        self.plan, self.state, n_outside = plan, state, 0
        if share is not None:
            self.state, n_outside = share.restrict(state)
        self.n_planned, self.n_done = plan.n_evaluations - n_outside, self.state.n_done - n_outside
        self.parts = self._order_parts(share)
        self.role = "driver" if share is None else "share"
        self.start_worker = partial(start_worker, folder.root.resolve(), self.execution)
        self._results = folder
        self._speeds = Speeds(read_recent_events(folder.root) if share is None else ())  # there may be many shares
        self._missing_macs = {(key.key.dataset, key.key.key): key.missing_macs for key in self.state.keys}

    def _order_parts(self, share: Share | None) -> Iterator[SlicePart | ImagePart]:
        """Yield the images first; a share yields corruptions last, so that other shares can generate images before."""
        images = CorruptedImages(self.plan.config, self.plan.facts, Inputs(self.plan.config))
        image_parts = images.missing_parts(self.state)
        if share is None:
            yield from image_parts
            yield from self.state.missing_parts()
            return
        yield from (part for part in image_parts if share.has_images(*part.id))
        yield from self.state.select(lambda key: key.task.kind != "corruption").missing_parts()
        yield from self.state.select(lambda key: key.task.kind == "corruption").missing_parts()

    def find_stored(self, part: SlicePart | ImagePart) -> Outcome | None:
        if isinstance(part, ImagePart):
            return None  # a worker skips images that exist
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


def start_worker(results: Path, execution: ExecutionSection, run: str = "") -> "Worker":
    """Start a worker of a run for the plan of a results folder, in this process."""
    from robust201.run.worker import Worker

    config, facts = load_plan(results)
    config = config.model_copy(update={"execution": execution})
    return Worker(config, facts, ResultsFolder.open(results), Events(results, "worker", run))


@contextmanager
def prepare_run(config: SweepConfig, filters: Filters, say: Say) -> Iterator[SweepWork]:
    """Check all inputs, hold the lock, and write the plan and the inputs of workers.

    Raises:
        InputError: an input is missing or wrong; nothing was written.
        LockHeldError: another driver is working in the folder.
    """
    config = fix_device(config)
    inputs = Inputs(config, filters)
    inputs.check()
    earlier = find_plan(config.results)
    facts = gather_facts(config, inputs, earlier)
    folder = ResultsFolder.create(config.results, choose_slices(config), config.shards or "")
    check_device(config, folder)
    with hold_lock(config.results):
        full_plan = make_plan(config, facts, folder.slices)
        full_plan.save_records(folder)
        save_plan(config, facts)
        inputs.copy_images()
        inputs.save_code_copies()
        CorruptedImages(config, facts, inputs).remove_leftovers()
        plan = filters.narrow(full_plan)
        listing = folder.list(say)
        folder.remove_leftovers()
        remove_old(event_files(folder.root))
        work = SweepWork(folder, plan, compare(plan, listing, folder.read_tuple))
        earlier_facts = None if earlier is None else earlier[1]
        work.causes = explain(plan, work.state, listing, folder.read_tuple, folder.read_protocols(), earlier_facts)
        yield work


def fix_device(config: SweepConfig) -> SweepConfig:
    """Return a sweep with the device on which this run computes (see `choose_device_kind`)."""
    device = choose_device_kind(config.execution, config.precision)
    return config.model_copy(update={"execution": config.execution.model_copy(update={"device": device})})


def check_device(config: SweepConfig, folder: ResultsFolder) -> None:
    """Raise InputError if a run would mix results of CPUs and of GPUs, whose last bits differ."""
    if (config.execution.device == "cpu") != folder.slices.is_cpu:
        expected = "cpu" if folder.slices.is_cpu else "a GPU"
        raise InputError(
            f"Starting a run failed for {folder.root}: expected execution.device {expected}, with which the folder was "
            f"made, got {config.execution.device}. Change the device, or choose another folder."
        )
