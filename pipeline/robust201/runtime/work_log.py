"""Logs of a run: one JSON Lines file per worker, ``<results>/logs/<start>-<host>-<pid>-<nonce>.jsonl``.

Each line is a JSON object with ``time`` (UTC, ISO 8601), ``level``, ``worker`` (the file name without extension),
``host``, ``pid``, ``event`` and ``message``. Lines about a unit also have ``unit`` (its id) and ``label``
(architecture/dataset/key, and the weights if networks have several). Other fields depend on the event. The driver
writes a file in the same format, ``…-driver.jsonl``, for events that only it observes: lost workers and failed parts.

Logs are for people and have no effect on the run. A file has a single writer, which opens and closes it for each line,
so that other hosts see the line immediately over NFS. Lines are not synced to disk: they survive the death of a
process, but not always the crash of a machine. Logging never fails a run: a line that cannot be written is lost. (A
full disk stops the run only when shards are written.) A file that reaches `MAX_BYTES` is renamed to ``….1.jsonl``,
replacing an earlier file of this name, so a worker has at most two files. If a folder has more than `MAX_FILES` files,
the oldest are deleted, unless they were modified within the last day.
"""

import contextlib
import json
import logging
import os
import re
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from robust201.core.records import Part, Receipt, Unit, UnitFailure

LOGS_FOLDER = "logs"

MAX_BYTES = 32 << 20
"""Maximum size of a log file; a worker has at most two files."""

MAX_FILES = 4000
"""Maximum number of log files in a results folder; if there are more, old ones are deleted."""

_MIN_DELETION_AGE_SECONDS = 24 * 3600.0
_MAX_TEXT_CHARACTERS = 20_000


def unit_label(unit: Unit) -> str:
    """Return a unit's name in logs and on the command line: ``21/cifar10/pgd`` or ``21/cifar10/pgd/random-s0``."""
    name = f"{unit.architecture}/{unit.dataset}/{unit.key}"
    return f"{name}/{unit.weights}" if unit.weights else name


class WorkLog:
    """Log of one process of a run."""

    def __init__(
        self,
        results: Path,
        role: str = "",
        *,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = results / LOGS_FOLDER
        self._max_bytes = max_bytes
        self._clock = clock
        self._host, self._pid = socket.gethostname(), os.getpid()
        host = re.sub(r"[^\w.-]", "_", self._host)[:64]
        start_time = datetime.fromtimestamp(clock(), UTC).strftime("%Y%m%dT%H%M%SZ")
        name = f"{start_time}-{host}-{self._pid}-{secrets.token_hex(3)}"
        self.worker = f"{name}-{role}" if role else name
        self._n_bytes = 0
        self._ends_within_line = False
        self._unit: Unit | None = None
        self._lock = threading.RLock()

    @property
    def path(self) -> Path:
        """Path of the file, which is created when the first line is written."""
        return self._folder / f"{self.worker}.jsonl"

    def write(
        self, event: str, message: str = "", *, level: str = "info", unit: Unit | None = None, **fields: Any
    ) -> None:
        """Write a line about `unit`, by default the unit set by `about_part`; a line that cannot be written is lost.

        Only the end of a very long message or field is written. The level is ``info``, ``warning`` or ``error``. Other
        fields are JSON values.
        """
        with self._lock:
            subject = unit or self._unit
            now = datetime.fromtimestamp(self._clock(), UTC)
            line = {
                "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "level": level,
                "worker": self.worker,
                "host": self._host,
                "pid": self._pid,
                "event": event,
                "message": message[-_MAX_TEXT_CHARACTERS:],
            }
            if subject is not None:
                line |= {"unit": subject.id, "label": unit_label(subject)}
            line |= {
                name: value[-_MAX_TEXT_CHARACTERS:] if isinstance(value, str) else value
                for name, value in fields.items()
                if value is not None
            }
            with contextlib.suppress(OSError):
                self._append(line)

    def write_outcome(self, outcome: Receipt | UnitFailure) -> None:
        if isinstance(outcome, Receipt):
            seconds = round(outcome.seconds, 3)
            self.write("shard_written", strengths=outcome.strengths, seconds=seconds, shard=outcome.shard)
        else:
            self.write(
                "part_failed",
                outcome.message,
                level="error",
                unit=outcome.part.unit,
                kind=outcome.kind,
                attempt=outcome.attempt,
                strengths=outcome.part.strengths,
                traceback=outcome.traceback,
            )

    @contextlib.contextmanager
    def about_part(self, part: Part) -> Iterator[None]:
        """Write lines about a part's unit by default, and log warnings of libraries, until the context ends."""
        handler = _LibraryLogHandler(self)
        original_showwarning = warnings.showwarning

        def log_and_show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            self.write("library_warning", f"{category.__name__}: {message}", level="warning", source=filename)
            original_showwarning(message, category, filename, lineno, file, line)

        outer_unit, self._unit = self._unit, part.unit
        warnings.showwarning = log_and_show
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)
            if warnings.showwarning is log_and_show:
                warnings.showwarning = original_showwarning
            self._unit = outer_unit

    def _append(self, line: dict[str, Any]) -> None:
        encoded_line = b"\n" * self._ends_within_line + (json.dumps(line, default=str) + "\n").encode()
        if self._n_bytes and self._n_bytes + len(encoded_line) > self._max_bytes:
            with contextlib.suppress(FileNotFoundError):  # logs may be deleted at any time
                self.path.replace(self._folder / f"{self.worker}.1.jsonl")
            self._n_bytes = 0
        self._folder.mkdir(exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            n_written = os.write(descriptor, encoded_line)
        finally:
            os.close(descriptor)
        self._ends_within_line = n_written < len(encoded_line)  # the disk is full
        if not self._n_bytes:
            remove_old_logs(self._folder)
        self._n_bytes += n_written


class _LibraryLogHandler(logging.Handler):
    """Handler that writes the warnings and errors logged by libraries to a `WorkLog`."""

    def __init__(self, log: WorkLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.format(record)
        except Exception:  # noqa: BLE001 - a library's malformed message must not fail the evaluation
            message = str(record.msg)
        self._log.write("library_log", message, level=record.levelname.lower(), source=record.name)


def remove_old_logs(folder: Path, *, max_files: int = MAX_FILES) -> int:
    """Delete the oldest log files beyond `max_files`, except those that may still be in use; return their number."""
    with os.scandir(folder) as entries:
        # Names begin with start times.
        file_names = sorted(entry.name for entry in entries if entry.name.endswith(".jsonl"))
    n_removed = 0
    for name in file_names[: max(0, len(file_names) - max_files)]:
        with contextlib.suppress(OSError):  # another worker may have deleted it
            path = folder / name
            if time.time() - path.stat().st_mtime > _MIN_DELETION_AGE_SECONDS:
                path.unlink()
                n_removed += 1
    return n_removed
