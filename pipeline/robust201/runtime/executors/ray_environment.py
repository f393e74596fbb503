"""What processes on Ray start with: variables, interpreter, and where they import this package from."""

import importlib.machinery
import pkgutil
import secrets
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import robust201
from robust201.core.errors import ConfigError
from robust201.planning.code_consent import find_data_mark
from robust201.planning.config import ExecutionSection

_LOCAL_HEAD_SECONDS = 30
"""After this long without an answer from a head on this machine, Ray ends its own processes, and those connected."""


def driver_environment(environment: Mapping[str, str], execution: ExecutionSection) -> dict[str, str]:
    """Give the variables of the process that connects to Ray, or starts one here; without Ray's import.

    A Ray of our own and its workers have them, too. It listens on loopback only, and asks for a token: a new one, which
    lives in the environment of its processes, unless the user gave one or turned tokens off. By itself, Ray 2.60 would
    keep one in the user's home, in a file that all users of the machine can read and that clusters then use; 2.56 asks
    for none.
    """
    settings = {"RAY_USAGE_STATS_ENABLED": "0"}  # reports go to a server outside
    fixed: dict[str, str] = {}
    if not execution.ray_address:
        fixed = _thread_variables(execution)
        # A head on this machine that stops answering is dead; one on a cluster may come back (Ray waits).
        settings["RAY_gcs_rpc_server_reconnect_timeout_s"] = str(_LOCAL_HEAD_SECONDS)
        # Despite its name, on any system it sets whether other machines must reach the Ray of this one.
        settings["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        # By default Ray starts a Python process per CPU ahead, whether or not there are as many workers.
        settings["RAY_prestart_worker_first_driver"] = "0"
        settings["RAY_AUTH_MODE"] = "token"
        if "RAY_AUTH_TOKEN_PATH" not in environment:
            settings["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return settings | dict(environment) | fixed


def worker_environment(execution: ExecutionSection) -> dict[str, Any]:
    """Describe the processes of workers as Ray's `runtime_env`, empty where they need none: it takes time to set up.

    On this machine they have the interpreter and the variables of the process that started Ray. If its path has a
    space or another character of the shell's, it is given quoted: Ray hands it to a shell as it is.
    """
    if execution.ray_address:
        return {"env_vars": _thread_variables(execution)}
    quoted = shlex.quote(sys.executable)
    return {} if quoted == sys.executable else {"py_executable": quoted}


def _thread_variables(execution: ExecutionSection) -> dict[str, str]:
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(execution.threads))


def check_import_path(folder: Path) -> None:
    """Reject a folder whose modules Ray's workers would import in place of others, of this package or by an attacker.

    Ray puts the folder in which its driver was started first on the import path of every worker.

    Raises:
        ConfigError: a `py` or a package `robust201` that is not this one lies there, or any module does and the folder
            holds data (see `planning.code_consent`).
    """
    mark = find_data_mark(folder)
    module = next((module.name for module in pkgutil.iter_modules([str(folder)])), None)
    if mark is not None and module is not None:
        raise ConfigError(
            f"Starting workers failed for {folder}: expected no Python modules in a folder of data ({mark}), which "
            f"Ray's workers would import, got {module!r}. Start from another folder, or compute in this process with "
            "--executor inline."
        )
    found = importlib.machinery.PathFinder.find_spec("robust201", [str(folder)])
    if found is None or found.origin is None:  # a folder without __init__.py stands behind every package
        return
    if Path(found.origin).resolve() != Path(robust201.__file__).resolve():
        raise ConfigError(
            f"Starting workers failed for {folder}: expected no other Python package named robust201 there, which "
            f"Ray's workers would import in place of robust201's, got {found.origin}. Start from another folder, or "
            "compute in this process with --executor inline."
        )
