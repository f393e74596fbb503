"""Lease that limits a results folder to one driver at a time; it requires a file system with hard links.

The lease is a file, ``lease.json``, which identifies its holder by host, boot, process and a nonce. It contains a
counter that the holder increments every few seconds. A holder that dies leaves the file behind. The next driver
determines whether the holder is alive:

- same host and boot: immediately, by its process. A process id is valid only together with the process's start time. If
  the start time is hidden (``/proc`` may hide other users' processes), the rule for another host applies.
- same host, another boot: the holder is dead.
- another host, or another container with separate process ids: the holder is dead if its counter does not change for
  `STALE_INTERVALS` of its intervals, measured with the observer's monotonic clock. Wall clocks of two hosts are never
  compared.

Races are decided by ``os.link``, which is atomic even on NFS. A lease is created by writing a file and linking it to
``lease.json``. A dead lease is replaced by the driver that succeeds in linking ``.lease.<its nonce>.successor``; if
that driver dies before finishing, another driver replaces it in the same way, using the dead driver's nonce. The code
calls these links claims. The holder writes its counter to its open file: after another driver has replaced the file,
these writes have no effect, and the holder notices at its next beat that it has lost the lease. If a beat hangs because
the file server is unavailable, the holder considers the lease lost as soon as other drivers may take it.
"""

import contextlib
import errno
import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from robust201.core.errors import LeaseHeldError, StorageError, StorageFullError, one_line
from robust201.core.files import MAX_STATE_BYTES, IrregularFileError, is_amount, load_json, read_file
from robust201.core.host import HostId, has_ended, process_start

INTERVAL_SECONDS = 5.0
"""Time between two beats; at a beat, the holder increments its counter."""

STALE_INTERVALS = 6
"""Intervals without a beat after which a holder on another host counts as dead."""

_JOIN_SECONDS = 10.0
"""Maximum time that a release waits for a beat in progress, which an unavailable file server may block."""

LEASE_NAME = "lease.json"
_FILE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Holder:
    """Content of ``lease.json``.

    Attributes:
        process_start: start time of the process (see `process_start`); -1 if unknown.
        nonce: random string that identifies the lease.
        since: time at which the holder took the lease, by its own clock (ISO 8601, UTC); for messages only.
        interval_seconds: time between two beats.
        heartbeat: number of beats so far.
    """

    host_id: HostId
    pid: int
    process_start: int
    nonce: str
    since: str
    interval_seconds: float
    heartbeat: int

    @classmethod
    def new(cls, host_id: HostId, interval_seconds: float) -> "Holder":
        pid = os.getpid()
        start = process_start(pid)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(host_id, pid, -1 if start is None else start, secrets.token_hex(16), since, interval_seconds, 0)

    def to_bytes(self) -> bytes:
        """Serialise to the content of the file, padded to a fixed length so that beats overwrite it in place."""
        return (json.dumps(asdict(self), indent=1) + "\n").encode().ljust(_FILE_BYTES, b"\n")

    @classmethod
    def read(cls, path: Path) -> "Holder | None":
        """Read an existing lease; return None if its content is not valid, because it was edited by hand or damaged."""
        try:
            payload = load_json(path, MAX_STATE_BYTES)
            holder = cls(**(payload | {"host_id": HostId(**payload["host_id"])}))
        except (ValueError, KeyError, TypeError):
            return None
        return holder if holder._is_valid() else None

    def _is_valid(self) -> bool:
        """Return whether the fields can safely be used to look up a process and to name a file."""
        text_fields = (*asdict(self.host_id).values(), self.since, self.nonce)
        number_fields = (self.pid, self.process_start, self.heartbeat)
        return (
            all(isinstance(text, str) for text in text_fields)
            and self.nonce.isalnum()
            and all(isinstance(number, int) and -1 <= number < 1 << 62 for number in number_fields)
            and 0 < self.pid < 1 << 31
            and is_amount(self.interval_seconds)
        )

    def next_beat(self) -> "Holder":
        return replace(self, heartbeat=self.heartbeat + 1)

    def is_dead_for(self, observer: HostId) -> bool | None:
        """Return whether the holder is dead, without waiting; None if only its heartbeat can tell."""
        observer_host, holder_host = (observer.host, observer.machine), (self.host_id.host, self.host_id.machine)
        if observer_host != holder_host or not (observer.boot_id and self.host_id.boot_id):
            return None
        if observer.boot_id != self.host_id.boot_id:
            return True
        if observer.pid_namespace != self.host_id.pid_namespace:
            return None
        return has_ended(self.pid, self.process_start if self.process_start >= 0 else None)


class Lease:
    """Exclusive right to be the driver of a results folder; a thread writes its heartbeat.

    `acquire` creates a lease. Used as a context manager, it is released at the end. `lost` is set when another driver
    has taken the lease, or may have taken it because beats have failed for too long.
    """

    def __init__(self, root: Path, holder: Holder, descriptor: int, clock: Callable[[], float]) -> None:
        self.path = root / LEASE_NAME
        self.holder = holder
        self.lost = threading.Event()
        self._descriptor = descriptor
        self._clock = clock
        self._released = threading.Event()
        self._last_beat = clock()
        self._beat_start: float | None = None
        self._beat_error: Exception | None = None
        self._thread = threading.Thread(target=self._keep_alive, name="lease heartbeat", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(
        cls,
        root: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        host_id: HostId | None = None,
        interval_seconds: float = INTERVAL_SECONDS,
        on_wait: Callable[[str], None] = lambda _message: None,
    ) -> "Lease":
        """Take the lease on an existing results folder, and start its heartbeat.

        `clock` and `sleep` use monotonic seconds. If a holder on another host has to be observed, which takes half a
        minute, `on_wait` first receives a line with the reason.

        Raises:
            LeaseHeldError: another live driver holds the lease.
            StorageFullError: the disk is full.
        """
        holder = Holder.new(host_id or HostId.of_this_process(), interval_seconds)
        descriptor = _Attempt(root, holder, clock, sleep, on_wait).take()
        return cls(root, holder, descriptor, clock)

    def check(self) -> None:
        """Raise LeaseHeldError if the lease was lost; this driver must then stop."""
        is_blocked = self._is_beat_blocked()
        if is_blocked:
            self.lost.set()
        if self.lost.is_set():
            raise LeaseHeldError(
                f"Keeping the lease failed for {self.path}: this run (process {self.holder.pid} on "
                f"{self.holder.host_id.host}) has lost the lease, because {self._describe_loss(is_blocked)}. This run "
                "stops; its results are kept."
            )

    def _describe_loss(self, is_blocked: bool) -> str:
        error = self._beat_error
        if is_blocked:  # reading the file would hang as well
            return "its heartbeat hangs and another run may have taken the lease"
        if error is not None:
            return (
                f"its heartbeat fails ({type(error).__name__}: {one_line(error)}) and another run may have taken the "
                "lease"
            )
        return _describe_lease(self.path)

    def _is_beat_blocked(self) -> bool:
        """Return whether a file server has blocked a beat for so long that other drivers may take the lease."""
        # None between two beats: if the process was suspended then, the next beat detects a loss.
        beat_start = self._beat_start
        max_seconds = self.holder.interval_seconds * (STALE_INTERVALS - 1)
        return beat_start is not None and self._clock() - beat_start >= max_seconds

    def release(self) -> None:
        """Stop the heartbeat, and remove the lease unless it was lost or a beat hangs; may be called repeatedly."""
        if self._released.is_set():
            return
        self._released.set()
        self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            return
        try:
            if self._is_still_held():
                self.path.unlink(missing_ok=True)
        except OSError:
            with contextlib.suppress(OSError):
                os.utime(self._descriptor, (0, 0))  # if the lease cannot be removed, its holder must not look alive
            raise
        finally:
            os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def _is_still_held(self) -> bool:
        try:
            holder = Holder.read(self.path)
        except FileNotFoundError:
            return False
        return holder is not None and holder.nonce == self.holder.nonce

    def _keep_alive(self) -> None:
        while not self._released.wait(self.holder.interval_seconds):
            self._beat_start = self._clock()
            is_held = self._beat()
            self._beat_start = None
            if not is_held:
                self.lost.set()
                return

    def _beat(self) -> bool:
        """Write the next counter; return False if the lease is lost."""
        max_age = self.holder.interval_seconds * STALE_INTERVALS
        try:
            if not self._is_still_held():
                return False
            self.holder = self.holder.next_beat()
            os.pwrite(self._descriptor, self.holder.to_bytes(), 0)
            os.fsync(self._descriptor)
        except Exception as error:  # noqa: BLE001 - this thread must not end unnoticed, for example without memory
            # A file server may be unavailable for a moment; after `max_age`, other drivers may take over the lease.
            self._beat_error = error
            return getattr(error, "errno", None) != errno.ESTALE and self._clock() - self._last_beat < max_age
        self._last_beat, self._beat_error = self._clock(), None
        return True


def _describe_lease(path: Path) -> str:
    """Return a clause about the holder of a lease."""
    try:
        holder = Holder.read(path)
    except FileNotFoundError:
        return f"{path.name} does not exist"
    if holder is None:
        return f"{path.name} is held by an unknown process, because its content is invalid"
    return f"{path.name} is held by process {holder.pid} on {holder.host_id.host} since {holder.since}"


@dataclass(frozen=True)
class _Attempt:
    """A driver's attempt to take the lease."""

    root: Path
    holder: Holder
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    on_wait: Callable[[str], None]

    @property
    def path(self) -> Path:
        return self.root / LEASE_NAME

    def take(self) -> int:
        """Take the lease, and return a descriptor of its file, to which beats are written."""
        new_file = self.root / f".lease.{self.holder.nonce}.tmp"
        descriptor = self._write_file(new_file)
        try:
            while not self._link(new_file, self.path):
                with contextlib.suppress(FileNotFoundError):
                    if self._replace_dead_holder(new_file):
                        break
        except BaseException:
            os.close(descriptor)
            raise
        finally:
            new_file.unlink(missing_ok=True)
        return descriptor

    def _write_file(self, new_file: Path) -> int:
        descriptor = os.open(new_file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.write(descriptor, self.holder.to_bytes())
            os.fsync(descriptor)
        except OSError as error:
            os.close(descriptor)
            new_file.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFullError(
                    f"Taking the lease failed for {self.path}: the disk or its quota is full "
                    f"({error.strerror}). Free some space and rerun the same command."
                ) from error
            raise
        return descriptor

    @staticmethod
    def _link(new_file: Path, name: Path) -> bool:
        """Link a file to a name; return False if another file has this name."""
        try:
            os.link(new_file, name)
        except OSError as error:
            # With NFS, a link may be created although its reply is lost, so check the names rather than the error.
            with contextlib.suppress(FileNotFoundError):
                return name.samefile(new_file)
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise StorageError(
                    f"Taking the lease failed for {name}: the file system does not support hard links "
                    f"({error.strerror}). Keep the results on a POSIX file system."
                ) from error
            if error.errno != errno.EEXIST:
                raise
            return False
        return True

    def _replace_dead_holder(self, new_file: Path) -> bool:
        """Replace the lease of a dead holder with a new lease; return False if it has changed and a retry is needed."""
        dead_nonce = nonce = self._require_dead(self.path)
        claims = [self._claim_path(nonce)]
        while not self._link(new_file, claims[-1]):
            nonce = self._require_dead(claims[-1])
            claims.append(self._claim_path(nonce))
        try:
            # A driver with an earlier claim may have replaced the lease and removed its claim in the meantime.
            if _nonce_of(Holder.read(self.path)) != dead_nonce:
                return False
            new_file.replace(self.path)
            for claim in claims[:-1]:
                claim.unlink(missing_ok=True)
        finally:
            claims[-1].unlink(missing_ok=True)
        return True

    def _claim_path(self, nonce: str) -> Path:
        return self.root / f".lease.{nonce}.successor"

    def _require_dead(self, path: Path) -> str:
        """Return the nonce of the holder in a file; raise LeaseHeldError unless the holder is dead."""
        holder = Holder.read(path)
        is_dead = None if holder is None else holder.is_dead_for(self.holder.host_id)
        if is_dead is None:
            is_dead = self._is_unchanged(path, holder)
        if not is_dead:
            raise LeaseHeldError(
                f"Taking the lease failed for {self.path}: another run is active in this results folder: "
                f"{_describe_lease(path)}, which is alive. Wait until it ends, or stop it there."
            )
        return _nonce_of(holder)

    def _is_unchanged(self, path: Path, holder: Holder | None) -> bool:
        """Return whether a file remains unchanged for several intervals, in which a live holder would change it."""
        interval = INTERVAL_SECONDS if holder is None else holder.interval_seconds
        first_content = self._read_lease_file(path)
        self.on_wait(
            f"Another run may be active: {_describe_lease(path)}; watching its heartbeat for "
            f"{interval * STALE_INTERVALS:.0f} s"
        )
        deadline = self.clock() + interval * STALE_INTERVALS
        while self.clock() < deadline:
            self.sleep(interval / 2)
            if self._read_lease_file(path) != first_content:
                return False
        return True

    @staticmethod
    def _read_lease_file(path: Path) -> bytes:
        """Read the file at a lease's path; raise StorageError if it is not a small regular file."""
        try:
            return read_file(path, MAX_STATE_BYTES)
        except (IsADirectoryError, IrregularFileError) as error:
            raise StorageError(
                f"Taking the lease failed for {path}: expected a lease or no file, got {error.strerror}. Move it "
                "elsewhere, and rerun the same command."
            ) from error


def _nonce_of(holder: Holder | None) -> str:
    """Return the nonce of a lease, or a placeholder if its content is invalid."""
    return "unreadable" if holder is None else holder.nonce
