"""SIGTERM and SIGINT at random moments of commands: at most one line of output, and intact results."""

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import RunCommand, WriteSweep, read_tree

COMMANDS = {
    "compact": ("compact", "results"),
    "export": ("export", "results", "--out", "out"),
    "status": ("status", "results"),
    "verify": ("verify", "results"),
    "report": ("report", "dataset"),
}
N_SIGNALS = 12
# One byte signals that Python has started; earlier, Python itself prints a traceback on Ctrl-C.
PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
from robust201.__main__ import main
os.write(1, b"+")
main()
"""


@pytest.fixture
def origin(robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path) -> Path:
    """Return a folder with results and their dataset, which is copied for each trial."""
    assert robust201("run", write_sweep()).code == 0
    (tmp_path / "origin").mkdir()
    shutil.move(tmp_path / "results", tmp_path / "origin/results")
    assert robust201("export", tmp_path / "origin/results", "--out", tmp_path / "origin/dataset").code == 0
    return tmp_path / "origin"


def start(command: tuple[str, ...], folder: Path) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == b"+"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_signals_at_random_moments_leave_results_intact(
    robust201: RunCommand, origin: Path, tmp_path: Path, command: str
) -> None:
    begun = time.monotonic()
    whole = tmp_path / "whole"
    shutil.copytree(origin, whole)
    process = start(COMMANDS[command], whole)
    process.communicate()
    duration = time.monotonic() - begun
    assert process.returncode == 0
    rng = random.Random(command)
    for trial in range(N_SIGNALS):
        folder = tmp_path / str(trial)
        shutil.copytree(origin, folder)
        number = rng.choice((signal.SIGINT, signal.SIGTERM))
        process = start(COMMANDS[command], folder)
        time.sleep(rng.uniform(0, duration))
        process.send_signal(number)
        err = process.communicate(timeout=60)[1].decode()
        assert process.returncode in {0, 3, -number}, err
        if process.returncode:
            assert err == "" or (err.count("\n") == 1 and err.startswith("Interrupted.")), err
        elif command in {"export", "report"}:  # its work was complete
            expected = {name: content for name, content in read_tree(whole).items() if "index/" not in name}
            assert {name: content for name, content in read_tree(folder).items() if "index/" not in name} == expected
        assert not [name for name in read_tree(folder) if name.endswith((".tmp", ".lock"))]
        assert robust201("verify", folder / "results").code == 0
        shutil.rmtree(folder)
