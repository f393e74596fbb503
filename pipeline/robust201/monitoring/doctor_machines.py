"""Checks of `robust201 doctor` that concern machines: GPUs, clocks, and the Ray cluster and its token."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.errors import ConfigError
from robust201.runtime.heartbeat import read_file_server_time
from robust201.submission.access import Access, check_access, find_token, token_file

if TYPE_CHECKING:
    from robust201.planning.config import SweepConfig

MAX_CLOCK_SKEW_SECONDS = 10.0
"""Maximum difference between two clocks that passes the check. If clocks differ by more, `logs` can show lines out of
order. `status` can report an active driver as dead, but only if it cannot read the file server's time."""

_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class HealthCheck:
    """Result of one check.

    Attributes:
        what: name of the check.
        ok: whether the check has passed.
        detail: observed state.
        fix: advice.
        warns: whether the user should follow the advice although the check has passed.
    """

    what: str
    ok: bool
    detail: str
    fix: str = ""
    warns: bool = False


def examine_gpus() -> HealthCheck:
    """Check that PyTorch can use GPUs if nvidia-smi lists any."""
    import torch

    cores = f"{len(os.sched_getaffinity(0))} CPU cores"
    listed_gpus = _list_gpus()
    gpu_names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    build = f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}"
    if listed_gpus and not torch.cuda.is_available():
        fix = (
            "Install a CUDA build of PyTorch (reinstall robust201 with -c constraints.txt, without a CPU index)."
            if torch.version.cuda is None
            else f"Update the driver to one that supports CUDA {torch.version.cuda}, or install a PyTorch built for an "
            "older CUDA version."
        )
        return HealthCheck("gpus", ok=False, detail=f"{'; '.join(listed_gpus)}: not usable by {build}", fix=fix)
    if not gpu_names:
        return HealthCheck("gpus", ok=True, detail=f"none; {cores}")
    driver = f"; driver {listed_gpus[0].rpartition(', ')[2]}" if listed_gpus else ""
    return HealthCheck("gpus", ok=True, detail=f"{', '.join(gpu_names)} ({build}{driver}); {cores}")


def _list_gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in completed.stdout.splitlines() if line.strip()] if completed.returncode == 0 else []


def examine_device(config: SweepConfig) -> HealthCheck:
    """Check that this machine has a sweep's device and supports its precision, unless the sweep runs on a cluster."""
    from robust201.runtime.executors import check_device

    execution = config.execution
    requested = f"device {execution.device}, precision {config.precision}"
    try:
        check_device(config)
    except ConfigError as error:
        return HealthCheck("device", ok=False, detail=f"{requested}: not available", fix=str(error))
    is_remote = execution.executor == "ray" and execution.ray_address
    return HealthCheck("device", ok=True, detail=f"{requested}{'; not checked on the cluster' if is_remote else ''}")


def examine_clock(folder: Path, *, clock: Callable[[], float] = time.time) -> HealthCheck:
    """Compare this machine's clock with the clock of the file server behind a folder."""
    try:
        time_before = clock()
        server_time, time_after = read_file_server_time(folder), clock()
    except OSError as error:
        # Another check reports folders that are not writable.
        return HealthCheck("clock", ok=True, detail=f"not compared: {folder}: {error.strerror}")
    return _check_clock("clock", server_time, time_before, time_after, f"the file server of {folder}")


def _check_clock(
    check_name: str, other_time: float, time_before: float, time_after: float, clock_owner: str
) -> HealthCheck:
    """Check another clock, which was read between `time_before` and `time_after` of this machine's clock."""
    skew = max(0.0, other_time - time_after, time_before - other_time)
    detail = f"{skew:.0f} s from the clock of {clock_owner}"
    fix = "Synchronise both clocks with NTP (timedatectl set-ntp true); `logs` sorts lines by their times."
    return HealthCheck(check_name, ok=skew < MAX_CLOCK_SKEW_SECONDS, detail=detail, fix=fix)


def examine_cluster(config: SweepConfig | None, address: str | None) -> Iterator[HealthCheck]:
    """Check the token, and the Ray head at `address` or, if this is None, the server at the sweep's `ray_address`."""
    ray_address = config.execution.ray_address if config else None
    try:
        token = find_token()
    except ConfigError as error:
        yield HealthCheck("token", ok=False, detail="not readable", fix=str(error))
        return
    yield _examine_token(token, is_needed=bool(address or ray_address))
    if address is None:
        if ray_address:
            yield _examine_ray_address(ray_address)
        return
    try:
        access = check_access(address, token)
        access.check_reachable()
    except ConfigError as error:
        yield HealthCheck("cluster", ok=False, detail=f"{address}: not reachable", fix=str(error))
        return
    yield from _examine_head(access)


def _examine_ray_address(address: str) -> HealthCheck:
    """Check that a server listens at a sweep's `ray_address`, unless it has no host and port, as in ``auto``."""
    hint = "--address http://HOST:8265 checks the head's dashboard"
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()) or "/" in address:
        return HealthCheck("cluster", ok=True, detail=f"{address}, resolved by the machine that runs the sweep; {hint}")
    try:
        with socket.create_connection((host, int(port)), timeout=_TIMEOUT_SECONDS):
            return HealthCheck("cluster", ok=True, detail=f"a server listens at {address}; {hint}")
    except (OSError, OverflowError) as error:
        fix = "Start the cluster, correct execution.ray_address, or run doctor where the sweep will run."
        return HealthCheck("cluster", ok=False, detail=f"{address}: {error}", fix=fix)


def _examine_token(token: str | None, *, is_needed: bool) -> HealthCheck:
    path = token_file()
    if token is None:
        fix = "Generate one: (umask 077; ray get-auth-token --generate). Start the cluster with RAY_AUTH_MODE=token."
        return HealthCheck("token", not is_needed, "none" if is_needed else "none; needed only for clusters", fix)
    if os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return HealthCheck("token", ok=True, detail="in RAY_AUTH_TOKEN")
    mode = path.stat().st_mode & 0o777
    if not mode & 0o077:
        return HealthCheck("token", ok=True, detail=f"{path}, mode {mode:04o}")
    fix = f"Make the file readable only by you: chmod 600 {path}"
    # Without a cluster, it does no harm if other users can read the token, so this is only a warning.
    return HealthCheck(
        "token", not is_needed, f"{path}, mode {mode:04o}: other users can read it", fix, warns=not is_needed
    )


def _examine_head(access: Access) -> Iterator[HealthCheck]:
    """Check the version, token and clock of a head with one request."""
    request = urllib.request.Request(f"{access.address}/api/version", headers=access.headers())  # noqa: S310 - http(s)
    time_before = time.time()
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310 - checked by check_access
            head_version, date = str(json.load(response).get("ray_version")), response.headers.get("Date")
    except urllib.error.HTTPError as error:
        with error:
            yield _report_rejection(access, error.code)
        return
    except (OSError, ValueError, AttributeError) as error:
        fix = "Use the address of a Ray head's dashboard (port 8265), and open the tunnel: ray dashboard CLUSTER.yaml."
        yield HealthCheck("cluster", ok=False, detail=f"{access.address}: no Ray head responds ({error})", fix=fix)
        return
    try:
        local_version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        local_version = "none"
    alternative = "" if local_version == "none" else f", or Ray {local_version} on the cluster"
    fix = f"Install ray=={head_version} here{alternative}: a job must be submitted and run by the same version."
    yield HealthCheck(
        "cluster", head_version == local_version, f"{access.address}: Ray {head_version}, here {local_version}", fix
    )
    if access.token is None:
        fix = (
            "Start the head with RAY_AUTH_MODE=token: without a token, anyone who reaches it can run code on the whole "
            "cluster."
        )
        yield HealthCheck("cluster token", ok=False, detail="the head requires no token", fix=fix)
    else:
        yield HealthCheck("cluster token", ok=True, detail="accepted")
    if date is not None:
        head_time = parsedate_to_datetime(date).timestamp()
        # The header has whole seconds.
        yield _check_clock("cluster clock", head_time, time_before - 1, time.time(), "the Ray head")


def _report_rejection(access: Access, status: int) -> HealthCheck:
    """Return a failed check for a request that the head rejected with an HTTP status."""
    if status == 401:
        fix = "Put the cluster's token into ~/.ray/auth_token (mode 0600) or RAY_AUTH_TOKEN."
        detail = f"{access.address} requires a token, and none was sent"
        return HealthCheck("cluster token", ok=False, detail=detail, fix=fix)
    if status == 403:
        fix = "Copy the token from the cluster's head (~/.ray/auth_token there): your token is for another cluster."
        return HealthCheck("cluster token", ok=False, detail=f"rejected by {access.address}", fix=fix)
    fix = "Set --address to the address of a Ray head's dashboard."
    return HealthCheck("cluster", ok=False, detail=f"{access.address}: HTTP status {status}", fix=fix)
