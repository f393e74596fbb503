"""Environment of Ray's workers: interpreter path and number of threads."""

import shlex
import sys

import pytest

from robust201.runtime.executors.ray_environment import driver_environment, worker_environment
from robust201.sweep.config import ExecutionSection

CLUSTER_EXECUTION = ExecutionSection(ray_address="auto", threads=3)


def test_worker_environment_quotes_interpreter_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/home/a user's/.venv/bin/python")
    environment = worker_environment(ExecutionSection(threads=3))
    assert shlex.split(environment["py_executable"]) == ["/home/a user's/.venv/bin/python"]
    # The interpreter's path may differ on other machines.
    assert "py_executable" not in worker_environment(CLUSTER_EXECUTION)
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    assert worker_environment(ExecutionSection()) == {}


def test_environments_set_number_of_threads() -> None:
    thread_variables = {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}
    environment = driver_environment({"OMP_NUM_THREADS": "64", "A": "b"}, ExecutionSection(threads=3))
    assert environment.items() >= thread_variables.items() | {"A": "b"}.items()
    assert worker_environment(CLUSTER_EXECUTION) == {"env_vars": thread_variables}
    assert "OMP_NUM_THREADS" not in driver_environment({}, CLUSTER_EXECUTION)
