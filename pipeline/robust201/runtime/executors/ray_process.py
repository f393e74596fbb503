"""The executor on Ray, in a separate process.

Ray ends the process that is connected to it when its raylet or its head dies, or leaves it waiting where no signal gets
through. So the driver never connects: a child process does, answers the driver's calls over a socket, and is the first
process of a session that everything of a Ray on this machine belongs to. Whichever of the two finds the other gone ends
that whole session: a Ray that was killed in part leaves agents that look for its head for minutes.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil

from robust201.core.errors import RayLostError, RobustError
from robust201.core.files import open_file
from robust201.core.memory import collect_rarely
from robust201.core.records import Bundle, Receipt, UnitFailure
from robust201.runtime.executors.base import BundleDone, BundleLost, Event, Executor, StartWorker, WorkSettings
from robust201.runtime.executors.ray_environment import check_import_path, driver_environment
from robust201.runtime.executors.ray_folder import make_ray_folder, remove_unused_folders
from robust201.runtime.metrics import Metrics
from robust201.runtime.work_log import WorkLog

CHILD_MODULE = "robust201.runtime.executors.ray_process"
"""The module whose `run_child` the child runs."""

_ANSWER_SECONDS = 180.0
"""How long an answer may take: a start of Ray most of all, which gives up by itself before, as its calls do without a
head (after 30 s here, 60 s elsewhere), unless they hang."""

_GRACE_SECONDS = 0.5
"""How late an answer may be before the driver turns to other work."""

_CLOSE_SECONDS = 30.0
_END_SECONDS = 10.0

_OUTPUT_NAME = "driver.log"
_OUTPUT_BYTES = 4000

# The child imports the same modules as this process, from the same places.
_CHILD = (
    "import sys; sys.path[:] = {path!r}; sys.argv[:] = {argv!r}; __file__ = sys.argv[0]; import {module} as child; \
child.run_child({descriptor}, {folder!r})"
)


@dataclass(frozen=True)
class _Answer:
    """What the child says after it started, and after each poll."""

    events: list[Event]
    free_slots: int
    gpus_per_worker: float
    n_workers: int


class _RemoteMetrics(Metrics):
    """Sends values to the Ray of the child."""

    def __init__(self, executor: "RayProcess") -> None:
        self._executor = executor

    def record(self, name: str, value: float = 1.0, **tags: str) -> None:
        with suppress(OSError):  # the next poll finds that the child is gone
            self._executor.send("record", name, value, tags)


class RayProcess:
    """Computes bundles on Ray actors, as `runtime.executors.ray.RayExecutor` does in the process behind this.

    A Ray on this machine that dies before anything was computed is started again, once.

    Raises:
        ConfigError: the Ray cluster cannot be reached, or offers no worker the resources it needs.
        RayLostError: Ray ended while it started, twice.
    """

    def __init__(self, config: WorkSettings, start_worker: StartWorker) -> None:
        check_import_path(Path.cwd())
        self.metrics: Metrics = _RemoteMetrics(self)
        self._config = config
        self._start_worker = start_worker
        self._is_own = not config.execution.ray_address
        self._in_flight: list[Bundle] = []
        self._may_restart = self._is_own
        self._draining = False
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None
        self._sending = threading.Lock()
        remove_unused_folders()
        try:
            try:
                self._start()
            except RayLostError as error:
                self._restart(error)
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self._folder, self._lock = make_ray_folder()
        self._connection, theirs = Pipe()
        code = _CHILD.format(
            path=sys.path, argv=sys.argv, module=CHILD_MODULE, descriptor=theirs.fileno(), folder=str(self._folder)
        )
        with (self._folder / _OUTPUT_NAME).open("wb") as log, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=driver_environment(os.environ, self._config.execution),
                stdin=subprocess.DEVNULL,
                stdout=log,  # Ray's own messages are no part of the command's
                stderr=log,
                pass_fds=[theirs.fileno(), self._lock],  # the child may outlive this process for a moment
                start_new_session=True,
            )
        self._asked: float | None = time.monotonic()
        self._free = 0
        self._call("start", self._config, self._start_worker)
        while (answer := self._receive(_GRACE_SECONDS)) is None:
            pass  # a signal's handler runs meanwhile
        self.gpus_per_worker, self.n_workers = answer.gpus_per_worker, answer.n_workers

    def _restart(self, error: RayLostError) -> None:
        """Start Ray again, unless that was done before or something was computed meanwhile: then raise the error."""
        log = WorkLog(self._config.results, "driver")
        log.write("ray_lost", str(error), level="warning", output=self._read_output())
        if not self._may_restart or self._draining:
            raise error
        self._may_restart = False
        self._end()
        self._start()
        for bundle in self._in_flight:
            self._free -= 1
            self._call("submit", bundle)

    def _read_output(self) -> str:
        """Read the end of what Ray printed in the child, the only record of why it died."""
        try:
            if self._folder is None:
                return ""
            with open_file(self._folder / _OUTPUT_NAME, None) as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - _OUTPUT_BYTES))
                return stream.read(_OUTPUT_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def send(self, *message: object) -> None:
        """Send a message to the child; several threads may."""
        with self._sending:
            if self._connection is None:
                raise BrokenPipeError("closed")
            self._connection.send(message)

    def _call(self, *message: object) -> None:
        with suppress(OSError):  # reported where an answer is awaited
            self.send(*message)

    def _receive(self, seconds: float) -> _Answer | None:
        if self._connection is None:
            raise self._lost("none")
        try:
            if not self._connection.poll(seconds):
                if self._asked is not None and time.monotonic() - self._asked > _ANSWER_SECONDS:
                    raise self._lost(f"no answer within {_ANSWER_SECONDS:g} s")
                return None
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise self._lost("a process that Ray or the system ended") from None
        self._asked = None
        if isinstance(answer, RayLostError):
            raise self._lost(str(answer))
        if isinstance(answer, Exception):
            raise answer
        self._free = answer.free_slots
        return answer  # type: ignore[no-any-return]

    def _lost(self, got: str) -> RayLostError:
        hint = ", or compute in this process with --executor inline" if self._is_own else ""
        return RayLostError(
            f"Running workers failed for Ray at {self._config.execution.ray_address or 'this machine'}: expected it to "
            f"start and to go on, got {got}. Finished work is kept; run the same command again to go on{hint}."
        )

    def free_slots(self) -> int:
        """How many more bundles the executor behind this would take, as far as it has said so."""
        return 0 if self._draining else self._free

    def submit(self, bundle: Bundle) -> None:
        self._in_flight.append(bundle)
        self._free -= 1
        self._call("submit", bundle)

    def poll(self, timeout: float) -> list[Event]:
        """Wait for outcomes, and take all that are there."""
        try:
            if self._asked is None:
                self._asked = time.monotonic()
                self._call("poll", timeout)
            answer = self._receive(timeout + _GRACE_SECONDS)
        except RayLostError as error:
            self._restart(error)
            return []
        for event in [] if answer is None else answer.events:
            if isinstance(event, BundleDone | BundleLost):
                self._in_flight.remove(event.bundle)
            if isinstance(event, Receipt | UnitFailure | BundleDone):
                self._may_restart = False
        return [] if answer is None else answer.events

    def drain(self) -> None:
        self._draining = True
        self._call("drain")

    def close(self) -> None:
        if self._connection is not None and not self._is_own:
            self._call("close")  # actors on other machines are ended by Ray
            with suppress(EOFError, OSError):
                end = time.monotonic() + _CLOSE_SECONDS
                while time.monotonic() < end:
                    if self._connection.poll(_GRACE_SECONDS):
                        self._connection.recv()
        self._end()

    def _end(self) -> None:
        """End the child and its processes with kill -9, as they have nothing left to write."""
        if self._process is not None:
            end_session(self._process.pid)
            self._process.wait()  # not before: its process id is that of the session
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._folder = None


def end_session(leader: int, *, spare: int | None = None) -> None:
    """Kill all processes of a session, and wait until they are gone, but for one that may be spared."""
    end = time.monotonic() + _END_SECONDS
    while time.monotonic() < end:
        found = [process for process in _session(leader) if process.pid != spare]
        if not found:
            return
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.02)


def _session(leader: int) -> list[psutil.Process]:
    found = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(pid) == leader:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def run_child(descriptor: int, folder: str) -> None:
    """Be the child: connect to Ray, and answer what is asked through a socket, until the driver is gone."""
    os.set_inheritable(descriptor, False)
    collect_rarely()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, _leave_to_the_driver)
    connection: Connection[Any, Any] = Connection(descriptor)
    messages: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, messages, Path(folder)), daemon=True).start()
    executor: Executor | None = None
    try:
        executor = _start_executor(messages, Path(folder))
        _serve(executor, connection, messages)
    except Exception as error:  # noqa: BLE001 - Ray raises anything, bare exceptions among them
        with suppress(OSError):  # the driver is gone, too: `_listen` ends this process when it has ended the session
            connection.send(_describe(error))
        while messages.get()[0] != "close":
            pass
    if executor is not None:
        executor.close()
    os._exit(0)


def _describe(error: Exception) -> RobustError:
    """Make an error one that the driver can read, and whose message is a line."""
    if isinstance(error, RobustError):
        return error
    lines = str(error).strip().splitlines() or [""]
    return RayLostError(f"{type(error).__name__}: {lines[0][:200].rstrip('.')}")


def _leave_to_the_driver(_number: int, _frame: object) -> None:
    """Do nothing: the driver hears the same signal, and drains. Ray's processes, being executed, get the default."""


def _listen(connection: "Connection[Any, Any]", messages: "SimpleQueue[tuple[Any, ...]]", folder: Path) -> None:
    """Pass on the driver's requests; once it is gone, end everything."""
    try:
        while True:
            messages.put(connection.recv())
    except (EOFError, OSError):
        for _ in range(10):  # the main thread may be starting Ray meanwhile, with more processes and files
            end_session(os.getsid(0), spare=os.getpid())
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.1)
        os._exit(1)


def _start_executor(messages: "SimpleQueue[tuple[Any, ...]]", folder: Path) -> Executor:
    from robust201.runtime.executors.ray import RayExecutor

    _, config, start_worker = messages.get()
    return RayExecutor(config, start_worker, folder / "r")


def _serve(executor: Executor, connection: "Connection[Any, Any]", messages: "SimpleQueue[tuple[Any, ...]]") -> None:
    """Answer the driver until it says "close"."""

    def answer(events: list[Event]) -> None:
        connection.send(_Answer(events, executor.free_slots(), executor.gpus_per_worker, executor.n_workers))

    answer([])
    while True:
        name, *arguments = messages.get()
        match name:
            case "submit":
                executor.submit(*arguments)
            case "poll":
                answer(executor.poll(*arguments))
            case "drain":
                executor.drain()
            case "record":
                metric, value, tags = arguments
                executor.metrics.record(metric, value, **tags)
            case "close":
                return
