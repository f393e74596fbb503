"""Processes of a trial, which are identified by an environment variable that all of them inherit."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

MARKER_VARIABLE = "ROBUST201_TRIAL"
"""Environment variable whose value identifies the trial of a process; robust201 does not use it."""

_RAY_NAMES = ("ray::", "raylet", "gcs_server", "/ray/")

_sessions: dict[str, set[int]] = {}
"""IDs of the sessions of a trial's processes, by the trial's marker."""


def live_processes(marker: str) -> list[psutil.Process]:
    """Return the live processes of the trial with this marker, even if their parents have ended.

    Ray's agents overwrite their environment with their title, so they are identified by their session.
    """
    processes_and_sessions = []
    known_sessions = _sessions.get(marker, set())
    for process in psutil.process_iter():
        try:
            session = os.getsid(process.pid)
            if process.pid != os.getpid() and (
                session in known_sessions or process.environ().get(MARKER_VARIABLE) == marker
            ):
                processes_and_sessions.append((process, session))
        except (psutil.Error, OSError):
            continue
    # Sessions without processes are removed, because their ids may be reused.
    _sessions[marker] = {session for _, session in processes_and_sessions if session != os.getsid(0)}
    return [process for process, _ in processes_and_sessions]


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


def is_connecting_child(process: psutil.Process) -> bool:
    """Return whether a process is the child that connects a driver to Ray."""
    return "child.run_child(" in command_line(process)


def is_ray(process: psutil.Process) -> bool:
    """Return whether a process belongs to Ray (head, raylet, agents or workers, but not the connecting child)."""
    return any(name in command_line(process) for name in _RAY_NAMES) and not is_connecting_child(process)


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


def wait_until(condition: Callable[[], object], seconds: float, description: str) -> None:
    """Wait until a condition is true; raise TimeoutError if it is still false after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out after {seconds:g} s waiting for: {description}")
        time.sleep(0.05)


def find_zombies(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that are dead but not yet reaped by a live parent.

    Children of init and of the tests' own process are ignored, because these parents reap them later.
    """
    zombies = []
    for process in processes:
        try:
            # is_running returns False if the ID now belongs to another process.
            is_zombie = process.is_running() and process.status() == psutil.STATUS_ZOMBIE
            if is_zombie and process.ppid() not in {1, os.getpid()}:
                zombies.append(process)
        except psutil.NoSuchProcess:
            continue
    return zombies
