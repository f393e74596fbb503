"""Processes of one trial: every command carries a mark in its environment, which all that it starts inherits."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

MARK = "ROBUST201_TRIAL"
"""Environment variable whose value names the trial that a process belongs to; the product knows nothing of it."""

_RAY_WORDS = ("ray::", "raylet", "gcs_server", "/ray/")

_sessions: dict[str, set[int]] = {}
"""Sessions that processes of each trial were seen in."""


def family(mark: str) -> list[psutil.Process]:
    """Living processes of a trial, whoever their parent is now.

    Ray's agents overwrite their environment with their title; they are known by the session that they are in.
    """
    found = []
    before = _sessions.get(mark, set())
    for process in psutil.process_iter():
        try:
            session = os.getsid(process.pid)
            if process.pid != os.getpid() and (session in before or process.environ().get(MARK) == mark):
                found.append((process, session))
        except (psutil.Error, OSError):
            continue
    # Forgotten once it is empty, for then its number may become another's.
    _sessions[mark] = {session for _, session in found if session != os.getsid(0)}
    return [process for process, _ in found]


def words_of(process: psutil.Process) -> str:
    """Command line of a process; empty once it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _program_of(process: psutil.Process) -> str:
    return Path(words_of(process).partition(" ")[0]).name


def is_worker(process: psutil.Process) -> bool:
    """Whether a process is an actor that computes."""
    return words_of(process).startswith("ray::_WorkerActor")


def is_raylet(process: psutil.Process) -> bool:
    return _program_of(process) == "raylet"


def is_head(process: psutil.Process) -> bool:
    return _program_of(process) == "gcs_server"


def is_link(process: psutil.Process) -> bool:
    """Whether a process is the one that connects a driver to Ray."""
    return "child.run_child(" in words_of(process)


def is_ray(process: psutil.Process) -> bool:
    """Whether a process belongs to Ray: head, raylet, agents, workers; not the driver, nor what connects it."""
    return any(word in words_of(process) for word in _RAY_WORDS) and not is_link(process)


def kill(processes: Iterable[psutil.Process]) -> int:
    """Kill -9 each process, and count those that were there to receive it."""
    hit = 0
    for process in processes:
        try:
            process.send_signal(signal.SIGKILL)
            hit += 1
        except psutil.NoSuchProcess:
            continue
    return hit


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait for a condition; a TimeoutError says that it did not come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s in vain until {what}")
        time.sleep(0.05)


def zombies(known: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Dead processes among some that a living parent has not collected yet.

    What init inherits it collects in its own time, and is no matter of the product's; nor is what these tests started.
    """
    found = []
    for process in known:
        try:
            # is_running tells a process from another one that has its number by now.
            is_dead = process.is_running() and process.status() == psutil.STATUS_ZOMBIE
            if is_dead and process.ppid() not in {1, os.getpid()}:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found
