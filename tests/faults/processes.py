"""Processes of a trial, which are identified by an environment variable that all of them inherit."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

MARK = "ROBUST201_TRIAL"
"""Environment variable that identifies the trial of a process; robust201 does not use it."""

_RAY_WORDS = ("ray::", "raylet", "gcs_server", "/ray/")

_sessions: dict[str, set[int]] = {}
"""Sessions of the processes of each trial."""


def family(mark: str) -> list[psutil.Process]:
    """Return the live processes of a trial, independently of their parents.

    Ray's agents overwrite their environment with their title, so they are identified by their session.
    """
    pairs = []
    known_sessions = _sessions.get(mark, set())
    for process in psutil.process_iter():
        try:
            session = os.getsid(process.pid)
            if process.pid != os.getpid() and (session in known_sessions or process.environ().get(MARK) == mark):
                pairs.append((process, session))
        except (psutil.Error, OSError):
            continue
    # Empty sessions are forgotten, because their ids may be reused.
    _sessions[mark] = {session for _, session in pairs if session != os.getsid(0)}
    return [process for process, _ in pairs]


def command_line(process: psutil.Process) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _program_of(process: psutil.Process) -> str:
    return Path(command_line(process).partition(" ")[0]).name


def is_worker(process: psutil.Process) -> bool:
    """Return whether a process is a worker's actor."""
    return command_line(process).startswith("ray::_WorkerActor")


def is_raylet(process: psutil.Process) -> bool:
    return _program_of(process) == "raylet"


def is_head(process: psutil.Process) -> bool:
    return _program_of(process) == "gcs_server"


def is_link(process: psutil.Process) -> bool:
    """Return whether a process is the child that connects a driver to Ray."""
    return "child.run_child(" in command_line(process)


def is_ray(process: psutil.Process) -> bool:
    """Return whether a process belongs to Ray (head, raylet, agents or workers, but not the connecting child)."""
    return any(word in command_line(process) for word in _RAY_WORDS) and not is_link(process)


def kill(processes: Iterable[psutil.Process]) -> int:
    """Send SIGKILL to each process, and return the number of processes that existed."""
    n_killed = 0
    for process in processes:
        try:
            process.send_signal(signal.SIGKILL)
            n_killed += 1
        except psutil.NoSuchProcess:
            continue
    return n_killed


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait for a condition; TimeoutError if it is still false after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s in vain for: {what}")
        time.sleep(0.05)


def zombies(known: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that are dead and not yet collected by a live parent.

    Children of init are ignored, because init collects them later, and so are processes that the tests started.
    """
    uncollected = []
    for process in known:
        try:
            # is_running is false if the process id is used by another process.
            is_dead = process.is_running() and process.status() == psutil.STATUS_ZOMBIE
            if is_dead and process.ppid() not in {1, os.getpid()}:
                uncollected.append(process)
        except psutil.NoSuchProcess:
            continue
    return uncollected
