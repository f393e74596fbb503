"""What `robust201 doctor` looks at outside of the sweep's files: GPUs, clocks, and the Ray cluster with its token."""

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
"""Difference of two clocks from which lines of `logs` come out of order, and from which a `status` that cannot ask the
file server for its time may take a living driver for dead."""

_ANSWER_SECONDS = 10.0
_WITHOUT_FIX = ""


@dataclass(frozen=True)
class HealthCheck:
    """One thing looked at; where it `warns`, it is well to follow `fix` all the same, and `doctor` still ends well."""

    what: str
    ok: bool
    detail: str
    fix: str = _WITHOUT_FIX
    warns: bool = False


def examine_gpus() -> HealthCheck:
    """See whether PyTorch can use every GPU that the driver knows."""
    import torch

    cores = f"{len(os.sched_getaffinity(0))} CPU cores"
    listed = _ask_driver()
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    built = f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}"
    if listed and not torch.cuda.is_available():
        fix = (
            "Install a CUDA build of PyTorch (robust201 again with -c constraints.txt, without a CPU index)."
            if torch.version.cuda is None
            else f"Update the driver to one that knows CUDA {torch.version.cuda}, or install a PyTorch built for an "
            "older CUDA."
        )
        return HealthCheck("gpus", ok=False, detail=f"{'; '.join(listed)}: not usable by {built}", fix=fix)
    if not names:
        return HealthCheck("gpus", ok=True, detail=f"none; {cores}")
    driver = f"; driver {listed[0].rpartition(', ')[2]}" if listed else ""
    return HealthCheck("gpus", ok=True, detail=f"{', '.join(names)} ({built}{driver}); {cores}")


def _ask_driver() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def examine_device(config: SweepConfig) -> HealthCheck:
    """See whether the device and precision that a sweep asks for are here, where it computes here."""
    from robust201.runtime.executors import check_device

    execution = config.execution
    asked = f"device {execution.device}, precision {config.precision}"
    try:
        check_device(config)
    except ConfigError as error:
        return HealthCheck("device", ok=False, detail=f"{asked}: not here", fix=str(error))
    elsewhere = execution.executor == "ray" and execution.ray_address
    return HealthCheck("device", ok=True, detail=f"{asked}{'; the cluster has them or not' if elsewhere else ''}")


def examine_clock(folder: Path, *, clock: Callable[[], float] = time.time) -> HealthCheck:
    """Compare this machine's clock with that of the file server behind a folder."""
    try:
        before = clock()
        stamp, after = file_server_time(folder), clock()
    except OSError as error:
        # That the folder cannot be written is a check of its own, with its fix.
        return HealthCheck("clock", ok=True, detail=f"not compared: {folder}: {error.strerror}")
    return _judge_clock("clock", stamp, before, after, f"the file server of {folder}")


def _judge_clock(what: str, its: float, before: float, after: float, whose: str) -> HealthCheck:
    skew = max(0.0, its - after, before - its)
    detail = f"{skew:.0f} s from that of {whose}"
    fix = "Let both synchronise by NTP (timedatectl set-ntp true); `logs` sorts by their times."
    return HealthCheck(what, ok=skew < CLOCK_SECONDS, detail=detail, fix=fix)


def examine_cluster(config: SweepConfig | None, address: str | None) -> Iterator[HealthCheck]:
    """Look at the token, and at the Ray head where its address is known."""
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
    """See whether something listens where a sweep says that its cluster is; ``auto`` means the machine that runs it."""
    more = "--address http://HOST:8265 looks at the head's dashboard"
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()) or "/" in address:
        return HealthCheck("cluster", ok=True, detail=f"{address}, known to the machine that runs the sweep; {more}")
    try:
        with socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS):
            return HealthCheck("cluster", ok=True, detail=f"{address} listens; {more}")
    except (OSError, OverflowError) as error:
        fix = "Start the cluster, correct execution.ray_address, or run doctor where the sweep will run."
        return HealthCheck("cluster", ok=False, detail=f"{address}: {error}", fix=fix)


def _examine_token(token: str | None, *, is_needed: bool) -> HealthCheck:
    path = token_file()
    if token is None:
        fix = "Make one: (umask 077; ray get-auth-token --generate), and start the cluster with RAY_AUTH_MODE=token."
        return HealthCheck("token", not is_needed, "none" if is_needed else "none; clusters alone need one", fix)
    if os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return HealthCheck("token", ok=True, detail="in RAY_AUTH_TOKEN")
    mode = path.stat().st_mode & 0o777
    if not mode & 0o077:
        return HealthCheck("token", ok=True, detail=f"{path}, mode {mode:04o}")
    fix = f"Let nobody else read it: chmod 600 {path}"
    # Without a cluster the token opens nothing, so that the line warns and doctor still ends well.
    return HealthCheck("token", not is_needed, f"{path}, mode {mode:04o}: others can read it", fix, warns=not is_needed)


def _examine_head(access: Access) -> Iterator[HealthCheck]:
    """Ask a head for its version: says whether it takes our token, and what time it has."""
    request = urllib.request.Request(f"{access.address}/api/version", headers=access.headers())  # noqa: S310 - http(s)
    before = time.time()
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310 - checked by check_access
            found, date = str(json.load(answer).get("ray_version")), answer.headers.get("Date")
    except urllib.error.HTTPError as error:
        with error:
            yield _judge_refusal(access, error.code)
        return
    except (OSError, ValueError, AttributeError) as error:
        fix = "Is it the dashboard of a Ray head (port 8265), and is the tunnel open: ray dashboard CLUSTER.yaml?"
        yield HealthCheck("cluster", ok=False, detail=f"{access.address}: no Ray head answers ({error})", fix=fix)
        return
    try:
        ours = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        ours = "none"
    other_way = "" if ours == "none" else f", or Ray {ours} on the cluster"
    fix = f"Install ray=={found} here{other_way}: a job is submitted and run by one version."
    yield HealthCheck("cluster", found == ours, f"{access.address}: Ray {found}, here {ours}", fix)
    if access.token is None:
        fix = "Start it with RAY_AUTH_MODE=token: anyone who reaches it can run code on the whole cluster."
        yield HealthCheck("cluster token", ok=False, detail="the head asks for none", fix=fix)
    else:
        yield HealthCheck("cluster token", ok=True, detail="accepted")
    if date is not None:
        its = parsedate_to_datetime(date).timestamp()
        yield _judge_clock("cluster clock", its, before - 1, time.time(), "the Ray head")  # it tells whole seconds


def _judge_refusal(access: Access, status: int) -> HealthCheck:
    if status == 401:
        fix = "Put the cluster's token into ~/.ray/auth_token (mode 0600) or RAY_AUTH_TOKEN."
        detail = f"{access.address} asks for one, and none was sent"
        return HealthCheck("cluster token", ok=False, detail=detail, fix=fix)
    if status == 403:
        fix = "Copy the token from the cluster's head (~/.ray/auth_token there): this one is another cluster's."
        return HealthCheck("cluster token", ok=False, detail=f"refused by {access.address}", fix=fix)
    fix = "Name the address of a Ray head's dashboard by --address."
    return HealthCheck("cluster", ok=False, detail=f"{access.address}: answered with HTTP status {status}", fix=fix)
