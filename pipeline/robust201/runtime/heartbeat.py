"""Heartbeats, which show that processes are working in a results folder and on which parts; for information only.

A worker computes one part at a time: a range of images at some strengths of a key, or a training run. Each
process has a small file, ``<results>/heartbeats/<host>-<pid>-<nonce>.json``, which it rewrites every few seconds and
when it begins a part. It removes the file when it ends. If the process is killed, the file remains and is no longer
rewritten; the process then counts as silent. The wall clocks of two machines are never compared: a file's age is the
difference of two timestamps from the same file server, and the worker itself measures how long a part takes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from robust201.core.files import MAX_STATE_BYTES, is_amount, load_json

if TYPE_CHECKING:  # doctor uses `read_file_server_time` and must work without numpy
    from robust201.core.records import Part

HEARTBEATS_FOLDER = "heartbeats"

BEAT_SECONDS = 5.0
"""Maximum time between two beats; a beat is one write of the file."""

SILENT_SECONDS = 30.0
"""Age of the last beat at which a process counts as silent."""

_MIN_BEAT_SECONDS = 0.5
"""Minimum time between two beats, because parts may take only milliseconds."""

_MAX_LABEL_LENGTH = 200
"""Maximum number of characters of a displayed label."""

_JOIN_SECONDS = 5.0
"""Maximum time to wait at the end for a beat in progress, which an unavailable file server may block."""

_STEPS_JSON_NAMES = {"first_step": "begun", "n_steps": "last"}
"""JSON names of the attributes of `TrainingSteps` that are named differently in JSON."""


@dataclass(frozen=True, slots=True)
class TrainingSteps:
    """Progress of a training run.

    Attributes:
        step: number of completed steps.
        first_step: number of steps that were completed when this worker started or resumed the training run.
        n_steps: total number of steps of the training run.
        per_epoch: number of steps per epoch.
        seconds: worker time since this worker started or resumed the training run.
        loss: mean training loss of the current epoch so far, or of the last epoch; None before the first step.
        accuracy: training accuracy over the same period.
    """

    step: int
    first_step: int
    n_steps: int
    per_epoch: int
    seconds: float
    loss: float | None = None
    accuracy: float | None = None

    @property
    def epoch(self) -> int:
        """Number of the epoch that contains the next step, counted from 1."""
        return min(self.step // self.per_epoch + 1, self.epochs)

    @property
    def epochs(self) -> int:
        """Number of epochs; the last one may be incomplete."""
        return -(-self.n_steps // self.per_epoch)

    @property
    def steps_per_second(self) -> float | None:
        n_new_steps = self.step - self.first_step
        return n_new_steps / self.seconds if n_new_steps > 0 and self.seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the training run ends; None before this worker's first step."""
        rate = self.steps_per_second
        return None if rate is None else (self.n_steps - self.step) / rate

    def to_payload(self) -> dict[str, Any]:
        return {_STEPS_JSON_NAMES.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def parse(cls, payload: Any) -> TrainingSteps:
        """Parse a JSON value; raise ValueError if it is invalid."""
        json_fields: dict[str, Any] = payload if isinstance(payload, dict) else {}
        field_values = {
            field.name: json_fields.get(_STEPS_JSON_NAMES.get(field.name, field.name)) for field in fields(cls)
        }
        valid_values: dict[str, Any] = {name: value for name, value in field_values.items() if is_amount(value)}
        if valid_values.keys() | {"loss", "accuracy"} != field_values.keys():
            raise ValueError("not the progress of a training run")
        steps = cls(**valid_values)
        if not (steps.first_step <= steps.step <= steps.n_steps and steps.per_epoch > 0):
            raise ValueError("not the progress of a training run")
        return steps


class Heartbeat:
    """Context manager that signals that this process (a worker, or a `run --share` process) is working.

    A separate thread writes the file, so that the work never waits for a file server.
    """

    def __init__(self, results: Path, *, share: str | None = None) -> None:
        host = re.sub(r"[^\w.-]", "_", socket.gethostname())[:64]
        self.path = results / HEARTBEATS_FOLDER / f"{host}-{os.getpid()}-{secrets.token_hex(4)}.json"
        self._share = share
        self._part: tuple[Part, float] | None = None
        self._training: TrainingSteps | None = None
        self._is_due = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat_repeatedly, name="heartbeat", daemon=True)

    def begin(self, part: Part) -> None:
        self._part, self._training = (part, time.monotonic()), None
        self._is_due.set()

    def note_steps(self, training: TrainingSteps) -> None:
        """Record the progress of the current training run, to be written with the next beat."""
        self._training = training

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._is_due.set()
        self._thread.join(_JOIN_SECONDS)

    def _beat_repeatedly(self) -> None:
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        while not self._ended.is_set():
            self._is_due.clear()
            with contextlib.suppress(OSError, MemoryError):  # a full disk is reported when results are written
                self.path.parent.mkdir(exist_ok=True)
                temporary.write_text(json.dumps(self._payload()), encoding="utf-8")
                temporary.replace(self.path)
            if not self._ended.wait(_MIN_BEAT_SECONDS):
                self._is_due.wait(BEAT_SECONDS - _MIN_BEAT_SECONDS)
        with contextlib.suppress(OSError):
            try:
                temporary.unlink(missing_ok=True)
                self.path.unlink(missing_ok=True)
            except OSError:
                os.utime(self.path, (0, 0))  # if the file cannot be removed, the process must count as silent

    def _payload(self) -> dict[str, Any]:
        if self._part is None:
            return {"share": self._share}
        part, start_time = self._part
        training = self._training
        return {
            "share": self._share,
            "unit": part.unit.id,
            "label": part.label,
            "strengths": part.strengths,
            "images": [part.start, part.stop],
            "seconds": time.monotonic() - start_time,
            "training": None if training is None else training.to_payload(),
        }


@dataclass(frozen=True, slots=True)
class LastBeat:
    """Content of a heartbeat file.

    Attributes:
        age: seconds since the file was written.
        share: name of the job share (`run --share`) that wrote the file, such as ``3-of-64``; None for a worker.
        unit: id of the part's unit; None if there is no current part.
        strengths: strengths of the part.
        images: positions of the part's images, as start and exclusive end.
        seconds: seconds that the part had taken when the file was written.
        label: readable name of the part; empty if it is not printable.
        training: progress of the training run; None for parts of sweeps.
    """

    age: float
    share: str | None = None
    unit: str | None = None
    strengths: tuple[float, ...] = ()
    images: tuple[int, int] = (0, 0)
    seconds: float = 0.0
    label: str = ""
    training: TrainingSteps | None = None

    @property
    def is_silent(self) -> bool:
        """Whether the next beat is long overdue; a file with a timestamp far in the future also counts as silent."""
        return abs(self.age) >= SILENT_SECONDS


def read_heartbeats(results: Path, now: float) -> tuple[LastBeat, ...]:
    """Read all heartbeats of a results folder, including silent ones; `now` comes from `read_file_server_time`."""
    return tuple(beat for path in _heartbeat_paths(results) if (beat := _read_heartbeat(path, now)) is not None)


def _heartbeat_paths(results: Path) -> list[Path]:
    return sorted((results / HEARTBEATS_FOLDER).glob("*.json"))


def _read_heartbeat(path: Path, now: float) -> LastBeat | None:
    try:
        # The file is opened before `stat`, so that NFS requests both content and time from the server.
        payload = load_json(path, MAX_STATE_BYTES)
        age = now - path.stat().st_mtime
        share, unit = payload.get("share"), payload.get("unit")
        if not all(name is None or isinstance(name, str) for name in (share, unit)):
            return None
        if unit is None:
            return LastBeat(age, share)
        (start, stop), strengths, seconds = payload["images"], payload["strengths"], payload["seconds"]
        if not all(map(is_amount, (start, stop, seconds, *strengths))):
            return None
        label, training = payload.get("label"), payload.get("training")
        return LastBeat(
            age,
            share,
            unit,
            tuple(map(float, strengths)),
            (int(start), int(stop)),
            float(seconds),
            label if isinstance(label, str) and label.isprintable() and len(label) <= _MAX_LABEL_LENGTH else "",
            None if training is None else TrainingSteps.parse(training),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # the process has just ended, or the file is not a heartbeat


def read_file_server_time(folder: Path) -> float:
    """Return the time of a folder's file server, in seconds since 1970, by writing and removing a file there."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock.", suffix=".tmp") as probe:
        probe.write(b"clock")
        probe.flush()
        os.fsync(probe.fileno())
        return Path(probe.name).stat().st_mtime


def read_server_or_local_time(folder: Path) -> float:
    """Return the current time of a folder's file server, or of this machine if the folder is not writable."""
    try:
        return read_file_server_time(folder)
    except OSError:
        return time.time()


def find_active_shares(results: Path) -> tuple[str, ...]:
    """Return the names of the job shares that are working in a results folder, which must be writable."""
    beats = read_heartbeats(results, read_file_server_time(results))
    return tuple(sorted({beat.share for beat in beats if beat.share and not beat.is_silent}))


def report_active_shares(results: Path, say: Callable[[str], None]) -> None:
    """Tell the user how many job shares are working in a results folder in which another run is about to start."""
    n_shares = len(find_active_shares(results))
    if n_shares:
        say(
            f"{n_shares} {'run with --share is' if n_shares == 1 else 'runs with --share are'} active in {results}: "
            "results computed by two workers are stored twice but counted once."
        )


def remove_silent_heartbeats(results: Path) -> None:
    """Remove the heartbeat files of killed processes; a live process that was only disconnected rewrites its file."""
    now = read_file_server_time(results)
    for path in _heartbeat_paths(results):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime >= SILENT_SECONDS:
                path.unlink()
