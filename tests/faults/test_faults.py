"""Real runs whose processes are killed at random moments: the next runs complete them with the same bytes.

`pytest -n 0 -m faults` runs all faults; FAULT_SEED chooses other moments, and FAULT_REPEATS the number of kills.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml

from robust201.core.files import WRITE_STEPS
from robust201.run.guard import session_processes
from robust201.store.events import read_all_events
from robust201.sweep.loading import load_config
from tests.conftest import REPOSITORY
from tests.support.runs import export_bytes, run_inline

pytestmark = [pytest.mark.faults, pytest.mark.timeout(7200)]

SEED = os.environ.get("FAULT_SEED", "1")
REPEATS = int(os.environ.get("FAULT_REPEATS", "12"))
HANG_SECONDS = 60.0
"""Time within which a run must end after a process that it cannot replace was killed."""

KEYS = {
    "clean": {},
    "fgsm": {"epsilons": ["1/255", "8/255"]},
    "pgd": {"epsilons": ["1/255", "8/255"], "steps": 3},
    "brightness": {"severities": [1, 5]},
}
VICTIMS = ("worker", "raylet", "gcs_server", "child", "guard", "ray")
DIE_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from robust201.__main__ import main
from robust201.store import local

atomic_write = local.atomic_write

step = sys.argv.pop()

def write(path, **options):
    marker = Path(os.environ["FAULT_MARKER"])
    def die(name):
        if name == step and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return atomic_write(path, on_step=die)

local.atomic_write = write
main()
"""


class Trial:
    """A sweep that is run while faults are injected."""

    def __init__(self, folder: Path, **execution) -> None:
        self.folder, self.results, self.rng = folder, folder / "results", random.Random(f"{SEED} {folder.name}")
        self.sweep, self.log = folder / "sweep.yaml", folder / "log.txt"
        fields = {
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
        self.sweep.write_text(yaml.safe_dump(fields))

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
        """Return the processes to kill; the guard starts a child in a session of its own, in which Ray runs too."""
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
        """Kill a process of a run; return the ids of the processes that must end with it, or None if there was none."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children()
            session = {other.pid for child in children for other in session_processes(child.pid)}
            targets = self.find(process, victim)
            for target in targets:
                target.kill()
            return session if targets else None
        return None

    def end(self, process, seconds=400.0):
        """Wait for the end of a run; return its exit code."""
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds:g} s: {self.log.read_text()[-500:]}") from None

    def complete(self, *options):
        assert any(self.end(self.start(*options)) == 0 for _ in range(4)), self.log.read_text()[-500:]


def _name_of(process):
    try:
        command = " ".join(process.cmdline())
        return "worker" if "ray::_Actor" in command else Path(command.split(" ", 1)[0]).name
    except psutil.Error:
        return ""


def assert_all_ended(pids):
    deadline = time.monotonic() + HANG_SECONDS
    while alive := [pid for pid in pids if psutil.pid_exists(pid) and _is_alive(pid)]:
        assert time.monotonic() < deadline, f"orphans: {[_name_of(psutil.Process(pid)) for pid in alive]}"
        time.sleep(0.2)


def _is_alive(pid):
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Return the export of a run without faults."""
    trial = Trial(tmp_path_factory.mktemp("undisturbed"))
    assert run_inline(trial.config).is_complete
    return export_bytes(trial.config, trial.folder / "export")


def test_random_kills_end_with_the_same_bytes(tmp_path, expected):
    trial, counts = Trial(tmp_path), Counter()
    while counts.total() < REPEATS:
        remove_half(trial)
        process, victim = trial.start(), trial.rng.choice(VICTIMS)
        time.sleep(trial.rng.uniform(1, 20))
        killed = trial.kill(process, victim)
        if killed is not None:
            counts[victim] += 1
        code = trial.end(process, HANG_SECONDS if victim != "worker" and killed else 400)
        assert code in ({0, -9} if victim == "guard" else {0, 3}), trial.log.read_text()[-500:]
        assert_all_ended(killed or ())
    print(dict(counts))
    assert "Traceback" not in trial.log.read_text()
    trial.complete()
    assert export_bytes(trial.config, tmp_path / "export") == expected


def remove_half(trial):
    """Delete half of the shards if most exist, so that there is always work."""
    shards = sorted((trial.results / "shards").rglob("[!.]*.parquet"))
    for path in trial.rng.sample(shards, len(shards) // 2) if len(shards) > 15 else ():
        path.unlink()


def test_killed_inline_runs_end_with_the_same_bytes(tmp_path, expected):
    trial = Trial(tmp_path, executor="inline")
    for _ in range(REPEATS):
        remove_half(trial)
        process = trial.start()
        time.sleep(trial.rng.uniform(0.5, 9))
        process.kill()
        process.wait()
    trial.complete()
    assert export_bytes(trial.config, tmp_path / "export") == expected


def test_killed_shares_end_with_the_same_bytes(tmp_path, expected):
    """Shares also lose their made images, which they then make at the same time."""
    trial, shares = Trial(tmp_path, executor="inline"), [("--share", f"{index}/3") for index in (1, 2, 3)]
    plan = [sys.executable, "-m", "robust201", "plan", str(trial.sweep), "--save"]
    subprocess.run(plan, check=True, capture_output=True, cwd=REPOSITORY)
    for _ in range(-(-REPEATS // len(shares))):
        remove_half(trial)
        shutil.rmtree(trial.results / "corruptions", ignore_errors=True)
        processes = [trial.start(*share) for share in shares]
        for process in trial.rng.sample(processes, len(processes)):
            time.sleep(trial.rng.uniform(0.5, 9))
            process.kill()
            process.wait()
    assert "Traceback" not in trial.log.read_text()
    for share in shares:
        trial.complete(*share)
    assert export_bytes(trial.config, tmp_path / "export") == expected


@pytest.mark.parametrize("step", WRITE_STEPS)
def test_run_killed_while_it_writes_a_shard(tmp_path, expected, step):
    trial, program = Trial(tmp_path, executor="inline"), tmp_path / "program.py"
    program.write_text(DIE_WHILE_WRITING)
    process = trial.start(step, program=[str(program)], FAULT_MARKER=str(tmp_path / "marker"))
    assert trial.end(process) == -signal.SIGKILL
    assert (tmp_path / "marker").exists()
    trial.complete()
    assert export_bytes(trial.config, tmp_path / "export") == expected


@pytest.mark.parametrize("executor", ["inline", "ray"])
def test_signals_drain_and_two_signals_stop(tmp_path, expected, executor):
    trial = Trial(tmp_path, executor=executor)
    for n_signals, number in ((1, signal.SIGTERM), (1, signal.SIGUSR1), (2, signal.SIGINT)):
        process = trial.start()
        wait_for_parts(trial, process)
        for _ in range(n_signals):
            process.send_signal(number)
            time.sleep(0.3)
        code = trial.end(process, HANG_SECONDS)
        assert code in ({0, 3} if n_signals == 1 else {0, 3, -signal.SIGINT})  # the second may come after the run
        remove_half(trial)
    assert "Traceback" not in trial.log.read_text()
    trial.complete()
    assert export_bytes(trial.config, tmp_path / "export") == expected


def wait_for_parts(trial, process, count=2):
    deadline = time.monotonic() + 120
    before = count_done(trial)
    while count_done(trial) < before + count and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def count_done(trial):
    return sum(event["event"] == "done" for event in read_all_events(trial.results))


@pytest.mark.parametrize("executor", ["inline", "ray"])
def test_full_disk_ends_the_run_with_code_4(tmp_path, expected, executor):
    trial = Trial(tmp_path, executor=executor)
    trial.results.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "robust201-faults", str(trial.results)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs")
    try:
        plan = [sys.executable, "-m", "robust201", "plan", str(trial.sweep), "--save"]
        subprocess.run(plan, check=True, capture_output=True)
        used = shutil.disk_usage(trial.results).used // 1024
        resize(trial.results, f"{used + 440}k")
        assert trial.end(trial.start()) == 4
        assert "the disk is full" in trial.log.read_text()
        assert not list(trial.results.rglob(".*.tmp"))
        resize(trial.results, "64m")
        trial.complete()
        assert export_bytes(trial.config, tmp_path / "export") == expected
    finally:
        subprocess.run(["umount", "--lazy", str(trial.results)], check=True)


def resize(folder, size):
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


def test_second_driver_is_rejected_and_takes_over_a_dead_one(tmp_path, expected):
    trial = Trial(tmp_path, executor="inline")
    first = trial.start()
    wait_for_parts(trial, first, 1)
    assert trial.end(trial.start(), HANG_SECONDS) == 4
    first.kill()
    first.wait()
    lock = json.loads((trial.results / "lock.json").read_text())
    assert lock["pid"] == first.pid
    trial.complete()
    assert export_bytes(trial.config, tmp_path / "export") == expected
