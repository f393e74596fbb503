"""The work of a training YAML: to compute the snapshots that its store lacks, and add them to the store's manifest.

A snapshot is the weights after a certain number of steps. A part is a training run. A training run that starts from the
weights of another run becomes a part when these weights exist.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.files import make_folder, remove_leftovers, write_text
from robust201.core.user_code import hash_files
from robust201.run.environment import choose_device_kind
from robust201.run.lock import hold_lock
from robust201.run.snapshots import folder_of, move_records, recorded_steps, saved_steps, state_folders
from robust201.run.training_status import PLAN_FILE, PLAN_RECORD, PlanRecord, count_epochs
from robust201.run.work import Outcome, Say, Work
from robust201.store.events import Events
from robust201.sweep.filters import EVERYTHING, Filters, select_training_runs
from robust201.sweep.training_config import TrainingConfig, TrainingRun
from robust201.sweep.training_inputs import TrainingInputs
from robust201.sweep.training_plan import PlannedTraining, TrainingPlanner, TrainingSetup
from robust201.weights.manifest import MANIFEST_NAME
from robust201.weights.store import CheckpointStore

if TYPE_CHECKING:
    from robust201.run.training_worker import TrainingWorker

_REFRESH_SECONDS = 10.0
"""Time after which the saved states are listed again even if no part has ended."""


class TrainingWork(Work[PlannedTraining]):
    """The work of a training YAML's run (see `run.work.Work`); progress is counted in epochs.

    Attributes:
        training_runs: the plan of each selected training run.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        planner: TrainingPlanner,
        store: CheckpointStore,
        training_runs: Sequence[PlannedTraining],
    ) -> None:
        config = setup.config
        self.training_runs = {planned.training: planned for planned in training_runs}
        self.execution, self.precision, self.folder = config.execution, config.precision, config.results
        ready = [planned for planned in training_runs if planned.is_ready and planned.missing]
        self.parts = sorted(ready, key=lambda planned: -planned.macs * planned.n_epochs)
        self.n_planned = sum(planned.n_epochs for planned in training_runs)
        self.start_worker = partial(start_training_worker, setup)
        self._config, self._planner, self._store = config, planner, store
        self._start_time = self._refresh_time = time.monotonic()
        self.refresh()
        self._macs_at_start = self._missing_macs
        self._is_plan_saved = False
        self.save_plan()

    def save_plan(self) -> None:
        """Write the plan for `status`, unless it has not changed."""
        if not self._is_plan_saved:
            record = PlanRecord(self._config.name, tuple(self.training_runs.values()))
            write_text(self.folder / PLAN_FILE, PLAN_RECORD.dump_json(record).decode() + "\n")
            self._is_plan_saved = True
        self._save_time = time.monotonic()

    def refresh(self) -> None:
        """Count the finished epochs."""
        states = saved_steps(self.folder)
        epochs = [(planned, count_epochs(planned, states)) for planned in self.training_runs.values()]
        self.n_done = sum(n_done for _, n_done in epochs)
        self._missing_macs = sum(planned.macs * (planned.n_epochs - n_done) for planned, n_done in epochs)
        self._refresh_time = time.monotonic()

    def find_stored(self, part: PlannedTraining) -> Outcome | None:
        steps = recorded_steps(folder_of(self.folder, part.folder_name))
        return Outcome(part.label, tuple(map(float, steps))) if set(part.missing) <= {*steps} else None

    def finish(self, part: PlannedTraining, outcome: Outcome) -> Sequence[PlannedTraining]:
        """Add the part's snapshots to the manifest; after the last one, return the runs that start from its weights."""
        del outcome  # the records show which snapshots were stored
        folder = folder_of(self.folder, part.folder_name)
        stored = recorded_steps(folder)
        move_records([folder], self._store)
        missing = tuple(step for step in part.missing if step not in stored)
        self.training_runs[part.training] = replace(part, missing=missing)
        if not missing:
            shutil.rmtree(folder, ignore_errors=True)
        followers = [] if missing else self._plan_followers(part.training)
        self.refresh()
        return followers

    def _plan_followers(self, training: TrainingRun) -> list[PlannedTraining]:
        """Plan the waiting runs that start from the final weights of a training run; return the runs to compute."""
        followers = [
            planned.training
            for planned in self.training_runs.values()
            if not planned.is_ready and self._config.start_of(planned.training) == training
        ]
        parts: list[PlannedTraining] = []
        for planned in self._planner.plan(followers, self.training_runs):
            self.training_runs[planned.training], self._is_plan_saved = planned, False
            parts += [planned] if planned.missing else self._plan_followers(planned.training)
        return parts

    def seconds_left(self, n_workers: int) -> float | None:
        if time.monotonic() - self._save_time > _REFRESH_SECONDS:
            self.refresh()
            self.save_plan()
        done = self._macs_at_start - self._missing_macs
        elapsed = self._refresh_time - self._start_time
        return elapsed * self._missing_macs / done if done > 0 and n_workers else None

    def end(self, say: Say) -> None:
        self.refresh()
        self.save_plan()
        if self.n_done == self.n_planned:
            shutil.rmtree(self.folder / "images", ignore_errors=True)  # the workers' copies
        waiting = [planned.training for planned in self.training_runs.values() if not planned.is_ready]
        if waiting:
            say(
                f"Training runs that were not started because their start weights are missing: {len(waiting)}, such "
                f"as {waiting[0].label}."
            )


def start_training_worker(setup: TrainingSetup, run: str = "") -> "TrainingWorker":
    """Start a worker of a run in this process."""
    from robust201.run.training_worker import TrainingWorker

    return TrainingWorker(setup, Events(setup.config.results, "worker", run))


def preview_training_runs(
    config: TrainingConfig, filters: Filters = EVERYTHING, say: Say = lambda _line: None
) -> list[PlannedTraining]:
    """Plan training runs on the basis of their images and the content of the store, without writing anything."""
    store = CheckpointStore(config.store, verify_hashes=True)
    planner = TrainingPlanner(
        config,
        TrainingInputs(config, say),
        store,
        device=choose_device_kind(config.execution, config.precision),
        code=hash_files(config.code_files()),
    )
    training_runs = select_training_runs(config, filters)
    return planner.plan(training_runs, training_runs)


@contextmanager
def prepare_training_runs(config: TrainingConfig, filters: Filters, say: Say) -> Iterator[TrainingWork]:
    """Check the inputs, hold the lock of the store, and write the files that workers read.

    Raises:
        InputError: an input is missing or invalid; nothing was written.
        LockHeldError: another driver is working in the store.
    """
    device, code = choose_device_kind(config.execution, config.precision), hash_files(config.code_files())
    training_runs, inputs = select_training_runs(config, filters), TrainingInputs(config, say)
    manifest = _read_file_state(config.store / MANIFEST_NAME)

    def open_store() -> tuple[CheckpointStore, TrainingPlanner]:
        store = CheckpointStore(config.store, verify_hashes=True)
        return store, TrainingPlanner(config, inputs, store, device=device, code=code)

    store, planner = open_store()
    planned = planner.plan(training_runs, training_runs)  # detects invalid input before anything is written
    make_folder(config.results)
    with ExitStack() as stack:
        stack.enter_context(hold_lock(config.results))
        is_manifest_changed = _read_file_state(config.store / MANIFEST_NAME) != manifest  # by another driver
        if is_manifest_changed:
            store, planner = open_store()
        stack.enter_context(store)
        remove_leftovers(config.store)
        if move_records(state_folders(config.results), store) or is_manifest_changed:  # of a killed driver
            planned = planner.plan(training_runs, training_runs)
        for dataset in dict.fromkeys(training.dataset for training in training_runs):
            inputs.test_images(dataset)  # `save_copies` copies all opened images
        inputs.save_code_copies(code)
        yield TrainingWork(TrainingSetup(config, inputs.save_copies(), code, device), planner, store, planned)


def _read_file_state(path: Path) -> tuple[int, int] | None:
    """Return the modification time and the size of a file; None if it does not exist."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size
