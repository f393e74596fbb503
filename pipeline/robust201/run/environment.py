"""Checks of this machine's cores and device before a run, and environment variables of Ray's processes.

This module does not import Ray, which reads its variables when it is imported.
"""

import os
import secrets
import shlex
import sys
from typing import Any, cast

from robust201.core.errors import ConfigError
from robust201.core.precision import Precision
from robust201.sweep.config import ExecutionSection
from robust201.sweep.training_plan import DeviceKind


def check_machine(execution: ExecutionSection, precision: Precision) -> None:
    """Check this machine's cores and device before anything is written; workers of a cluster check their own machines.

    Raises:
        ConfigError: the machine has too few cores, or lacks the device or precision.
    """
    if execution.executor == "ray" and execution.ray_address:
        return
    n_cores, n_workers = len(os.sched_getaffinity(0)), execution.workers or 1
    if execution.executor == "ray" and n_workers * execution.cpus_per_worker > n_cores + 1e-9:
        raise ConfigError(
            f"Starting workers failed for execution.workers {n_workers:,}: each needs {execution.cpus_per_worker:g} "
            f"CPU cores (execution.cpus_per_worker), but this machine has {n_cores} in total. Lower one of them."
        )
    if execution.requires_gpu or precision != "fp32":
        from robust201.networks.device import choose_device

        choose_device(execution.device, precision)


def choose_device_kind(execution: ExecutionSection, precision: Precision) -> DeviceKind:
    """Return the kind of device on which a run computes; the last bits of all numbers depend on it.

    Raises:
        ConfigError: the device is not set and workers run on other machines, or it does not support the precision.
    """
    if execution.device != "auto":
        return execution.device
    if execution.executor == "ray" and execution.ray_address:
        require_explicit_device(execution)
    from robust201.networks.device import choose_device

    return cast("DeviceKind", choose_device("auto", precision).type)


def require_explicit_device(execution: ExecutionSection) -> None:
    """Raise ConfigError if workers on other machines would have to choose the device."""
    if execution.device == "auto":
        raise ConfigError(
            "Choosing a device failed for execution.device: expected cpu or cuda, because numbers depend on the device "
            "and the workers run on other machines, got auto. Set it to the device of these workers."
        )


def ray_variables(execution: ExecutionSection) -> dict[str, str]:
    """Return the environment variables of the process that connects to Ray, to be set before it imports Ray.

    A local Ray listens on loopback only, and requires a token, which exists in the environment of its processes only.
    """
    variables = {"RAY_USAGE_STATS_ENABLED": "0"}
    if execution.ray_address:
        return variables
    return (
        variables
        | _thread_variables(execution)
        | {
            "RAY_gcs_rpc_server_reconnect_timeout_s": "10",  # a local head that stops answering is dead
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # other machines cannot join
            "RAY_prestart_worker_first_driver": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
    )


def worker_environment(execution: ExecutionSection) -> dict[str, Any]:
    """Return Ray's `runtime_env`; empty if possible, because Ray needs time to set it up."""
    if execution.ray_address:
        return {"env_vars": _thread_variables(execution)}
    quoted = shlex.quote(sys.executable)  # Ray passes the path to a shell unquoted
    return {} if quoted == sys.executable else {"py_executable": quoted}


def _thread_variables(execution: ExecutionSection) -> dict[str, str]:
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(execution.threads))
