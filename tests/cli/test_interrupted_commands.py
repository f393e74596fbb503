"""SIGTERM and SIGINT at random moments of commands: at most one stderr line, and intact results."""

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
    "compact": ("merge", "results", "--compact"),
    "export": ("export", "results", "--out", "out"),
    "status": ("status", "results"),
    "verify": ("verify", "results"),
    "report": ("report", "dataset"),
}
N_SIGNALS = 12
# The program writes one byte when Python has started. Before that, Python itself prints a traceback on Ctrl-C.
PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
from robust201.__main__ import main
os.write(1, b"+")
main()
"""


@pytest.fixture
def original_folder(robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path) -> Path:
    """Return a folder with results and an exported dataset; tests copy it for each trial."""
    assert robust201("run", write_sweep()).code == 0
    (tmp_path / "origin").mkdir()
    shutil.move(tmp_path / "results", tmp_path / "origin/results")
    assert robust201("export", tmp_path / "origin/results", "--out", tmp_path / "origin/dataset").code == 0
    return tmp_path / "origin"


def start_command(command: tuple[str, ...], folder: Path) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == b"+"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_signals_at_random_moments_leave_results_intact(robust201, original_folder, tmp_path, command):
    start_time = time.monotonic()
    uninterrupted_folder = tmp_path / "uninterrupted"
    shutil.copytree(original_folder, uninterrupted_folder)
    process = start_command(COMMANDS[command], uninterrupted_folder)
    process.communicate()
    duration = time.monotonic() - start_time
    assert process.returncode == 0
    rng = random.Random(command)
    for trial in range(N_SIGNALS):
        folder = tmp_path / str(trial)
        shutil.copytree(original_folder, folder)
        signal_number = rng.choice((signal.SIGINT, signal.SIGTERM))
        process = start_command(COMMANDS[command], folder)
        time.sleep(rng.uniform(0, duration))
        process.send_signal(signal_number)
        stderr = process.communicate(timeout=60)[1].decode()
        assert process.returncode in {0, 3, -signal_number}, stderr
        if process.returncode:
            assert stderr == "" or (stderr.count("\n") == 1 and stderr.startswith("Interrupted.")), stderr
        elif command in {"export", "report"}:  # the command finished before the signal
            assert read_tree(folder) == read_tree(uninterrupted_folder)
        assert not [relative_path for relative_path in read_tree(folder) if relative_path.endswith((".tmp", ".lock"))]
        assert robust201("verify", folder / "results").code == 0
        shutil.rmtree(folder)
