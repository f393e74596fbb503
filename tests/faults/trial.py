"""Trials: each has a small sweep in a separate folder, commands that run the sweep, and injected faults."""

import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.faults.injections import INJECTIONS_FILE, OCCURRENCES_FOLDER
from tests.faults.processes import (
    MARKER_VARIABLE,
    command_line,
    find_zombies,
    is_worker,
    kill,
    live_processes,
    wait_until,
)

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 400.0
"""Default time limit for a command."""

_CHECK_SECONDS = 1.0
"""Minimum time between two checks for zombies."""

GRACE_SECONDS = 180.0
"""Time limit for the end of all processes of a trial; Ray's agents search for a killed head for almost as long."""

INLINE = ("--executor", "inline")
ARCHITECTURES = (0, 3, 9, 10, 21)
KEYS: dict[str, dict[str, Any]] = {
    "clean": {},
    "fgsm": {"epsilons": ["1/255", "8/255"]},
    "pgd": {"epsilons": ["1/255", "8/255"], "steps": 3},
    "aa_square": {"epsilons": ["1/255", "8/255"], "queries": 10},
}
N_UNITS = len(ARCHITECTURES) * len(KEYS)


def stray_files(results: Path) -> list[Path]:
    """Return temporary files and claims to a lease; they are in use, or were left behind by killed processes."""
    return sorted(
        path for path in results.rglob(".*") if path.is_file() and (path.suffix == ".tmp" or ".lease." in path.name)
    )


def sweep_fields(results: Path, **execution: Any) -> dict[str, Any]:
    """Return the fields of the trials' sweep: five trained networks, four keys and twenty images of digits."""
    return {
        "name": "faults",
        "results": str(results),
        "network": {"channels": 4, "cells": 1},
        "checkpoints": {"path": "bundled:benchmark_data/demo"},
        "architectures": list(ARCHITECTURES),
        "datasets": {"digits": {}},
        "images": {"count": 20, "seed": 0},
        "keys": KEYS,
        "execution": {"executor": "ray", "workers": 2, "threads": 1, "gmacs_per_second": 10} | execution,
    }


@dataclass
class Command:
    """A started command.

    Attributes:
        process: process of the command, or of a wrapper such as ``unshare``.
        log: file with the command's output.
    """

    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def text(self) -> str:
        """Return the output so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def expect_output(self, text: str) -> None:
        """Check that the output contains a text."""
        assert text in self.text(), f"{text!r} is not in the output: …{self.text()[-400:]}"


@dataclass
class Trial:
    """A sweep that is run while a fault is injected.

    Methods raise AssertionError if robust201 does not behave as expected.

    Attributes:
        folder: folder for all files.
        expected_files: files of an export of the same sweep without faults, by relative path.
        rng: random generator for the times of faults.
        repeats: number of times to inject a fault that can be repeated.
        injection_counts: number of injected faults, by description.
        zombie_seconds: time within which a live parent must reap a dead child, even on a busy machine.
        marker: value of the environment variable that identifies the trial's processes.
        extra_environment: additional environment variables of commands.
        commands: all started commands.
    """

    folder: Path
    expected_files: Mapping[str, bytes]
    rng: random.Random
    repeats: int = 1
    injection_counts: Counter[str] = field(default_factory=Counter)
    zombie_seconds: float = 60.0
    marker: str = field(default_factory=lambda: secrets.token_hex(32))
    extra_environment: dict[str, str] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    _known_processes: dict[int, psutil.Process] = field(default_factory=dict)
    _dead_since: dict[int, float] = field(default_factory=dict)
    _next_check: float = 0.0

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def sweep(self) -> Path:
        return self.folder / "sweep.yaml"

    def write_sweep(self, **execution: Any) -> None:
        """Write the sweep YAML, with additional fields in `execution`."""
        self.sweep.write_text(yaml.safe_dump(sweep_fields(self.results, **execution)), encoding="utf-8")

    def set_faults(self, **faults: Any) -> None:
        """Set the faults inside processes that start later (see `tests.faults.injections`)."""
        (self.folder / INJECTIONS_FILE).write_text(json.dumps(faults), encoding="utf-8")

    def occurrences(self, prefix: str) -> list[str]:
        """Return the names of the occurrences that processes have recorded, for names with this prefix."""
        return sorted(path.name for path in (self.folder / OCCURRENCES_FOLDER).glob(f"{prefix}*"))

    def environment(self) -> dict[str, str]:
        return os.environ | {
            MARKER_VARIABLE: self.marker,
            "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "pipeline"), str(REPOSITORY))),
            "OMP_NUM_THREADS": "1",
            **self.extra_environment,
        }

    def start_process(self, argv: Sequence[str]) -> Command:
        """Start a process in a new session."""
        log = self.folder / f"log-{len(self.commands)}.txt"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                argv, stdout=stream, stderr=stream, env=self.environment(), cwd=self.folder, start_new_session=True
            )
        self.commands.append(Command(process, log))
        return self.commands[-1]

    def start(self, *arguments: str, wrapper: Sequence[str] = ()) -> Command:
        """Start `robust201 ARGUMENTS` with the trial's faults, optionally in a wrapper such as ``unshare``."""
        return self.start_process(
            [*wrapper, sys.executable, "-m", "tests.faults.command", str(self.folder), *arguments]
        )

    def start_run(self, *options: str, wrapper: Sequence[str] = ()) -> Command:
        return self.start("run", str(self.sweep), *options, wrapper=wrapper)

    def run_to_middle(self) -> Command:
        """Start the run, and wait until one to three new shards exist."""
        n_shards = self.count_shards()
        command = self.start_run()
        self.wait_for_shards(n_shards + self.rng.randint(1, 3), command)
        return command

    def finish(self, command: Command, expected_codes: Collection[int], seconds: float = TIMEOUT_SECONDS) -> int:
        """Wait for a command to end, and check its exit code."""
        deadline = time.monotonic() + seconds
        while command.is_running:
            assert time.monotonic() < deadline, f"still running after {seconds:g} s: {command.text()[-300:]}"
            self.check_zombies()
            with suppress(subprocess.TimeoutExpired):
                command.process.wait(0.5)
        exit_code = command.process.wait()
        assert exit_code in expected_codes, (
            f"exit code {exit_code}, expected {sorted(expected_codes)}: {command.text()[-400:]}"
        )
        return exit_code

    def run(self, *options: str, expected_codes: Collection[int] = (0,)) -> Command:
        """Run `robust201 run` on the sweep, and wait for its end."""
        command = self.start_run(*options)
        self.finish(command, expected_codes)
        return command

    def resume(self, *options: str, attempts: int = 4) -> None:
        """Run the sweep until it is complete, but at most `attempts` times."""
        assert any(self.finish(self.start_run(*options), {0, 3}) == 0 for _ in range(attempts)), (
            "the sweep is not complete"
        )

    def wait_for_shards(self, count: int, command: Command) -> None:
        """Wait until there are `count` shards; the command must not end before."""
        self.wait_until(lambda: self.count_shards() >= count, command, f"{count} shards")

    def wait_until(
        self, condition: Callable[[], object], command: Command, description: str, seconds: float = TIMEOUT_SECONDS
    ) -> None:
        """Wait for a condition while a command runs.

        Raises:
            AssertionError: the command ended before the condition was true.
            TimeoutError: the condition is still false after `seconds`.
        """

        def has_happened_or_ended() -> bool:
            self.check_zombies()
            return bool(condition()) or not command.is_running

        wait_until(has_happened_or_ended, seconds, description)
        assert condition(), f"the command ended before {description}: {command.text()[-400:]}"

    def count_shards(self) -> int:
        return sum(1 for _ in (self.results / "shards").rglob("[!.]*.parquet"))

    def live_processes(self) -> list[psutil.Process]:
        """Return the live processes of the trial, and record them for `check_zombies`."""
        processes = live_processes(self.marker)
        self._known_processes |= {process.pid: process for process in processes}
        return processes

    def check_zombies(self) -> None:
        """Check that live parents reap their dead children in time.

        This must be called regularly, because init reaps the children of parents that have ended. At most one call per
        second has an effect, because a check reads all processes.
        """
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_SECONDS
        self.live_processes()
        dead_processes = {process.pid: process for process in find_zombies(self._known_processes.values())}
        self._dead_since = {pid: self._dead_since.get(pid, now) for pid in dead_processes}
        for pid, since in self._dead_since.items():
            parent = dead_processes[pid].parent()
            parent_command = "" if parent is None else command_line(parent)[:80]
            assert now - since < self.zombie_seconds, f"process {pid} is not reaped by its parent: {parent_command}"

    def workers(self) -> list[psutil.Process]:
        return [process for process in self.live_processes() if is_worker(process)]

    def kill_driver(self, command: Command) -> None:
        self.live_processes()  # records the driver's children for `check_zombies`
        command.process.kill()
        command.process.wait()
        self.injection_counts["drivers killed"] += 1

    def wait_for_end(self) -> None:
        """Wait until all processes of the trial have ended, which must take at most `GRACE_SECONDS`."""
        deadline = time.monotonic() + GRACE_SECONDS
        while alive := live_processes(self.marker):
            self.check_zombies()
            assert time.monotonic() < deadline, (
                f"processes still alive: {[command_line(process)[:80] for process in alive]}"
            )
            time.sleep(0.2)

    def kill_remaining(self) -> None:
        """Kill the trial's remaining processes, so that they do not affect the next fault."""
        kill(live_processes(self.marker))
        for command in self.commands:
            command.process.wait()
