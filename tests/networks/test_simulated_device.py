"""Run `simulated_device_cases` in a separate process, because a process with an additional device cannot fork."""

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.timeout(1200)
def test_all_cases_pass_on_the_simulated_accelerator():
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "tests/networks/simulated_device_cases.py"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
