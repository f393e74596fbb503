"""The status of training runs, from the store's manifest, the saved states and the last events of processes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from robust201.core.errors import InputError
from robust201.run.processes import Process, read_processes
from robust201.run.snapshots import folder_of, recorded_steps, saved_steps
from robust201.run.status import Failure
from robust201.store.events import read_failures
from robust201.sweep.training_plan import PlannedTraining
from robust201.weights.store import CheckpointStore

PLAN_FILE = "plan.json"
RUN_FOLDER = "training"
"""Subfolder of a store with the files of runs (see `TrainingConfig.results`)."""


@dataclass(frozen=True)
class PlanRecord:
    """Content of ``plan.json``: the training runs of the last `robust201 run`."""

    name: str
    trainings: tuple[PlannedTraining, ...]


PLAN_RECORD = TypeAdapter(PlanRecord)


class RunningTraining(NamedTuple):
    """A training run that a worker is computing, with its last complete epoch (0 if none) and that epoch's results.

    `seconds` is the time since the worker began.
    """

    part: str
    worker: str
    seconds: float
    epoch: int
    n_epochs: int
    loss: float | None
    accuracy: float | None


@dataclass(frozen=True)
class TrainingStatus:
    """The status of the training runs of the last `robust201 run` in a store.

    Attributes:
        n_trainings: number of training runs; `n_trainings_done` of them have all their snapshots.
        n_planned: number of epochs of all training runs.
        n_done: number of epochs that need not be computed again.
        in_progress: training runs that workers are computing.
        failures: failed training runs that are not complete.
        silent: names of processes that are dead or cut off (see `run.processes.Process`).
        seconds_left: estimated time until all runs are complete; None without a computing worker or a measured epoch.
    """

    name: str
    n_trainings: int
    n_trainings_done: int
    n_planned: int
    n_done: int
    in_progress: Sequence[RunningTraining]
    failures: Sequence[Failure]
    silent: Sequence[str]
    seconds_left: float | None

    @property
    def running(self) -> bool:
        """Whether any worker is computing."""
        return bool(self.in_progress)

    @property
    def complete(self) -> bool:
        """Whether no snapshot is missing."""
        return self.n_trainings_done == self.n_trainings

    def to_payload(self) -> dict[str, Any]:
        """Return the status as a JSON value."""
        payload = asdict(self) | {"running": self.running, "complete": self.complete}
        return payload | {
            name: [item._asdict() for item in getattr(self, name)] for name in ("in_progress", "failures")
        }


def has_training_runs(store: Path) -> bool:
    """Return whether training runs were started in a store."""
    return (store / RUN_FOLDER / PLAN_FILE).is_file()


def count_epochs(planned: PlannedTraining, states: Mapping[str, Sequence[int]]) -> int:
    """Return the epochs of a training run that need not be computed again, given the steps of all saved states."""
    if planned.is_ready and not planned.missing:
        return planned.n_epochs
    steps = [step for step in states.get(planned.folder_name, ()) if step <= planned.missing[0]]
    return min(max(steps, default=0) // planned.n_batches, planned.n_epochs - 1)


def read_training_status(store: Path) -> TrainingStatus:
    """Read the status of the training runs of the last `robust201 run` in a store.

    Raises:
        InputError: the store has no runs, or no valid plan.
        CheckpointError: the manifest of the store is damaged.
    """
    results = store / RUN_FOLDER
    record = _load_plan(results)
    training_runs = _find_missing(record.trainings, store)
    states, processes = saved_steps(results), read_processes(results)
    epochs = [(planned, count_epochs(planned, states)) for planned in training_runs]
    in_progress = [part for process in processes if process.is_active and (part := _find_running(process)) is not None]
    macs = sum(planned.macs * (planned.n_epochs - n_done) for planned, n_done in epochs)
    events = [event for process in processes for event in process.events]
    return TrainingStatus(
        name=record.name,
        n_trainings=len(training_runs),
        n_trainings_done=sum(planned.is_ready and not planned.missing for planned in training_runs),
        n_planned=sum(planned.n_epochs for planned in training_runs),
        n_done=sum(n_done for _, n_done in epochs),
        in_progress=in_progress,
        failures=_find_failures(training_runs, results),
        silent=[process.name for process in processes if process.is_silent],
        seconds_left=_estimate_seconds(macs, events, len(in_progress)),
    )


def _load_plan(results: Path) -> PlanRecord:
    path = results / PLAN_FILE
    try:
        return PLAN_RECORD.validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(
            f"Reading the status failed for {results.parent}: it has no training runs yet. Start them with: robust201 "
            "run TRAININGS.yaml"
        ) from error
    except (OSError, ValidationError) as error:
        raise InputError(
            f"Reading the status failed for {path}: not a valid plan ({type(error).__name__}). Rewrite it with: "
            "robust201 run TRAININGS.yaml"
        ) from error


def _find_missing(training_runs: Sequence[PlannedTraining], store: Path) -> list[PlannedTraining]:
    """Return the training runs, with `missing` updated to the snapshots that are missing now."""
    checkpoints = CheckpointStore(store)
    records = checkpoints.records() if checkpoints.manifest.exists() else ()
    stored = {(record.source_sha256, record.steps_done) for record in records}
    updated = []
    for planned in training_runs:
        recorded = recorded_steps(folder_of(store / RUN_FOLDER, planned.folder_name))
        missing = [step for step in planned.steps if (planned.weights_id, step) not in stored and step not in recorded]
        updated.append(replace(planned, missing=tuple(missing)))
    return updated


def _find_running(process: Process) -> RunningTraining | None:
    part = process.running_part()
    if part is None:
        return None
    last = next(event for event in reversed(process.events) if event["event"] in {"part_started", "epoch"})
    epoch, loss, accuracy = last.get("epoch", 0), last.get("loss"), last.get("accuracy")
    return RunningTraining(*part, epoch, last.get("n_epochs", 0), loss, accuracy)


def _find_failures(training_runs: Sequence[PlannedTraining], results: Path) -> list[Failure]:
    last = {event["training"]: event for event in read_failures(results)}
    incomplete = [planned.training.digest for planned in training_runs if planned.missing]
    return [Failure(last[digest]["part"], last[digest]["failure"]) for digest in incomplete if digest in last]


def _estimate_seconds(macs: float, events: Sequence[Mapping[str, Any]], n_workers: int) -> float | None:
    """Return the time for `macs` multiply-accumulates at the speed of the measured epochs."""
    epochs = [event for event in events if event["event"] == "epoch"]
    measured_macs = sum(event["macs"] for event in epochs)
    if not measured_macs or not n_workers:
        return None
    return float(macs * sum(event["seconds"] for event in epochs) / measured_macs / n_workers)
