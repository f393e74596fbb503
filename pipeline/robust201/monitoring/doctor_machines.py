"""The checks of `robust201 doctor` outside the sweep's files: GPUs, clocks, and the Ray cluster with its token."""

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
from robust201.runtime.heartbeat import file_server_time
from robust201.submission.access import Access, check_access, find_token, token_file

if TYPE_CHECKING:
    from robust201.planning.config import SweepConfig

CLOCK_SECONDS = 10.0
"""Tolerated clock difference. Beyond it, `logs` lines can be out of order, and a `status` without the file server's
time can take an active driver for dead."""

_ANSWER_SECONDS = 10.0
_WITHOUT_FIX = ""


@dataclass(frozen=True)
class HealthCheck:
    """The result of one check; with `warns`, `fix` is recommended although the check has passed."""

    what: str
    ok: bool
    detail: str
    fix: str = _WITHOUT_FIX
    warns: bool = False


def examine_gpus() -> HealthCheck:
    """Check that PyTorch can use every GPU that the driver lists."""
    import torch

    cores = f"{len(os.sched_getaffinity(0))} CPU cores"
    listed = _list_gpus()
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    built = f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}"
    if listed and not torch.cuda.is_available():
        fix = (
            "Install a CUDA build of PyTorch (reinstall robust201 with -c constraints.txt, without a CPU index)."
            if torch.version.cuda is None
            else f"Update the driver to one that supports CUDA {torch.version.cuda}, or install a PyTorch built for an "
            "older CUDA version."
        )
        return HealthCheck("gpus", ok=False, detail=f"{'; '.join(listed)}: not usable by {built}", fix=fix)
    if not names:
        return HealthCheck("gpus", ok=True, detail=f"none; {cores}")
    driver = f"; driver {listed[0].rpartition(', ')[2]}" if listed else ""
    return HealthCheck("gpus", ok=True, detail=f"{', '.join(names)} ({built}{driver}); {cores}")


def _list_gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in result.stdout.splitlines() if line.strip()] if result.returncode == 0 else []


def examine_device(config: SweepConfig) -> HealthCheck:
    """Check that this machine has a sweep's device and precision, unless it runs on a cluster."""
    from robust201.runtime.executors import check_device

    execution = config.execution
    requested = f"device {execution.device}, precision {config.precision}"
    try:
        check_device(config)
    except ConfigError as error:
        return HealthCheck("device", ok=False, detail=f"{requested}: not available", fix=str(error))
    elsewhere = execution.executor == "ray" and execution.ray_address
    return HealthCheck("device", ok=True, detail=f"{requested}{'; not checked on the cluster' if elsewhere else ''}")


def examine_clock(folder: Path, *, clock: Callable[[], float] = time.time) -> HealthCheck:
    """Compare this machine's clock with that of the file server behind a folder."""
    try:
        before = clock()
        stamp, after = file_server_time(folder), clock()
    except OSError as error:
        # Another check reports folders that cannot be written.
        return HealthCheck("clock", ok=True, detail=f"not compared: {folder}: {error.strerror}")
    return _check_clock("clock", stamp, before, after, f"the file server of {folder}")


def _check_clock(what: str, other_time: float, before: float, after: float, other: str) -> HealthCheck:
    skew = max(0.0, other_time - after, before - other_time)
    detail = f"{skew:.0f} s from that of {other}"
    fix = "Synchronise both by NTP (timedatectl set-ntp true); `logs` sorts by their times."
    return HealthCheck(what, ok=skew < CLOCK_SECONDS, detail=detail, fix=fix)


def examine_cluster(config: SweepConfig | None, address: str | None) -> Iterator[HealthCheck]:
    """Check the token and, if its address is known, the Ray head."""
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
    """Check that a server listens at a sweep's `ray_address`; ``auto`` refers to the machine that runs the sweep."""
    more = "--address http://HOST:8265 checks the head's dashboard"
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()) or "/" in address:
        return HealthCheck("cluster", ok=True, detail=f"{address}, resolved by the machine that runs the sweep; {more}")
    try:
        with socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS):
            return HealthCheck("cluster", ok=True, detail=f"{address} listens; {more}")
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
    fix = f"Make it readable only by you: chmod 600 {path}"
    # Without a cluster, a readable token is harmless, so this is only a warning.
    return HealthCheck("token", not is_needed, f"{path}, mode {mode:04o}: others can read it", fix, warns=not is_needed)


def _examine_head(access: Access) -> Iterator[HealthCheck]:
    """Request a head's version, which also shows whether it accepts the token and what its clock says."""
    request = urllib.request.Request(f"{access.address}/api/version", headers=access.headers())  # noqa: S310 - http(s)
    before = time.time()
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as response:  # noqa: S310 - checked by check_access
            head_version, date = str(json.load(response).get("ray_version")), response.headers.get("Date")
    except urllib.error.HTTPError as error:
        with error:
            yield _describe_rejection(access, error.code)
        return
    except (OSError, ValueError, AttributeError) as error:
        fix = "Is it the dashboard of a Ray head (port 8265), and is the tunnel open: ray dashboard CLUSTER.yaml?"
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
        fix = "Start it with RAY_AUTH_MODE=token: anyone who reaches it can run code on the whole cluster."
        yield HealthCheck("cluster token", ok=False, detail="the head requires none", fix=fix)
    else:
        yield HealthCheck("cluster token", ok=True, detail="accepted")
    if date is not None:
        head_time = parsedate_to_datetime(date).timestamp()
        yield _check_clock(
            "cluster clock", head_time, before - 1, time.time(), "the Ray head"
        )  # The header has whole seconds.


def _describe_rejection(access: Access, status: int) -> HealthCheck:
    if status == 401:
        fix = "Put the cluster's token into ~/.ray/auth_token (mode 0600) or RAY_AUTH_TOKEN."
        detail = f"{access.address} requires one, and none was sent"
        return HealthCheck("cluster token", ok=False, detail=detail, fix=fix)
    if status == 403:
        fix = "Copy the token from the cluster's head (~/.ray/auth_token there): this one belongs to another cluster."
        return HealthCheck("cluster token", ok=False, detail=f"rejected by {access.address}", fix=fix)
    fix = "Give the address of a Ray head's dashboard by --address."
    return HealthCheck("cluster", ok=False, detail=f"{access.address}: HTTP status {status}", fix=fix)
