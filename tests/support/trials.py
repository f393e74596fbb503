"""Runs of a small sweep in separate processes, into which faults are injected."""

import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import yaml

from robust201.run.guard import session_processes
from robust201.store.events import read_recent_events
from robust201.sweep.loading import load_config
from tests.conftest import REPOSITORY

SEED = os.environ.get("FAULT_SEED", "1")
HANG_SECONDS = 60.0
"""Time within which a run must end after a process that it cannot replace was killed."""

KEYS = {
    "clean": {},
    "fgsm": {"epsilons": ["1/255", "8/255"]},
    "pgd": {"epsilons": ["1/255", "8/255"], "steps": 3},
    "brightness": {"severities": [1, 5]},
}


class Trial:
    """A sweep that is run in separate processes while faults are injected.

    `fields` replace top-level fields of the YAML, and `execution` replaces fields of the section `execution`.
    """

    def __init__(self, folder: Path, fields=None, **execution) -> None:
        self.folder, self.results, self.rng = folder, folder / "results", random.Random(f"{SEED} {folder.name}")
        self.sweep, self.log = folder / "sweep.yaml", folder / "log.txt"
        content = {
            "name": "faults",
            "results": str(self.results),
            "network": {"channels": 4, "cells": 1},
            "checkpoints": {"path": "bundled:benchmark_data/demo"},
            "architectures": [0, 3, 9, 10, 21],
            "datasets": {"digits": {"corruptions": {"source": "generated"}}},
            "images": {"count": 20, "seed": 0},
            "keys": KEYS,
            "execution": {"executor": "ray", "workers": 2, "device": "cpu", "gmacs_per_second": 1e-4} | execution,
        }
        self.sweep.write_text(yaml.safe_dump(content | (fields or {})))

    @property
    def config(self):
        return load_config(self.sweep)

    def start(self, *options, program=("-m", "robust201"), **variables):
        with self.log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, *program, "run", str(self.sweep), *options],
                stdout=log,
                stderr=log,
                cwd=REPOSITORY,
                env=os.environ | variables,
                start_new_session=True,
            )

    def find(self, process, victim):
        """Return the processes to kill. The guard starts a child in a new session, in which Ray also runs."""
        children = psutil.Process(process.pid).children()
        if victim == "guard" or not children:
            return [psutil.Process(process.pid)] if victim == "guard" else []
        session = session_processes(children[0].pid)
        if victim == "child":
            return children
        if victim == "ray":
            return [other for other in session if other.pid != children[0].pid]
        return [other for other in session if _name_of(other) == victim][:1]

    def kill(self, process, victim):
        """Kill processes of a run; return the ids of the processes that must also end, or None if none was killed."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children()
            session = {other.pid for child in children for other in session_processes(child.pid)}
            targets = self.find(process, victim)
            for target in targets:
                target.kill()
            return session if targets else None
        return None

    def wait_for_end(self, process, seconds=400.0):
        """Wait for the end of a run; return its exit code."""
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds:g} s: {self.log.read_text()[-500:]}") from None

    def complete(self, *options):
        assert any(self.wait_for_end(self.start(*options)) == 0 for _ in range(4)), self.log.read_text()[-500:]


def _name_of(process):
    try:
        command = " ".join(process.cmdline())
        return "worker" if "ray::_Actor" in command else Path(command.split(" ", 1)[0]).name
    except psutil.Error:
        return ""


def assert_all_ended(pids):
    deadline = time.monotonic() + HANG_SECONDS
    while alive := [pid for pid in pids if psutil.pid_exists(pid) and _is_alive(pid)]:
        assert time.monotonic() < deadline, f"orphans: {alive}"
        time.sleep(0.2)


def _is_alive(pid):
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def delete_half_of_shards(trial):
    """Delete half of the shards if most exist, so that there is always work."""
    shards = sorted((trial.results / "shards").rglob("[!.]*.parquet"))
    for path in trial.rng.sample(shards, len(shards) // 2) if len(shards) > 15 else ():
        path.unlink()


def wait_for_parts(trial, process, count=2):
    deadline = time.monotonic() + 120
    before = count_done(trial)
    while count_done(trial) < before + count and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def count_done(trial):
    return sum(event["event"] == "done" for event in read_recent_events(trial.results))
