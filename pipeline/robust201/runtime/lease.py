"""One driver at a time in a results folder: a lease that any file system with hard links can hold.

The lease is a file, ``lease.json``, that names its holder: host, boot, process and a nonce, with a counter that the
holder raises every few seconds. A holder that died leaves it behind, and the next driver must tell a dead holder from a
living one:

- same host and boot: by the process, at once. A process id counts only together with the time the process started.
  Where that cannot be seen (``/proc`` may hide other users' processes), as on another host.
- same host, another boot: dead, at once.
- another host (or another container with process ids of its own): dead if its counter stands still for some of its own
  intervals, on the observer's monotonic clock. Wall clocks of two hosts are never compared.

Races are decided by ``os.link``, which either makes a name or fails, on NFS too. The lease is made by linking a whole
file to its name. A dead lease is replaced by whoever links ``.lease.<its nonce>.successor``; a taker that dies in
between is succeeded in the same way, by its own nonce. The holder beats its counter into its own open file: once the
name belongs to another file, its beats reach nobody and it sees at its next beat that it has lost the lease. One
whose beat hangs, on a file server that is away, counts its lease as lost once others may take it.
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
"""Time between two beats of a holder."""

STALE_INTERVALS = 6
"""Intervals without a beat after which a holder on another host counts as dead."""

_JOIN_SECONDS = 10.0
"""How long a lease that is released waits for a beat in progress, which a file server that is away may hold up."""

LEASE_NAME = "lease.json"
_FILE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Holder:
    """What ``lease.json`` says.

    Attributes:
        process_start: see `process_start`; -1 where that is unknown.
        since: when it was taken, ISO 8601 in UTC by the holder's clock; for messages only.
        interval_seconds: time between two beats.
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
        """Content of the file, padded to one length so that a beat overwrites the last one in place."""
        return (json.dumps(asdict(self), indent=1) + "\n").encode().ljust(_FILE_BYTES, b"\n")

    @classmethod
    def read(cls, path: Path) -> "Holder | None":
        """Read a lease, which must be there; None if the content is none (written by hand, or damaged)."""
        try:
            payload = load_json(path, MAX_STATE_BYTES)
            holder = cls(**(payload | {"host_id": HostId(**payload["host_id"])}))
        except (ValueError, KeyError, TypeError):
            return None
        return holder if holder._is_sound() else None

    def _is_sound(self) -> bool:
        """Whether the fields are what `new` writes: a process is looked up by some, a file named by another."""
        texts = (*asdict(self.host_id).values(), self.since, self.nonce)
        numbers = (self.pid, self.process_start, self.heartbeat)
        return (
            all(isinstance(text, str) for text in texts)
            and self.nonce.isalnum()
            and all(isinstance(number, int) and -1 <= number < 1 << 62 for number in numbers)
            and 0 < self.pid < 1 << 31
            and is_amount(self.interval_seconds)
        )

    def beaten(self) -> "Holder":
        return replace(self, heartbeat=self.heartbeat + 1)

    def is_dead_for(self, observer: HostId) -> bool | None:
        """Judge the holder without waiting; None if only its heartbeat can tell."""
        mine, its = (observer.host, observer.machine), (self.host_id.host, self.host_id.machine)
        if mine != its or not (observer.boot_id and self.host_id.boot_id):
            return None
        if observer.boot_id != self.host_id.boot_id:
            return True
        if observer.pid_namespace != self.host_id.pid_namespace:
            return None
        return has_ended(self.pid, self.process_start if self.process_start >= 0 else None)


class Lease:
    """The right to drive the sweep in a results folder, kept alive by a thread.

    Made by `acquire`; a context manager that releases it. `lost` is set when another driver has taken the lease, or
    when it could not be kept alive for so long that others may have.
    """

    def __init__(self, root: Path, holder: Holder, descriptor: int, clock: Callable[[], float]) -> None:
        self.path = root / LEASE_NAME
        self.holder = holder
        self.lost = threading.Event()
        self._descriptor = descriptor
        self._clock = clock
        self._released = threading.Event()
        self._last_beat = clock()
        self._beat_began: float | None = None
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
        """Take the lease on a results folder, which exists, and keep it alive.

        Clock and sleep are monotonic seconds. `on_wait` receives one line that says why it will take a while, before
        a holder on another host is observed.

        Raises:
            LeaseHeldError: another driver holds it, and is alive.
            StorageFullError: no space is left.
        """
        holder = Holder.new(host_id or HostId.of_this_process(), interval_seconds)
        descriptor = _Attempt(root, holder, clock, sleep, on_wait).take()
        return cls(root, holder, descriptor, clock)

    def check(self) -> None:
        """Make sure that the lease has not been lost; a `LeaseHeldError` says that this driver must stop."""
        hangs = self._hangs()
        if hangs:
            self.lost.set()
        if self.lost.is_set():
            raise LeaseHeldError(
                f"Keeping the lease failed for {self.path}: expected it to stay with this run (process "
                f"{self.holder.pid} on {self.holder.host_id.host}), got {self._describe_loss(hangs)}. This run "
                "stops; what it did is kept."
            )

    def _describe_loss(self, hangs: bool) -> str:
        error = self._beat_error
        if hangs:  # to read the file would hang, too
            return "a heartbeat that hangs, so that others may have taken it"
        if error is not None:
            return (
                f"a heartbeat that fails ({type(error).__name__}: {one_line(error)}), so that others may have taken it"
            )
        return _describe(self.path)

    def _hangs(self) -> bool:
        """Whether a beat is held up, by a file server, for so long that the one before it is too old."""
        began = self._beat_began  # in a process that was suspended none has begun, and the next will tell
        return began is not None and self._clock() - began >= self.holder.interval_seconds * (STALE_INTERVALS - 1)

    def release(self) -> None:
        """Stop the heartbeat, and remove the lease if it is still ours and no beat hangs; safe to call twice."""
        if self._released.is_set():
            return
        self._released.set()
        self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            return
        try:
            if self._is_ours():
                self.path.unlink(missing_ok=True)
        except OSError:
            with contextlib.suppress(OSError):
                os.utime(self._descriptor, (0, 0))  # what cannot be removed must not look like a heartbeat
            raise
        finally:
            os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def _is_ours(self) -> bool:
        try:
            found = Holder.read(self.path)
        except FileNotFoundError:
            return False
        return found is not None and found.nonce == self.holder.nonce

    def _keep_alive(self) -> None:
        while not self._released.wait(self.holder.interval_seconds):
            self._beat_began = self._clock()
            is_kept = self._beat()
            self._beat_began = None
            if not is_kept:
                self.lost.set()
                return

    def _beat(self) -> bool:
        patience = self.holder.interval_seconds * STALE_INTERVALS
        try:
            if not self._is_ours():
                return False
            self.holder = self.holder.beaten()
            os.pwrite(self._descriptor, self.holder.to_bytes(), 0)
            os.fsync(self._descriptor)
        except Exception as error:  # noqa: BLE001 - this thread must not end unnoticed, such as when memory runs out
            # A file server may be unavailable for a moment; after `patience`, others may take over the lease.
            self._beat_error = error
            return getattr(error, "errno", None) != errno.ESTALE and self._clock() - self._last_beat < patience
        self._last_beat, self._beat_error = self._clock(), None
        return True


def _describe(path: Path) -> str:
    try:
        holder = Holder.read(path)
    except FileNotFoundError:
        return "no lease"
    if holder is None:
        return "another file"
    return f"process {holder.pid} on {holder.host_id.host} since {holder.since}"


@dataclass(frozen=True)
class _Attempt:
    """One driver's attempt at the lease."""

    root: Path
    holder: Holder
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    on_wait: Callable[[str], None]

    @property
    def path(self) -> Path:
        return self.root / LEASE_NAME

    def take(self) -> int:
        """Take the lease, and give a descriptor of its file, open for beats."""
        own = self.root / f".lease.{self.holder.nonce}.tmp"
        descriptor = self._write(own)
        try:
            while not self._link(own, self.path):
                with contextlib.suppress(FileNotFoundError):
                    if self._replace_dead(own):
                        break
        except BaseException:
            os.close(descriptor)
            raise
        finally:
            own.unlink(missing_ok=True)
        return descriptor

    def _write(self, own: Path) -> int:
        descriptor = os.open(own, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.write(descriptor, self.holder.to_bytes())
            os.fsync(descriptor)
        except OSError as error:
            os.close(descriptor)
            own.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFullError(
                    f"Taking the lease failed for {self.path}: expected free space on the device, got none "
                    f"({error.strerror}). Free some space and run the same command again."
                ) from error
            raise
        return descriptor

    @staticmethod
    def _link(own: Path, name: Path) -> bool:
        try:
            os.link(own, name)
        except OSError as error:
            # NFS may carry out a link and lose the answer, so the names decide, not the error.
            with contextlib.suppress(FileNotFoundError):
                return name.samefile(own)
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise StorageError(
                    f"Taking the lease failed for {name}: expected a file system with hard links, got one without "
                    f"({error.strerror}). Keep the results on a POSIX file system."
                ) from error
            if error.errno != errno.EEXIST:
                raise
            return False
        return True

    def _replace_dead(self, own: Path) -> bool:
        """Replace the lease of a dead holder by ours; False if it changed hands meanwhile: look again."""
        dead = nonce = self._require_dead(self.path)
        claims = [self._claim(nonce)]
        while not self._link(own, claims[-1]):
            nonce = self._require_dead(claims[-1])
            claims.append(self._claim(nonce))
        try:
            # Whoever claimed before us may have replaced the lease and removed its claim in the meantime.
            if _nonce_of(Holder.read(self.path)) != dead:
                return False
            own.replace(self.path)
            for claim in claims[:-1]:
                claim.unlink(missing_ok=True)
        finally:
            claims[-1].unlink(missing_ok=True)
        return True

    def _claim(self, nonce: str) -> Path:
        return self.root / f".lease.{nonce}.successor"

    def _require_dead(self, path: Path) -> str:
        """Give the nonce of the holder that a file names, if it is dead."""
        holder = Holder.read(path)
        dead = None if holder is None else holder.is_dead_for(self.holder.host_id)
        if dead is None:
            dead = self._stands_still(path, holder)
        if not dead:
            raise LeaseHeldError(
                f"Taking the lease failed for {self.path}: expected no other run in this results folder, got "
                f"{_describe(path)}, which is alive. Wait until it ends, or stop it there."
            )
        return _nonce_of(holder)

    def _stands_still(self, path: Path, holder: Holder | None) -> bool:
        """Observe a file for as long as a living holder would need for some beats."""
        interval = INTERVAL_SECONDS if holder is None else holder.interval_seconds
        seen = self._read_occupied(path)
        self.on_wait(
            f"{path.name} is held by {_describe(path)}; watching its heartbeat for {interval * STALE_INTERVALS:.0f} s"
        )
        end = self.clock() + interval * STALE_INTERVALS
        while self.clock() < end:
            self.sleep(interval / 2)
            if self._read_occupied(path) != seen:
                return False
        return True

    @staticmethod
    def _read_occupied(path: Path) -> bytes:
        """Read what has a lease's name; StorageError if it is not even a small file."""
        try:
            return read_file(path, MAX_STATE_BYTES)
        except (IsADirectoryError, IrregularFileError) as error:
            raise StorageError(
                f"Taking the lease failed for {path}: expected a lease or no file, got {error.strerror}. Move it away, "
                "and run the same command again."
            ) from error


def _nonce_of(holder: Holder | None) -> str:
    """Nonce of a lease, or what stands for it where the content is none."""
    return "unreadable" if holder is None else holder.nonce
