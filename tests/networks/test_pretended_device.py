"""Run `pretended_device_cases` in a process of its own, since a process with a further device cannot fork."""

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.timeout(1200)
def test_everything_runs_on_the_pretended_accelerator():
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "tests/networks/pretended_device_cases.py"]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout
