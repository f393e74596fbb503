"""Reads the status of the training runs in a store from the progress file, the lease and the workers' heartbeats."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from robust201.core.host import HostId
from robust201.monitoring.activity import find_driver
from robust201.monitoring.status import read_failures
from robust201.runtime.heartbeat import LastBeat, read_heartbeats, read_server_or_local_time
from robust201.runtime.progress import PROGRESS_FILE, WORKING_STATES, read_progress
from robust201.sweep.training_config import Training, TrainingConfig
from robust201.weights.store import CheckpointStore


@dataclass(frozen=True)
class TrainingStatus:
    """Status of the last training `run` in a store; a snapshot is the weights after some number of steps.

    Attributes:
        state: ``running``, ``draining``, ``stopped``, ``drained`` or ``finished``; ``interrupted`` if the run did not
            end but neither its driver nor a worker is alive; ``not started`` if there was no run.
        done: number of snapshots in the store when the run last wrote its progress.
        total: number of snapshots of the run.
        seconds_left: estimated seconds until the run ends; None if unknown.
        active_workers: number of workers with a recent heartbeat.
        failures: distinct error messages.
        driver: host, process and start time of the active run, or None.
        trainings_done: number of training runs in the YAML whose final weights are in the store; None if no YAML is
            given.
        trainings: number of training runs in the YAML; None if no YAML is given.
        in_progress: heartbeats of the workers that are training a network.
    """

    state: str
    done: int
    total: int
    seconds_left: float | None
    active_workers: int
    failures: tuple[str, ...]
    driver: str | None
    trainings_done: int | None = None
    trainings: int | None = None
    in_progress: tuple[LastBeat, ...] = ()

    @property
    def running(self) -> bool:
        return self.driver is not None or self.active_workers > 0

    @property
    def complete(self) -> bool:
        """Whether all snapshots of the last run exist and, if a YAML is given, the final weights of all its runs."""
        return 0 < self.total == self.done and self.trainings_done == self.trainings

    def to_payload(self) -> dict[str, Any]:
        in_progress = [
            {"label": beat.label, "age": beat.age}
            | beat.training.to_payload()
            | {"steps_per_second": beat.training.steps_per_second, "seconds_left": beat.training.seconds_left}
            for beat in self.in_progress
            if beat.training is not None
        ]
        return asdict(self) | {"running": self.running, "complete": self.complete, "in_progress": in_progress}


def find_training_folder(store: Path) -> Path | None:
    """Return the folder with the progress, logs and heartbeats of a store's runs; None if there was no run."""
    folder = store / "training"
    return folder if (folder / PROGRESS_FILE).is_file() else None


def read_training_status(store: Path, config: TrainingConfig | None = None) -> TrainingStatus:
    """Read the status of the last run in a store, and of the training runs in a YAML if `config` is given."""
    folder = store / "training"
    progress, now = read_progress(folder), read_server_or_local_time(folder)
    state = str(progress.get("state", "not started"))
    active_beats = [beat for beat in read_heartbeats(folder, now) if not beat.is_silent]
    driver = find_driver(folder, state, HostId.of_this_process(), now).driver
    if state in WORKING_STATES and not active_beats and driver is None:
        state = "interrupted"
    messages = dict.fromkeys(failure["message"] for failure in read_failures(folder))
    trainings = None if config is None else set(config.trainings())
    return TrainingStatus(
        state=state,
        done=int(progress.get("done_evaluations") or 0),
        total=int(progress.get("total_evaluations") or 0),
        seconds_left=progress.get("seconds_left") if state in WORKING_STATES else None,
        active_workers=len(active_beats),
        in_progress=tuple(beat for beat in active_beats if beat.training is not None),
        failures=tuple(messages),
        driver=driver,
        trainings_done=None if trainings is None else len(trainings & _finished_trainings(store)),
        trainings=None if trainings is None else len(trainings),
    )


def _finished_trainings(store: Path) -> set[Training]:
    checkpoints = CheckpointStore(store)
    if not checkpoints.manifest.exists():
        return set()
    return {
        Training(record.index, record.dataset, record.recipe, record.seed)
        for record in checkpoints.records()
        if record.is_final
    }
