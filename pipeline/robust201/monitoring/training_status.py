"""Status of the trainings in a store, from the progress file of the last run and the heartbeats of its workers."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from robust201.runtime.heartbeat import file_server_time, read_heartbeats
from robust201.runtime.progress import FAILURES_FILE, PROGRESS_FILE, WORKING_STATES, read_progress


@dataclass(frozen=True)
class TrainingStatus:
    """Status of the last run of trainings in a store.

    Attributes:
        state: running, draining, stopped, drained or finished; interrupted if neither a driver nor a worker is alive.
        done: snapshots in the store when the run last wrote its progress.
        total: snapshots of the run.
        seconds_left: None if unknown.
        active_workers: workers with a recent heartbeat.
        failures: distinct messages.
    """

    state: str
    done: int
    total: int
    seconds_left: float | None
    active_workers: int
    failures: tuple[str, ...]

    def to_payload(self) -> dict[str, Any]:
        """JSON value for scripts."""
        return asdict(self)


def training_folder(store: Path) -> Path | None:
    """Folder in which the runs of a store keep their files; None if there was no run."""
    folder = store / "training"
    return folder if (folder / PROGRESS_FILE).is_file() else None


def read_training_status(folder: Path) -> TrainingStatus:
    """Read the status from the folder of a store's trainings."""
    progress = read_progress(folder)
    beats = read_heartbeats(folder, file_server_time(folder))
    active = sum(not beat.is_silent for beat in beats)
    state = str(progress.get("state", "unknown"))
    if state in WORKING_STATES and not active and not (folder / "lease.json").exists():
        state = "interrupted"
    try:
        lines = (folder / FAILURES_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    messages = dict.fromkeys(json.loads(line)["message"] for line in lines)
    return TrainingStatus(
        state=state,
        done=int(progress.get("done_evaluations") or 0),
        total=int(progress.get("total_evaluations") or 0),
        seconds_left=progress.get("seconds_left") if state in WORKING_STATES else None,
        active_workers=active,
        failures=tuple(messages),
    )
