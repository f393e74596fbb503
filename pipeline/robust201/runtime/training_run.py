"""Driver of training runs: plans them, computes the snapshots that the store lacks, and adds them to the manifest.

A snapshot is the weights after a certain number of steps. Workers write immutable files; only the driver writes the
manifest. Training runs that start from the weights of other training runs are computed in a later stage, which is
planned once these weights exist.
"""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast

from robust201.core.errors import ConfigError
from robust201.core.files import make_folder, remove_leftovers
from robust201.core.records import Receipt
from robust201.core.user_code import hash_files
from robust201.planning.training_inputs import Hashes, TrainingInputs
from robust201.planning.training_plan import (
    DeviceKind,
    PlannedTraining,
    TrainingPlan,
    TrainingPlanner,
    TrainingWork,
)
from robust201.runtime.driver import Driver, OnProgress
from robust201.runtime.executors import start_executor
from robust201.runtime.executors.base import BundleWorker, Executor
from robust201.runtime.heartbeat import (
    BEAT_SECONDS,
    read_heartbeats,
    read_server_or_local_time,
    remove_silent_heartbeats,
)
from robust201.runtime.lease import Lease
from robust201.runtime.progress import Tracker
from robust201.runtime.scheduler import RunTally
from robust201.runtime.work_log import WorkLog
from robust201.sweep.training_config import Training, TrainingConfig
from robust201.weights.manifest import parse_line
from robust201.weights.store import CheckpointStore

StartTrainingExecutor = Callable[[TrainingWork], Executor]


def start_training_executor(work: TrainingWork) -> Executor:
    """Start the executor chosen in the YAML; the caller must close it."""
    return start_executor(work.config, partial(_start_worker, work))


def _start_worker(work: TrainingWork) -> BundleWorker:
    from robust201.runtime.training_worker import TrainingWorker

    return TrainingWorker(work)


def choose_device_kind(config: TrainingConfig) -> DeviceKind:
    """Return the kind of device on which to train; it is part of the identity of training runs."""
    execution = config.execution
    if execution.device != "auto":
        return execution.device
    if execution.executor == "ray" and execution.ray_address:
        require_explicit_device(config)
    from robust201.models.device import choose_device

    return cast("DeviceKind", choose_device("auto", config.precision).type)


def require_explicit_device(config: TrainingConfig) -> None:
    """Raise ConfigError if workers on other machines would have to choose the device."""
    if config.execution.device == "auto":
        raise ConfigError(
            f"Planning training runs failed for {config.name}: execution.device must be cpu or cuda, not auto, because "
            "the weights depend on the device and the workers run on other machines. Set it to the device of these "
            "workers."
        )


@dataclass(frozen=True)
class TrainingSelection:
    """Selection of a YAML's training runs: those with one of `recipes`; None means all runs."""

    recipes: tuple[str, ...] | None = None

    def select(self, config: TrainingConfig) -> list[Training]:
        return [training for training in config.trainings() if self.recipes is None or training.recipe in self.recipes]


ALL_TRAININGS = TrainingSelection()


def preview_trainings(
    config: TrainingConfig,
    selection: TrainingSelection = ALL_TRAININGS,
    say: Callable[[str], None] = lambda _line: None,
) -> TrainingPlan:
    """Plan training runs on the basis of their images and the content of the store, without writing anything."""
    code = hash_files(config.code_files())
    store, device = CheckpointStore(config.store, verify_hashes=True), choose_device_kind(config)
    planner = TrainingPlanner(config, TrainingInputs(config, say), store, device=device, code=code)
    return planner.plan(selection.select(config))


def prepare_trainings(
    config: TrainingConfig,
    selection: TrainingSelection = ALL_TRAININGS,
    say: Callable[[str], None] = lambda _line: None,
) -> TrainingPlan:
    """Plan training runs for another machine."""
    with _prepare(config, selection, say) as (_lease, _planner, plan):
        return plan


def run_trainings(
    config: TrainingConfig,
    start: StartTrainingExecutor = start_training_executor,
    *,
    selection: TrainingSelection = ALL_TRAININGS,
    on_preview: Callable[[TrainingPlan], None] = lambda _plan: None,
    on_progress: OnProgress = lambda _progress, _event: None,
    say: Callable[[str], None] = lambda _line: None,
) -> RunTally:
    """Compute the snapshots that the store lacks; the returned tally lists the failures.

    An executor is started only if snapshots are missing. `on_preview` receives the plan before anything is computed.
    `on_progress` receives each event, and None regularly between events. `say` receives a line about each slow
    operation.

    Raises:
        InputError: bad input; nothing was started.
        StorageError: another driver holds the store's lease, or the store cannot be written.
    """
    with _prepare(config, selection, say) as (lease, planner, plan):
        for planned_training in plan.trainings:
            planner.inputs.test_images(planned_training.training.dataset)  # `save_copies` copies all opened images
        image_hashes = planner.inputs.save_copies()
        on_preview(plan)
        tally = _Run(lease, planner, plan, image_hashes, start=start, on_progress=on_progress, say=say).run()
        if tally.complete:
            shutil.rmtree(config.results / "images", ignore_errors=True)  # the workers' copies
        return tally


@contextmanager
def _prepare(
    config: TrainingConfig, selection: TrainingSelection, say: Callable[[str], None]
) -> Iterator[tuple[Lease, TrainingPlanner, TrainingPlan]]:
    """Check the inputs, take the lease, and plan."""
    device, trainings = choose_device_kind(config), selection.select(config)
    inputs = TrainingInputs(config, say)
    code = hash_files(config.code_files())
    # Planning reveals bad input before anything is written.
    TrainingPlanner(config, inputs, CheckpointStore(config.store), device=device, code=code).plan(trainings)
    make_folder(config.results)
    with (
        Lease.acquire(config.results, on_wait=say) as lease,
        CheckpointStore(config.store, verify_hashes=True) as store,
    ):
        inputs.save_code_copies(code)
        remove_silent_heartbeats(config.results)
        remove_leftovers(config.store)
        planner = TrainingPlanner(config, inputs, store, device=device, code=code)
        yield lease, planner, planner.plan(trainings)


class _Run:
    """A run of a training YAML, executed in stages."""

    def __init__(
        self,
        lease: Lease,
        planner: TrainingPlanner,
        plan: TrainingPlan,
        image_hashes: Hashes,
        *,
        start: StartTrainingExecutor,
        on_progress: OnProgress,
        say: Callable[[str], None],
    ) -> None:
        self._lease, self._planner, self._plan, self._image_hashes = lease, planner, plan, image_hashes
        self._start, self._say = start, say
        self._config = config = plan.config
        log = WorkLog(config.results, "driver")
        missing = [planned_training.part() for planned_training in plan.trainings if planned_training.missing]
        tracker = Tracker(plan, missing, config.results, plan.n_done, log)
        self._driver = Driver(
            tracker,
            log,
            config.execution,
            on_progress=on_progress,
            check=self._check_lease_and_note_steps,
            say=say,
            activity="Training",
        )
        self._last_steps_time = -math.inf

    def run(self) -> RunTally:
        """Execute the training runs whose start weights exist, stage by stage, until no stage makes progress."""
        tally = self._driver.tally
        with self._driver.recording_errors():
            while not tally.drained:
                failed_units = {failure.part.unit.id for failure in tally.failures}
                ready_trainings = [
                    planned_training
                    for planned_training in self._plan.trainings
                    if planned_training.is_ready
                    and planned_training.missing
                    and planned_training.training.digest not in failed_units
                ]
                if not ready_trainings:
                    break
                n_earlier_results = tally.results
                self._run_stage(ready_trainings)
                self._replan()
                if tally.results == n_earlier_results:
                    break
        n_failed_snapshots = sum(len(failure.part.strengths) for failure in tally.failures)
        tally.remaining = (
            sum(len(planned_training.missing) for planned_training in self._plan.trainings) - n_failed_snapshots
        )
        self._report_waiting()
        return self._driver.finish()

    def _replan(self) -> None:
        waiting_parts = [
            planned_training.part() for planned_training in self._plan.trainings if not planned_training.is_ready
        ]
        self._plan = self._planner.plan([planned_training.training for planned_training in self._plan.trainings])
        by_unit = self._plan.by_unit
        replanned_parts = [by_unit[part.unit.id].part() for part in waiting_parts if by_unit[part.unit.id].missing]
        self._driver.tracker.replace(waiting_parts, self._plan, replanned_parts)

    def _report_waiting(self) -> None:
        waiting_trainings = [
            planned_training for planned_training in self._plan.trainings if not planned_training.is_ready
        ]
        if waiting_trainings:
            predecessor = self._config.start_of(waiting_trainings[0].training)
            self._say(
                "Training runs that were not started because their start weights are missing: "
                f"{len(waiting_trainings)}, such as {waiting_trainings[0].training.label}, which starts from "
                f"{'other weights' if predecessor is None else predecessor.label}."
            )

    def _run_stage(self, trainings: Sequence[PlannedTraining]) -> None:
        plan, device = self._plan, self._planner.device
        trainings_by_unit = {planned_training.training.digest: planned_training for planned_training in trainings}
        work = TrainingWork(self._config, trainings_by_unit, self._image_hashes, plan.code, device)
        self._driver.run_stage(
            partial(self._start, work),
            lambda _executor: plan.bundles(trainings, device != "cpu"),
            find_committed=lambda _parts: (),  # a lost worker's unreported snapshots are computed again
            on_receipt=self._add_snapshot,
        )

    def _check_lease_and_note_steps(self) -> None:
        self._lease.check()
        if time.monotonic() - self._last_steps_time >= BEAT_SECONDS:
            results = self._config.results
            self._driver.tracker.note_steps(read_heartbeats(results, read_server_or_local_time(results)))
            self._last_steps_time = time.monotonic()

    def _add_snapshot(self, receipt: Receipt) -> None:
        """Add a snapshot to the manifest; after the last snapshot, remove the saved states of the training run."""
        planned_training = self._plan.by_unit[receipt.unit_id]
        store = self._planner.store
        store.add_to_manifest(parse_line(receipt.record.encode(), receipt.shard))
        store.flush()
        if receipt.strengths[-1] == planned_training.missing[-1]:
            shutil.rmtree(planned_training.states_folder(self._config), ignore_errors=True)
