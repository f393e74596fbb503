"""Run sweeps and training YAMLs as jobs of a Ray cluster, through Ray's Jobs API, which uses HTTP."""

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

from robust201.core.errors import ConfigError, EvaluationError, did_you_mean, one_line
from robust201.submission.access import Access
from robust201.submission.shipment import Shipment

# Ray's client prefers these variables to its address argument, so they could send the token to another host.
_OVERRIDING_VARIABLES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
# The errors of Ray's client and of its HTTP libraries requests and aiohttp.
_REQUEST_ERRORS = (OSError, RuntimeError, ValueError, aiohttp.ClientError, AuthenticationError)

_CHATTY_LOGGERS = ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk")

_RECONNECT_SECONDS = 2.0
_MAX_SILENCE_SECONDS = 300.0
"""Time without a response from the head after which following a job fails; a shorter network failure is tolerated."""


def connect(access: Access) -> Any:
    """Connect to a head's Jobs API."""
    access.check_reachable()
    for name in _CHATTY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with _without_overrides():
            return JobSubmissionClient(access.address, headers=access.headers())
    except AuthenticationError as error:
        fault = "it requires a token" if access.token is None else "it rejects the token"
        raise ConfigError(
            f"Connecting failed for {access.address}: {fault}. Copy the cluster's token "
            "from the head (ray get-auth-token) into ~/.ray/auth_token or RAY_AUTH_TOKEN."
        ) from error
    except _REQUEST_ERRORS as error:
        raise ConfigError(
            f"Connecting failed for {access.address}: the server is not a Ray head ({one_line(error)}). "
            "Check --address: it must be the address of the head's dashboard."
        ) from error


@contextmanager
def _without_overrides() -> Iterator[None]:
    """Remove the variables that override the client's address, during a block."""
    removed_variables = {name: os.environ.pop(name) for name in _OVERRIDING_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(removed_variables)


def entrypoint(shipment: Shipment) -> str:
    """Return the job's command line.

    `python -m` finds the package `robust201` beside the YAML, in the archive, before an installed one.
    """
    command = ["python", "-m", "robust201", "run", shipment.file_name, "--executor", "ray"]
    return shlex.join([*command, *shipment.filter_options])


def submit_job(client: Any, shipment: Shipment, archive: Path) -> str:
    """Upload an archive, start its job and return the job's id: the sweep's name and 8 random hex digits."""
    job_id = f"{shipment.config.name}-{uuid.uuid4().hex[:8]}"
    # By default, Ray kills a stopped job 3 seconds after SIGTERM, but its workers need time to finish their parts.
    drain_seconds = int(60 * (shipment.config.execution.part_minutes + 1))
    environment = {**shipment.variables, "RAY_JOB_STOP_WAIT_TIME_S": str(drain_seconds)}
    try:
        return str(
            client.submit_job(
                entrypoint=entrypoint(shipment),
                submission_id=job_id,
                runtime_env={"working_dir": str(archive), "env_vars": environment},
                metadata={"robust201_sweep": shipment.config.name},
            )
        )
    except _REQUEST_ERRORS as error:
        raise ConfigError(
            f"Submitting failed for {job_id}: the head did not accept the job ({one_line(error)}). Check the "
            "head's log, then submit again."
        ) from error


def _read_statuses(client: Any) -> dict[str, JobStatus]:
    return {job.submission_id: job.status for job in client.list_jobs() if job.submission_id}


def check_job(client: Any, job_id: str) -> None:
    """Check that a job exists on the cluster."""
    try:
        statuses = _read_statuses(client)
    except _REQUEST_ERRORS as error:
        raise ConfigError(
            f"Looking up the job failed for {job_id}: the head did not list its jobs ({one_line(error)}). Try again."
        ) from error
    if job_id not in statuses:
        suggestion = did_you_mean(job_id, statuses) if statuses else " The cluster has no jobs."
        raise ConfigError(f"Looking up the job failed for {job_id}: the cluster has no job with this id.{suggestion}")


def follow(client: Any, job_id: str, write: Callable[[str], None]) -> Any:
    """Write a job's log until the job ends and return its `JobDetails` from Ray.

    Raises:
        EvaluationError: the head does not respond for `_MAX_SILENCE_SECONDS`, or no longer knows the job.
    """
    n_written = 0

    async def tail() -> None:
        """Write new text until the job or the connection ends; each connection sends the log from its start."""
        nonlocal n_written
        n_received = 0
        async for text in client.tail_job_logs(job_id):
            n_received += len(text)
            if n_received > n_written:
                write(text[-(n_received - n_written) :])
                n_written = n_received

    last_reply = time.monotonic()
    while True:
        is_log_complete = False
        with suppress(*_REQUEST_ERRORS):  # the job's state is requested separately below
            asyncio.run(tail())
            is_log_complete = True
        try:
            details = client.get_job_info(job_id)
            last_reply = time.monotonic()
            if details.status.is_terminal():
                if not is_log_complete:
                    write(client.get_job_logs(job_id)[n_written:])
                return details
        except _REQUEST_ERRORS as error:
            is_unknown = "status code 404" in str(error)
            if is_unknown or time.monotonic() - last_reply > _MAX_SILENCE_SECONDS:
                fault = (
                    "the head no longer knows the job, for example because it was restarted"
                    if is_unknown
                    else one_line(error)
                )
                raise EvaluationError(
                    f"Following the job failed for {job_id}: its state is unknown ({fault}). Finished work is kept; "
                    "submit again to continue."
                ) from error
        time.sleep(_RECONNECT_SECONDS)


def exit_code_of(details: Any) -> int:
    """Return robust201's exit code for an ended job: the exit code of its driver if that is 2, 3 or 4, otherwise 3."""
    if details.status == JobStatus.SUCCEEDED:
        return 0
    return details.driver_exit_code if details.driver_exit_code in (2, 3, 4) else 3


def describe_end(details: Any) -> str:
    """Return a line about the end of a job: its driver's exit code, or Ray's message if no driver ran."""
    if details.driver_exit_code is not None:
        return f"{details.status.value}, exit code {details.driver_exit_code} of its driver"
    return f"{details.status.value}: {one_line(details.message or 'no reason given')}"
