"""Environment of Ray's processes: variables and interpreter."""

import secrets
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from robust201.sweep.config import ExecutionSection

_LOCAL_HEAD_SECONDS = 30
"""Seconds without a response from a local head after which Ray ends its processes and all connected ones."""


def driver_environment(environment: Mapping[str, str], execution: ExecutionSection) -> dict[str, str]:
    """Return the environment variables of the process that connects to Ray or starts it.

    They must be set before Ray is imported. A local Ray and its workers inherit them. A local Ray listens on the
    loopback interface only and requires a token. Unless the user has provided a token or disabled tokens, the token is
    new for every run and exists only in the environment of Ray's processes. By default, Ray 2.60 would store the token
    in a file in the user's home, which all users of the machine can read and which Ray also uses for clusters. Ray 2.56
    requires no token.
    """
    settings = {"RAY_USAGE_STATS_ENABLED": "0"}  # usage reports would be sent to an external server
    required_settings: dict[str, str] = {}
    if not execution.ray_address:
        required_settings = _thread_variables(execution)
        # A local head that stops answering is dead; a cluster's head may recover, so Ray should wait.
        settings["RAY_gcs_rpc_server_reconnect_timeout_s"] = str(_LOCAL_HEAD_SECONDS)
        # Despite its name, this variable determines on every system whether other machines can join this Ray instance.
        settings["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        # By default Ray starts a Python process per CPU in advance, even if there are fewer workers.
        settings["RAY_prestart_worker_first_driver"] = "0"
        settings["RAY_AUTH_MODE"] = "token"
        if "RAY_AUTH_TOKEN_PATH" not in environment:
            settings["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return settings | dict(environment) | required_settings


def worker_environment(execution: ExecutionSection) -> dict[str, Any]:
    """Return Ray's `runtime_env` for workers; it is empty if possible, because Ray needs time to set it up.

    Local workers inherit the interpreter and variables of the process that started Ray. An interpreter path with spaces
    or other special characters must be quoted, because Ray passes it to a shell unquoted.
    """
    if execution.ray_address:
        return {"env_vars": _thread_variables(execution)}
    quoted = shlex.quote(sys.executable)
    return {} if quoted == sys.executable else {"py_executable": quoted}


def _thread_variables(execution: ExecutionSection) -> dict[str, str]:
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(execution.threads))
