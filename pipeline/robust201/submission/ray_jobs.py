"""Sweeps and trainings as jobs of a Ray cluster, through its Jobs API over HTTP."""

import asyncio
import logging
import os
import shlex
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from robust201.core.errors import ConfigError, EvaluationError, closest, one_line
from robust201.submission.access import Access
from robust201.submission.shipment import Shipment

# Ray's client lets these decide over the address it is given, and so over who receives the token.
_OVERRIDES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
# What a request through Ray's client (requests and aiohttp, which ray[default] brings) ends with where it fails.
_FAILED_REQUESTS = (OSError, RuntimeError, ValueError, aiohttp.ClientError, AuthenticationError)

_CHATTY_LOGGERS = ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk")

_PAUSE_SECONDS = 2.0
_PATIENCE_SECONDS = 300.0
"""A head may be silent for this long while a job is followed: the network may come back, a head that died does not."""


def connect(access: Access) -> Any:
    """Reach a head's Jobs API."""
    access.check_reachable()
    for name in _CHATTY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with _without_overrides():
            return JobSubmissionClient(access.address, headers=access.headers())
    except AuthenticationError as error:
        got = "none" if access.token is None else "another one"
        raise ConfigError(
            f"Connecting failed for {access.address}: expected the cluster's token, got {got}. "
            "Copy it from the head (ray get-auth-token) into ~/.ray/auth_token or RAY_AUTH_TOKEN."
        ) from error
    except _FAILED_REQUESTS as error:
        raise ConfigError(
            f"Connecting failed for {access.address}: expected a Ray head, got {one_line(error)}. "
            "Check --address: it is that of the head's dashboard."
        ) from error


@contextmanager
def _without_overrides() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in _OVERRIDES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def entrypoint(shipment: Shipment) -> str:
    """What the job runs on the head; the `robust201` beside the YAML goes before an installed one."""
    words = ["python", "-m", "robust201", shipment.verb, shipment.file_name, "--executor", "ray"]
    return shlex.join([*words, *shipment.narrowing])


def submit_job(client: Any, shipment: Shipment, archive: Path, job_id: str | None) -> str:
    """Upload what is packed and start its job, by default one named such as ``paper-1f0c2a9b``; give its id."""
    job_id = job_id or f"{shipment.config.name}-{uuid.uuid4().hex[:8]}"
    # A stopped job gets SIGTERM, and SIGKILL 3 seconds later unless told otherwise; its workers need to finish parts.
    drain_seconds = int(60 * (shipment.config.execution.part_minutes + 1))
    variables = {**shipment.variables, "RAY_JOB_STOP_WAIT_TIME_S": str(drain_seconds)}
    try:
        known = _statuses(client)
        if job_id not in known:
            return str(
                client.submit_job(
                    entrypoint=entrypoint(shipment),
                    submission_id=job_id,
                    runtime_env={"working_dir": str(archive), "env_vars": variables},
                    metadata={"robust201_sweep": shipment.config.name},
                )
            )
    except _FAILED_REQUESTS as error:
        raise ConfigError(
            f"Submitting failed for {job_id}: expected the head to take the job, got {one_line(error)}. "
            "Look at the head's log, and submit again."
        ) from error
    advice = (
        "Choose another id; finished work is found again."
        if known[job_id].is_terminal()
        else f"Follow it by --follow {job_id}, or choose another id."
    )
    raise ConfigError(
        f"Submitting failed for {job_id}: expected a new id, got that of a job which is {known[job_id].value}. {advice}"
    )


def _statuses(client: Any) -> dict[str, JobStatus]:
    return {job.submission_id: job.status for job in client.list_jobs() if job.submission_id}


def check_job(client: Any, job_id: str) -> None:
    """See that a cluster knows a job."""
    try:
        known = _statuses(client)
    except _FAILED_REQUESTS as error:
        raise ConfigError(
            f"Looking up the job failed for {job_id}: expected the head's list of jobs, got {one_line(error)}. "
            "Try again."
        ) from error
    if job_id not in known:
        near = closest(job_id, known) if known else " The cluster has no jobs."
        raise ConfigError(
            f"Looking up the job failed for {job_id}: expected a job of this cluster, got an unknown id.{near}"
        )


def follow(client: Any, job_id: str, write: Callable[[str], None]) -> Any:
    """Write a job's log until the job ends, each piece once, and give Ray's `JobDetails` of it.

    Raises:
        EvaluationError: the head is silent for `_PATIENCE_SECONDS`, or no longer knows the job.
    """
    shown = 0

    async def tail() -> None:
        """Write what comes until the job or the connection ends; a log is read from its start each time."""
        nonlocal shown
        seen = 0
        async for text in client.tail_job_logs(job_id):
            seen += len(text)
            if seen > shown:
                write(text[-(seen - shown) :])
                shown = seen

    heard = time.monotonic()
    while True:
        is_whole = False
        with suppress(*_FAILED_REQUESTS):  # whether the job lives is asked for separately
            asyncio.run(tail())
            is_whole = True
        try:
            details = client.get_job_info(job_id)
            heard = time.monotonic()
            if details.status.is_terminal():
                if not is_whole:
                    write(client.get_job_logs(job_id)[shown:])
                return details
        except _FAILED_REQUESTS as error:
            unknown = "status code 404" in str(error)
            if unknown or time.monotonic() - heard > _PATIENCE_SECONDS:
                got = "a head that does not know it, as after a restart" if unknown else one_line(error)
                raise EvaluationError(
                    f"Following the job failed for {job_id}: expected its state, got {got}. "
                    "What it finished is kept; submit again to go on."
                ) from error
        time.sleep(_PAUSE_SECONDS)


def exit_code_of(details: Any) -> int:
    """Turn how a job ended into an exit code of robust201: its driver's own where that is one, else 3."""
    if details.status == JobStatus.SUCCEEDED:
        return 0
    return details.driver_exit_code if details.driver_exit_code in (2, 3, 4) else 3


def describe_end(details: Any) -> str:
    """Say in one line how a job ended: its driver's exit code, or Ray's reason where no driver ran."""
    if details.driver_exit_code is not None:
        return f"{details.status.value}, exit code {details.driver_exit_code} of its driver"
    return f"{details.status.value}: {one_line(details.message or 'no reason given')}"
