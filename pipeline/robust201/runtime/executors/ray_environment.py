"""What a worker's process on Ray starts with: interpreter, variables, and where it imports this package from."""

import importlib.machinery
import shlex
import sys
from pathlib import Path
from typing import Any

import robust201
from robust201.core.errors import ConfigError
from robust201.planning.config import ExecutionSection


def worker_environment(execution: ExecutionSection) -> dict[str, Any]:
    """Describe the processes of workers as Ray's `runtime_env`.

    On this machine they have the interpreter that the driver runs on, quoted: Ray hands its path to a shell as it is,
    where one with a space in it would start nothing.
    """
    threads = str(execution.threads)
    environment: dict[str, Any] = {"env_vars": {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}}
    if not execution.ray_address:
        environment["py_executable"] = shlex.quote(sys.executable)
    return environment


def check_import_path(folder: Path) -> None:
    """Refuse a folder in which Ray's workers would import another package of this one's name.

    Ray puts the folder in which its driver was started first on the import path of every worker.

    Raises:
        ConfigError: a `py` or a package `robust201` that is not this one lies there.
    """
    found = importlib.machinery.PathFinder.find_spec("robust201", [str(folder)])
    if found is None or found.origin is None:  # a folder without __init__.py stands behind every package
        return
    if Path(found.origin).resolve() != Path(robust201.__file__).resolve():
        raise ConfigError(
            f"Starting workers failed for {folder}: expected no other Python package named robust201 there, which "
            f"Ray's workers would import in place of robust201's, got {found.origin}. Start from another folder, or "
            "compute in this process with --executor inline."
        )
