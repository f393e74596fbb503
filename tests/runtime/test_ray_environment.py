"""Environment of Ray's workers: interpreter path, number of threads, and import path."""

import shlex
import sys
from pathlib import Path

import pytest

import robust201
from robust201.core.errors import ConfigError
from robust201.planning.config import ExecutionSection
from robust201.runtime.executors.ray_environment import check_import_path, driver_environment, worker_environment

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


@pytest.mark.parametrize("name", ["robust201.py", "robust201/__init__.py"])
def test_check_import_path_rejects_other_robust201_package(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match="another package named robust201") as error:
        check_import_path(tmp_path)
    assert str(tmp_path / name) in str(error.value)


def test_check_import_path_accepts_other_folders(tmp_path: Path) -> None:
    check_import_path(tmp_path)
    (tmp_path / "robust201").mkdir()  # a data folder named robust201 is not a package
    check_import_path(tmp_path)
    check_import_path(Path(robust201.__file__).parent.parent)
