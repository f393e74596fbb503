"""The guard of a run on Ray. It starts the run as a child in a new session, and ends the session when the child ends.

If Ray's head or raylet dies, Ray ends the connected process, or blocks it in calls that no signal can interrupt.
Therefore the connected process is a child. While it uses Ray, it sends heartbeats; a child that ends unexpectedly or
is silent has lost Ray. Guard and child each end the session if the other is gone, so no process of a local Ray remains.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

BEAT_LIMIT_SECONDS = 40.0
"""Time without a heartbeat after which the child counts as hung; on a busy machine, starting Ray takes half of it."""

EXPECTED_EXIT_CODES = frozenset({0, 2, 3, 4, 130})
"""Exit codes of a run that was not killed."""

_GUARD_VARIABLE = "ROBUST201_GUARD"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_BEAT, _END = b"b", b"e"
_SHORT_FOLDER_BYTES = 20
"""Maximum length of the parent folder's path, so that the paths of Ray's sockets fit into 107 bytes."""


def is_guarded() -> bool:
    """Return whether a guard started this process, and `attach` has not been called yet."""
    return _GUARD_VARIABLE in os.environ


def guard(command: Sequence[str]) -> int:
    """Run a command whose process calls `attach`; forward signals, and return its exit code, or 3 if Ray was lost."""
    folder = Path(tempfile.mkdtemp(prefix="r201-", dir=_short_folder()))  # private, unlike a folder that Ray makes
    beats_reader, beats_writer = os.pipe()
    life_reader, life_writer = os.pipe()  # reading ends when this process, the only writer, has ended
    variables = {**os.environ, _GUARD_VARIABLE: f"{life_reader}:{beats_writer}:{folder}"}
    child = subprocess.Popen(command, env=variables, pass_fds=(life_reader, beats_writer), start_new_session=True)
    for descriptor in (beats_writer, life_reader):
        os.close(descriptor)
    previous = {number: signal.signal(number, lambda sent, _frame: child.send_signal(sent)) for number in SIGNALS}
    try:
        is_hung = _watch(child.pid, beats_reader)
    finally:
        kill_session(child.pid)
        code = child.wait()  # only now, because until then the child's id identifies the session
        shutil.rmtree(folder, ignore_errors=True)
        for descriptor in (beats_reader, life_writer):
            os.close(descriptor)
        for number, handler in previous.items():
            signal.signal(number, handler)
    if not is_hung and code in EXPECTED_EXIT_CODES:
        return code
    reason = "it stopped answering" if is_hung else f"its process ended with code {code}"
    sys.stderr.write(
        f"error: Running workers failed for Ray: Ray was lost ({reason}). Finished work is kept; run the same command "
        "again.\n"
    )
    return 3


def _short_folder() -> str:
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= _SHORT_FOLDER_BYTES else "/tmp"  # noqa: S108 - mkdtemp makes it private


def _watch(pid: int, beats_reader: int) -> bool:
    """Wait until a child ends (return False) or hangs (return True)."""
    last_beat: float | None = None  # None while the child does not use Ray
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if select.select([beats_reader], [], [], 0.2)[0]:
            message = os.read(beats_reader, 4096)
            last_beat = None if not message or message.endswith(_END) else time.monotonic()
            time.sleep(0 if message else 0.2)  # no message: the child has closed the pipe and is about to end
        if last_beat is not None and time.monotonic() - last_beat > BEAT_LIMIT_SECONDS:
            return True
    return False


class Attachment:
    """The child's side of a guard.

    Attributes:
        folder: private folder for a local Ray.
    """

    def __init__(self, folder: Path, send: Callable[[bytes], object]) -> None:
        self.folder = folder
        self._send = send

    def beat(self) -> None:
        """Tell the guard that this process, which uses Ray, is not blocked."""
        self._send(_BEAT)

    def end(self) -> None:
        """Tell the guard that this process does not use Ray until the next `beat`."""
        self._send(_END)


def attach() -> Attachment:
    """Attach this process to the guard that started it.

    From now on, the process ends with its guard. The messages of Ray's libraries, which write to the descriptor of
    stderr, go to a file; `sys.stderr` still writes to the original stderr.
    """
    life, beats, folder = os.environ.pop(_GUARD_VARIABLE).split(":", 2)
    for descriptor in (life, beats):
        os.set_inheritable(int(descriptor), False)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    with (Path(folder) / "ray.log").open("wb") as log:
        os.dup2(log.fileno(), 2)
    threading.Thread(target=_end_with_guard, args=(int(life), Path(folder)), daemon=True).start()
    return Attachment(Path(folder), lambda message: os.write(int(beats), message))


def _end_with_guard(life: int, folder: Path) -> None:
    os.read(life, 1)  # returns only when the guard has ended, because nothing is ever written
    for _ in range(10):  # the main thread may still be starting Ray's processes
        kill_session(os.getsid(0), spared=os.getpid())
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)
    os._exit(1)


def kill_session(leader: int, *, spared: int | None = None) -> None:
    """Kill all processes of a session except `spared`, and wait for up to ten seconds until they are gone."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and (processes := session_processes(leader, spared)):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.02)


def session_processes(leader: int, spared: int | None = None) -> list[psutil.Process]:
    """Return the processes of a session except `spared`; processes that have ended do not count."""
    processes = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if pid != spared and os.getsid(pid) == leader:
                process = psutil.Process(pid)
                processes += [process] if process.status() != psutil.STATUS_ZOMBIE else []
    return processes
