"""Heartbeats: who is at work in a results folder, and on which part; for people, and deciding nothing.

A process at work keeps a small file, ``<results>/heartbeats/<host>-<pid>-<nonce>.json``, and writes it anew every few
seconds and when it begins a part. It removes the file when it ends; one that was killed leaves it, and falls silent.
A file's age is the difference of two times of one file server, and how long a part takes is counted by the worker:
the wall clocks of two machines are never compared.
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

if TYPE_CHECKING:  # doctor, which asks for the file server's time, also works where numpy is missing
    from robust201.core.records import Part

HEARTBEATS_FOLDER = "heartbeats"

BEAT_SECONDS = 5.0
"""Longest time between two beats."""

SILENT_SECONDS = 30.0
"""Age of the last beat from which a process counts as silent."""

_PAUSE_SECONDS = 0.5
"""Shortest time between two beats: parts may take milliseconds."""

_MAX_LABEL = 200
"""Maximum number of characters of a label that is shown."""

_JOIN_SECONDS = 5.0
"""How long an end waits for a beat in progress, which a file server that is away may hold up."""


@dataclass(frozen=True, slots=True)
class TrainingSteps:
    """Progress of one training.

    Attributes:
        step: steps made.
        begun: steps made when this worker began or resumed it.
        last: steps after which it ends.
        per_epoch: steps per epoch.
        seconds: worker time since it was begun.
        loss: mean training loss of the epoch so far, or of the last epoch; None before the first step.
        accuracy: fraction of its training images that were classified correctly, likewise.
    """

    step: int
    begun: int
    last: int
    per_epoch: int
    seconds: float
    loss: float | None = None
    accuracy: float | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the next step, from 1."""
        return min(self.step // self.per_epoch + 1, self.epochs)

    @property
    def epochs(self) -> int:
        """Number of epochs, the last of which may be incomplete."""
        return -(-self.last // self.per_epoch)

    @property
    def steps_per_second(self) -> float | None:
        return (self.step - self.begun) / self.seconds if self.step > self.begun and self.seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds to the end of this training; None before its first step."""
        rate = self.steps_per_second
        return None if rate is None else (self.last - self.step) / rate

    @classmethod
    def parse(cls, payload: Any) -> TrainingSteps:
        """Parse a JSON value."""
        values: dict[str, Any] = payload if isinstance(payload, dict) else {}
        numbers = {field.name: values.get(field.name) for field in fields(cls)}
        amounts: dict[str, Any] = {name: value for name, value in numbers.items() if is_amount(value)}
        if amounts.keys() | {"loss", "accuracy"} != numbers.keys():
            raise ValueError("not a progress of a training")
        training = cls(**amounts)
        if not (training.begun <= training.step <= training.last and training.per_epoch > 0):
            raise ValueError("not a progress of a training")
        return training


class Heartbeat:
    """Shows within a block that this process, a worker or a share, is at work.

    A thread writes the file, so the work never waits for a file server.
    """

    def __init__(self, results: Path, *, share: str | None = None) -> None:
        host = re.sub(r"[^\w.-]", "_", socket.gethostname())[:64]
        self.path = results / HEARTBEATS_FOLDER / f"{host}-{os.getpid()}-{secrets.token_hex(4)}.json"
        self._share = share
        self._part: tuple[Part, float] | None = None
        self._training: TrainingSteps | None = None
        self._is_due = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def begin(self, part: Part) -> None:
        self._part, self._training = (part, time.monotonic()), None
        self._is_due.set()

    def note_steps(self, training: TrainingSteps) -> None:
        """Note the progress of the training that is the part; the next beat has it."""
        self._training = training

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._is_due.set()
        self._thread.join(_JOIN_SECONDS)

    def _beat(self) -> None:
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        while not self._ended.is_set():
            self._is_due.clear()
            with contextlib.suppress(OSError, MemoryError):  # a lack of space shows when results are written
                self.path.parent.mkdir(exist_ok=True)
                temporary.write_text(json.dumps(self._payload()), encoding="utf-8")
                temporary.replace(self.path)
            if not self._ended.wait(_PAUSE_SECONDS):
                self._is_due.wait(BEAT_SECONDS - _PAUSE_SECONDS)
        with contextlib.suppress(OSError):
            try:
                temporary.unlink(missing_ok=True)
                self.path.unlink(missing_ok=True)
            except OSError:
                os.utime(self.path, (0, 0))  # what cannot be removed must not look like a sign of life

    def _payload(self) -> dict[str, Any]:
        if self._part is None:
            return {"share": self._share}
        part, begun = self._part
        training = self._training
        return {
            "share": self._share,
            "unit": part.unit.id,
            "label": part.label,
            "strengths": part.strengths,
            "images": [part.start, part.stop],
            "seconds": time.monotonic() - begun,
            "training": None if training is None else asdict(training),
        }


@dataclass(frozen=True, slots=True)
class LastBeat:
    """What a heartbeat file says.

    Attributes:
        age: seconds since it was written.
        share: name of the share that wrote it; None for a worker.
        strengths: of the part.
        images: first position of the part, and one past the last.
        seconds: for how long the part was computed when the file was written.
        label: readable name of the part, if it can be printed.
        training: progress of the training that is the part; None for parts of sweeps.
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
        """Whether the next beat is long overdue; times in the future are no sign of life either."""
        return abs(self.age) >= SILENT_SECONDS


def read_heartbeats(results: Path, now: float) -> tuple[LastBeat, ...]:
    """Read all heartbeats of a results folder, silent ones too, given its `file_server_time`."""
    return tuple(beat for path in _files(results) if (beat := _read(path, now)) is not None)


def _files(results: Path) -> list[Path]:
    return sorted((results / HEARTBEATS_FOLDER).glob("*.json"))


def _read(path: Path, now: float) -> LastBeat | None:
    try:
        # Opened before its time is asked for: NFS then asks the server for both.
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
            label if isinstance(label, str) and label.isprintable() and len(label) <= _MAX_LABEL else "",
            None if training is None else TrainingSteps.parse(training),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # its process has just ended, or the file is none of ours


def file_server_time(folder: Path) -> float:
    """Read the time of the file server behind a folder, in seconds since 1970, by a file written there and removed."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock.", suffix=".tmp") as probe:
        probe.write(b"what time is it?")
        probe.flush()
        os.fsync(probe.fileno())
        return Path(probe.name).stat().st_mtime


def read_file_time(folder: Path) -> float:
    """Read the file server's time, or this machine's if the folder cannot be written to."""
    try:
        return file_server_time(folder)
    except OSError:
        return time.time()


def working_shares(results: Path) -> tuple[str, ...]:
    """Names of the shares at work in a results folder that this process can write to."""
    beats = read_heartbeats(results, file_server_time(results))
    return tuple(sorted({beat.share for beat in beats if beat.share and not beat.is_silent}))


def warn_of_shares(results: Path, say: Callable[[str], None]) -> None:
    """Say so if shares are at work in a results folder that something else is about to work on."""
    count = len(working_shares(results))
    if count:
        say(
            f"{count} {'run' if count == 1 else 'runs'} with --share at work in {results}: what two workers both "
            "compute is stored twice and counted once."
        )


def remove_silent_heartbeats(results: Path) -> None:
    """Remove what killed processes left; one that lives, and was only cut off for a while, writes its file again."""
    now = file_server_time(results)
    for path in _files(results):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime >= SILENT_SECONDS:
                path.unlink()
