"""Executor on Ray in a separate process.

If Ray's raylet or head dies, Ray ends the connected process or blocks it in calls that no signal can interrupt.
Therefore a child process connects to Ray in place of the driver, and answers the driver's calls over a socket. The
child is the leader of a session to which all processes of a local Ray instance belong. If the driver or the child
notices that the other process is gone, it kills this session, because the agents of a partly killed Ray instance search
for its head for minutes.
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
from robust201.core.memory import reduce_gc_frequency
from robust201.core.records import Bundle, Receipt, UnitFailure
from robust201.runtime.executors.base import BundleDone, BundleLost, Event, Executor, StartWorker, WorkSettings
from robust201.runtime.executors.ray_environment import driver_environment
from robust201.runtime.executors.ray_folder import make_ray_folder, remove_unused_folders
from robust201.runtime.work_log import WorkLog

CHILD_MODULE = "robust201.runtime.executors.ray_process"
"""Module whose `run_child` is executed in the child."""

_MAX_ANSWER_SECONDS = 180.0
"""Maximum time for an answer of the child. The longest request is the start of Ray. Unless they hang, Ray's own calls
time out earlier: if the head is gone, after 30 s on this machine and after 60 s on a cluster."""

_GRACE_SECONDS = 0.5
"""Additional time for which the driver waits for an answer before it continues with other work."""

_CLOSE_SECONDS = 30.0
"""Maximum time for which the driver waits while the child ends the actors on a cluster."""

_MAX_KILL_SECONDS = 10.0

_OUTPUT_NAME = "driver.log"
_OUTPUT_BYTES = 4000
"""Maximum number of bytes of Ray's last output that are logged if Ray is lost."""

# The child imports the same modules as this process, from the same paths.
_CHILD_CODE = (
    "import sys; sys.path[:] = {path!r}; sys.argv[:] = {argv!r}; __file__ = sys.argv[0]; import {module} as child; \
child.run_child({descriptor}, {folder!r})"
)


@dataclass(frozen=True)
class _Answer:
    """The child's message after it has started and after each poll."""

    events: list[Event]
    free_slots: int
    gpus_per_worker: float
    n_workers: int


class RayProcess:
    """Computes bundles on Ray actors, with `runtime.executors.ray.RayExecutor` in a child process.

    A local Ray that dies before any result was computed is restarted once.

    Raises:
        ConfigError: the Ray cluster cannot be reached, or lacks resources for a worker.
        RayLostError: Ray died while starting; if it is local, the second start failed as well.
    """

    def __init__(self, config: WorkSettings, start_worker: StartWorker) -> None:
        self._config = config
        self._start_worker = start_worker
        self._is_local = not config.execution.ray_address
        self._in_flight: list[Bundle] = []
        self._may_restart = self._is_local
        self._draining = False
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None
        self._send_lock = threading.Lock()
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
        self._folder, self._lock_descriptor = make_ray_folder()
        self._connection, child_end = Pipe()
        code = _CHILD_CODE.format(
            path=sys.path, argv=sys.argv, module=CHILD_MODULE, descriptor=child_end.fileno(), folder=str(self._folder)
        )
        with (self._folder / _OUTPUT_NAME).open("wb") as log, child_end:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=driver_environment(os.environ, self._config.execution),
                stdin=subprocess.DEVNULL,
                stdout=log,  # keeps Ray's messages out of the command's output
                stderr=log,
                pass_fds=[child_end.fileno(), self._lock_descriptor],  # the child may outlive this process briefly
                start_new_session=True,
            )
        self._request_time: float | None = time.monotonic()
        self._n_free_slots = 0
        self._try_send("start", self._config, self._start_worker)
        while (answer := self._receive(_GRACE_SECONDS)) is None:
            pass  # signal handlers run between calls
        self.gpus_per_worker, self.n_workers = answer.gpus_per_worker, answer.n_workers

    def _restart(self, error: RayLostError) -> None:
        """Restart a local Ray; raise `error` instead after an earlier restart or a first result, or while draining."""
        log = WorkLog(self._config.results, "driver")
        log.write("ray_lost", str(error), level="warning", output=self._read_output())
        if not self._may_restart or self._draining:
            raise error
        self._may_restart = False
        self._kill_child()
        self._start()
        for bundle in self._in_flight:
            self._n_free_slots -= 1
            self._try_send("submit", bundle)

    def _read_output(self) -> str:
        """Return the last output of Ray in the child, which is the only record of why Ray died."""
        try:
            if self._folder is None:
                return ""
            with open_file(self._folder / _OUTPUT_NAME, None) as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - _OUTPUT_BYTES))
                return stream.read(_OUTPUT_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def send(self, *message: object) -> None:
        """Send a message to the child; may be called from several threads."""
        with self._send_lock:
            if self._connection is None:
                raise BrokenPipeError("the connection to the child is closed")
            self._connection.send(message)

    def _try_send(self, *message: object) -> None:
        with suppress(OSError):  # `_receive` reports the error
            self.send(*message)

    def _receive(self, seconds: float) -> _Answer | None:
        """Return the child's next answer, or None if there is none within `seconds`; raise the child's errors."""
        if self._connection is None:
            raise self._lost_error("the connection is closed")
        try:
            if not self._connection.poll(seconds):
                if self._request_time is not None and time.monotonic() - self._request_time > _MAX_ANSWER_SECONDS:
                    raise self._lost_error(f"no answer within {_MAX_ANSWER_SECONDS:g} s")
                return None
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise self._lost_error("Ray or the operating system ended the process that connects to it") from None
        self._request_time = None
        if isinstance(answer, RayLostError):
            raise self._lost_error(str(answer))
        if isinstance(answer, Exception):
            raise answer
        self._n_free_slots = answer.free_slots
        return answer  # type: ignore[no-any-return]

    def _lost_error(self, reason: str) -> RayLostError:
        hint = ", or compute in this process with --executor inline" if self._is_local else ""
        location = "on this machine" if self._is_local else f"at {self._config.execution.ray_address}"
        return RayLostError(
            f"Running workers failed for Ray {location}: Ray was lost ({reason}). Finished work is kept; rerun the "
            f"same command to resume{hint}."
        )

    def free_slots(self) -> int:
        """Return the number of bundles that can be submitted, as last reported by the child."""
        return 0 if self._draining else self._n_free_slots

    def submit(self, bundle: Bundle) -> None:
        self._in_flight.append(bundle)
        self._n_free_slots -= 1
        self._try_send("submit", bundle)

    def poll(self, timeout: float) -> list[Event]:
        """Wait for events and return all that have arrived."""
        try:
            if self._request_time is None:
                self._request_time = time.monotonic()
                self._try_send("poll", timeout)
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
        self._try_send("drain")

    def close(self) -> None:
        if self._connection is not None and not self._is_local:
            self._try_send("close")  # Ray must end the actors on other machines
            with suppress(EOFError, OSError):
                deadline = time.monotonic() + _CLOSE_SECONDS
                while time.monotonic() < deadline:
                    if self._connection.poll(_GRACE_SECONDS):
                        self._connection.recv()
        self._kill_child()

    def _kill_child(self) -> None:
        """Kill the child and the other processes of its session, none of which has anything left to write."""
        if self._process is not None:
            kill_session(self._process.pid)
            self._process.wait()  # only now, because until then the child's process id identifies the session
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock_descriptor)
            self._folder = None


def kill_session(leader_pid: int, *, spared_pid: int | None = None) -> None:
    """Kill all processes of a session except `spared_pid`, and wait until they are gone."""
    deadline = time.monotonic() + _MAX_KILL_SECONDS
    while time.monotonic() < deadline:
        processes = [process for process in _session_processes(leader_pid) if process.pid != spared_pid]
        if not processes:
            return
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.02)


def _session_processes(leader_pid: int) -> list[psutil.Process]:
    processes = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(pid) == leader_pid:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
    return processes


def run_child(descriptor: int, folder: str) -> None:
    """Run the child process: connect to Ray, and answer the driver's requests until it sends "close" or is gone."""
    os.set_inheritable(descriptor, False)
    reduce_gc_frequency()
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(signal_number, _ignore_signal)
    connection: Connection[Any, Any] = Connection(descriptor)
    messages: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, messages, Path(folder)), daemon=True).start()
    executor: Executor | None = None
    try:
        executor = _start_executor(messages, Path(folder))
        _serve(executor, connection, messages)
    except Exception as error:  # noqa: BLE001 - Ray raises all kinds of exceptions, including plain `Exception`
        with suppress(OSError):  # if the driver is gone, `_listen` kills the session and ends this process
            connection.send(_picklable_error(error))
        while messages.get()[0] != "close":
            pass
    if executor is not None:
        executor.close()
    os._exit(0)


def _picklable_error(error: Exception) -> RobustError:
    """Convert an error to a `RobustError` with a one-line message, which the driver can unpickle."""
    if isinstance(error, RobustError):
        return error
    message_lines = str(error).strip().splitlines() or [""]
    return RayLostError(f"{type(error).__name__}: {message_lines[0][:200].rstrip('.')}")


def _ignore_signal(_number: int, _frame: object) -> None:
    """Do nothing, because the driver receives the same signal and drains.

    Ray's processes would inherit SIG_IGN, but do not inherit a handler.
    """


def _listen(connection: "Connection[Any, Any]", messages: "SimpleQueue[tuple[Any, ...]]", folder: Path) -> None:
    """Forward the driver's requests to the queue; when the driver is gone, kill the session."""
    try:
        while True:
            messages.put(connection.recv())
    except (EOFError, OSError):
        for _ in range(10):  # the main thread may still be starting Ray, which creates processes and files
            kill_session(os.getsid(0), spared_pid=os.getpid())
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.1)
        os._exit(1)


def _start_executor(messages: "SimpleQueue[tuple[Any, ...]]", folder: Path) -> Executor:
    from robust201.runtime.executors.ray import RayExecutor

    _, config, start_worker = messages.get()
    return RayExecutor(config, start_worker, folder / "r")  # a short name, because socket paths have a maximum length


def _serve(executor: Executor, connection: "Connection[Any, Any]", messages: "SimpleQueue[tuple[Any, ...]]") -> None:
    """Answer the driver's requests until it sends "close"."""

    def send_answer(events: list[Event]) -> None:
        connection.send(_Answer(events, executor.free_slots(), executor.gpus_per_worker, executor.n_workers))

    send_answer([])
    while True:
        request, *arguments = messages.get()
        match request:
            case "submit":
                executor.submit(*arguments)
            case "poll":
                send_answer(executor.poll(*arguments))
            case "drain":
                executor.drain()
            case "close":
                return
