"""How far the trainings of a store are, by what their last run wrote and who is at work."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from robust201.runtime.heartbeat import file_server_time, read_heartbeats
from robust201.runtime.progress import FAILURES_FILE, PROGRESS_FILE, WORKING_STATES, read_progress


@dataclass(frozen=True)
class TrainingStatus:
    """What the last run of trainings in a store says of itself.

    Attributes:
        state: running, draining, stopped, drained or finished; interrupted where nobody who was at work is left.
        done: snapshots that the store had when it last wrote.
        total: snapshots that it was asked for.
        seconds_left: None where it cannot be told.
        active_workers: those with a recent sign of life.
        failures: messages, each once.
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
    """Where runs of trainings in a store keep their files; None where there was none."""
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
        state,
        int(progress.get("done_evaluations") or 0),
        int(progress.get("total_evaluations") or 0),
        progress.get("seconds_left") if state in WORKING_STATES else None,
        active,
        tuple(messages),
    )
