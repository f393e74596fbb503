"""One trial: a small sweep in a folder of its own, the commands run on it, and the faults that were injected."""

import json
import os
import random
import secrets
import signal
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

from tests.faults.injections import CLAIMS_FOLDER, INJECTIONS_FILE
from tests.faults.processes import MARK, family, is_worker, kill, wait_until, words_of, zombies

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 400.0
_LOOK_SECONDS = 1.0

ARCHITECTURES = (0, 3, 9, 10, 21)
KEYS: dict[str, dict[str, Any]] = {
    "clean": {},
    "fgsm": {"epsilons_255": [1, 8]},
    "pgd": {"epsilons_255": [1, 8], "steps": 3},
    "aa_square": {"epsilons_255": [1, 8], "queries": 10},
}
N_UNITS = len(ARCHITECTURES) * len(KEYS)


class UnavailableError(Exception):
    """This machine cannot stage a fault; the message says why."""


def stray_files(results: Path) -> list[Path]:
    """Temporary files, and claims to a lease, that somebody left or is writing."""
    return sorted(
        path for path in results.rglob(".*") if path.is_file() and (path.suffix == ".tmp" or ".lease." in path.name)
    )


def sweep_fields(results: Path, **execution: Any) -> dict[str, Any]:
    """Fields of the one sweep that every trial computes: five trained networks, four keys, twenty digits."""
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
        process: the process started, which may be a wrapper such as ``unshare`` around the command.
        log: its output.
    """

    process: "subprocess.Popen[bytes]"
    log: Path

    def wait(self, seconds: float = TIMEOUT_SECONDS) -> int:
        """Wait for the end; gives the exit code, negative for a signal."""
        return self.process.wait(timeout=seconds)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def text(self) -> str:
        """What it printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@dataclass
class Trial:
    """A fault's stage.

    Attributes:
        name: of the fault.
        folder: scratch folder, empty at first.
        undisturbed: the export of the same sweep without a fault, by relative path.
        draws: source of random moments.
        repeats: how often to inject what can be injected often.
        injected: what was injected, how often.
        codes: exit codes of the commands that ended by themselves, in order.
        starts: commands started.
        problems: what was wrong.
        known: processes seen at some moment, which must end and be collected.
        zombie_seconds: time in which a living parent must have collected a child that died, however busy the machine.
        dead_since: those of them that are dead and not collected, and when (monotonic clock) that was seen first.
        next_look: when its processes are looked at again (monotonic clock): a look reads every process of the machine.
        mark: what its processes carry in their environment.
        settings: further environment variables of its commands.
        commands: all that were started.
    """

    name: str
    folder: Path
    undisturbed: Mapping[str, bytes]
    draws: random.Random
    repeats: int = 1
    injected: Counter[str] = field(default_factory=Counter)
    codes: list[int] = field(default_factory=list)
    starts: int = 0
    problems: list[str] = field(default_factory=list)
    known: dict[int, psutil.Process] = field(default_factory=dict)
    zombie_seconds: float = 60.0
    dead_since: dict[int, float] = field(default_factory=dict)
    next_look: float = 0.0
    mark: str = field(default_factory=lambda: secrets.token_hex(32))
    settings: dict[str, str] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def sweep(self) -> Path:
        return self.folder / "sweep.yaml"

    def write_sweep(self, **execution: Any) -> None:
        """Write the sweep YAML, with some fields of its execution."""
        self.sweep.write_text(yaml.safe_dump(sweep_fields(self.results, **execution)), encoding="utf-8")

    def order(self, **orders: Any) -> None:
        """Say what goes wrong inside processes that start from now on (see `tests.faults.injections`)."""
        (self.folder / INJECTIONS_FILE).write_text(json.dumps(orders), encoding="utf-8")

    def claims(self, prefix: str) -> list[str]:
        """Faults that processes carried out themselves."""
        return sorted(path.name for path in (self.folder / CLAIMS_FOLDER).glob(f"{prefix}*"))

    def environment(self) -> dict[str, str]:
        return os.environ | {
            MARK: self.mark,
            "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "pipeline"), str(REPOSITORY))),
            "OMP_NUM_THREADS": "1",
            **self.settings,
        }

    def start(self, *arguments: str, wrapper: Sequence[str] = ()) -> Command:
        """Start `robust201 ARGUMENTS`, in this trial's faulty form, in a session of its own.

        Args:
            arguments: a verb and what follows.
            wrapper: a command that runs it, such as ``unshare --pid --fork``.
        """
        log = self.folder / f"log-{self.starts}.txt"
        self.starts += 1
        words = [*wrapper, sys.executable, "-m", "tests.faults.command", str(self.folder), *arguments]
        with log.open("wb") as stream:
            process = subprocess.Popen(
                words, stdout=stream, stderr=stream, env=self.environment(), cwd=self.folder, start_new_session=True
            )
        self.commands.append(Command(process, log))
        return self.commands[-1]

    def start_run(self, *options: str, wrapper: Sequence[str] = ()) -> Command:
        return self.start("run", str(self.sweep), *options, wrapper=wrapper)

    def finish(self, command: Command, expected: Collection[int], seconds: float = TIMEOUT_SECONDS) -> int:
        """Wait for a command to end by itself, and hold its exit code to what was expected."""
        end = time.monotonic() + seconds
        while command.is_running:
            if time.monotonic() > end:
                self.problems.append(f"still running after {seconds:g} s: {command.text()[-300:]}")
                os.killpg(command.process.pid, signal.SIGKILL)
                return command.wait()
            self.watch()
            with suppress(subprocess.TimeoutExpired):
                command.process.wait(0.5)
        code = command.wait()
        self.codes.append(code)
        if code not in expected:
            self.problems.append(f"exit code {code}, expected {sorted(expected)}: {command.text()[-400:]}")
        return code

    def run(self, *options: str, expected: Collection[int] = (0,)) -> Command:
        """Run `robust201 run` on the sweep to its end."""
        command = self.start_run(*options)
        self.finish(command, expected)
        return command

    def resume(self, *options: str, attempts: int = 4, between: Collection[int] = (3,)) -> None:
        """Run the same command until it is complete, which it must be after a few attempts."""
        for _ in range(attempts):
            if self.finish(self.start_run(*options), {0, *between}) == 0:
                return
        self.problems.append(f"not complete after {attempts} more runs")

    def wait_for_shards(self, count: int, command: Command, seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait until so many shards lie there; fails if the command ends before."""
        self.wait_until(lambda: self.count_shards() >= count, command, f"{count} shards", seconds)

    def wait_until(
        self, condition: Callable[[], object], command: Command, what: str, seconds: float = TIMEOUT_SECONDS
    ) -> None:
        """Wait for something to happen while a command runs.

        Raises:
            TimeoutError: the command ended before, or it took too long.
        """

        def happened_or_ended() -> bool:
            self.watch()
            return bool(condition()) or not command.is_running

        wait_until(happened_or_ended, seconds, what)
        if not condition():
            raise TimeoutError(f"the command ended before {what}: {command.text()[-400:]}")

    def count_shards(self) -> int:
        return sum(1 for _ in (self.results / "shards").rglob("[!.]*.parquet"))

    def family(self) -> list[psutil.Process]:
        """Living processes of the trial; noted, so that the verdict can ask what became of them."""
        found = family(self.mark)
        self.known |= {process.pid: process for process in found}
        return found

    def watch(self) -> None:
        """Look at the trial's processes: the dead that their living parent has left uncollected for long are a problem.

        To be called all along: once a parent ends, init collects what it has left.
        """
        now = time.monotonic()
        if now < self.next_look:
            return
        self.next_look = now + _LOOK_SECONDS
        self.family()
        dead = {process.pid: process for process in zombies(self.known.values())}
        self.dead_since = {pid: self.dead_since.get(pid, now) for pid in dead}
        for pid, since in self.dead_since.items():
            if now - since >= self.zombie_seconds:
                parent = dead[pid].parent()
                of = "" if parent is None else words_of(parent)[:80]
                self.problems.append(f"zombie {pid}, which its parent does not collect: {of}")
                del self.known[pid]

    def workers(self) -> list[psutil.Process]:
        return [process for process in self.family() if is_worker(process)]

    def end(self) -> None:
        """End whatever is left of the trial's processes, so that one fault does not weigh on the next."""
        kill(family(self.mark))
        for command in self.commands:
            command.process.wait()

    def fail_unless(self, condition: object, problem: str) -> None:
        if not condition:
            self.problems.append(problem)
