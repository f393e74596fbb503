"""Runs on a local Ray, with kills: they end with the same bytes as an inline run, or with exit code 3."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from robust201.run.guard import session_processes
from robust201.store.events import read_events
from robust201.sweep.loading import load_config
from tests.conftest import REPOSITORY
from tests.support.runs import export_bytes, read_state, run_inline

KEYS = {"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}, "pgd": {"epsilons": ["1/255", "8/255"], "steps": 20}}
DEADLY = """
import os, signal

def perturb(model, images, labels, strength):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def write(sweep_fields, tmp_path):
    def write_sweep(name="sweep", keys=KEYS, **changes):
        fields = sweep_fields(
            keys=keys,
            images={"count": 40, "seed": 0},
            results=str(tmp_path / name),
            execution={"device": "cpu", "gmacs_per_second": 1e-4, "workers": 2, "executor": "ray"},
            **changes,
        )
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(fields, sort_keys=False))
        return path

    return write_sweep


class Run:
    """A guarded run as a process."""

    def __init__(self, sweep: Path) -> None:
        self.results = load_config(sweep).results
        command = f"guard([sys.executable, '-m', 'tests.run.child', {str(sweep)!r}])"
        program = f"import sys; from robust201.run.guard import guard; sys.exit({command})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=20)
        self.process.kill()

    def session(self):
        """Return the processes of the child's session by name."""
        children = psutil.Process(self.process.pid).children()
        if not children:
            return {}
        child = children[0]
        return {_name_of(process): process for process in session_processes(child.pid)} | {"child": child}

    def wait_for_process(self, name):
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            if name in (session := self.session()):
                return session
            time.sleep(0.02)
        raise AssertionError(f"no {name} within 100 s")

    def wait_for_events(self, event, count=1):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            workers = (self.results / "events").glob("worker-*") if (self.results / "events").exists() else ()
            found = [path for path in workers for line in read_events(path) if line["event"] == event]
            if len(found) >= count:
                return found
            time.sleep(0.05)
        raise AssertionError(f"no {event} within 120 s: {self.process.stderr.read()}")

    def end(self):
        _, errors = self.process.communicate(timeout=200)
        return self.process.returncode, errors


def _name_of(process):
    try:
        return "worker" if "ray::_Actor" in " ".join(process.cmdline()) else process.name()
    except psutil.Error:
        return ""


@pytest.mark.ray
@pytest.mark.faults
def test_killed_workers_cost_only_their_part_and_deadly_parts_are_reported(write, tmp_path):
    (tmp_path / "deadly.py").write_text(DEADLY)
    deadly = {"deadly": {"file": str(tmp_path / "deadly.py"), "strengths": [1]}}
    sweep = write(keys=KEYS | deadly, architectures=[21], batch_size=40)  # the deadly attack is one part
    with Run(sweep) as run:
        worker = run.wait_for_events("done", 3)[0]
        os.kill(int(worker.stem.split("-")[-3]), signal.SIGKILL)
        code, errors = run.end()
    assert code == 3
    failed = [line for line in errors.splitlines() if line.startswith("failed: ")]
    missing = [part.label for part in read_state(load_config(sweep).results).missing()]
    assert missing == ["#21 digits deadly"]
    (line,) = failed
    assert missing[0] in line


@pytest.mark.ray
@pytest.mark.faults
@pytest.mark.parametrize("victim", ["raylet", "gcs_server", "child"])
@pytest.mark.parametrize("moment", ["start", "parts"])
def test_loss_of_ray_is_exit_code_3_and_the_next_run_completes(write, tmp_path, victim, moment):
    straight = load_config(write("straight"))
    run_inline(straight)
    with Run(write()) as run:
        if moment == "parts":
            run.wait_for_events("done", 2)
        session = run.wait_for_process(victim)
        start = time.monotonic()
        session[victim].kill()
        code, errors = run.end()
    # Workers may have computed all parts before Ray notices that the raylet or the head is gone.
    outcomes = {(3, 1), (0, 0)} if moment == "parts" and victim != "child" else {(3, 1)}
    assert (code, errors.count("error: ")) in outcomes, errors
    assert time.monotonic() - start < 60
    assert session_processes(session["child"].pid) == []
    config = load_config(write())
    run_inline(config)
    assert export_bytes(config, tmp_path / "out") == export_bytes(straight, tmp_path / "straight-out")


@pytest.mark.ray
def test_first_signal_drains(write):
    with Run(write()) as run:
        run.wait_for_events("done", 2)
        run.process.send_signal(signal.SIGINT)
        code, errors = run.end()
    assert (code, "Stopping" in errors) == (3, True)
    config = load_config(write())
    n_missing = read_state(config.results).n_missing_parts
    tally = run_inline(config)
    assert (tally.n_parts, tally.failures) == (n_missing, [])
