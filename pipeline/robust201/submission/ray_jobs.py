"""Run sweeps and training YAMLs as jobs of a Ray cluster, through Ray's Jobs API, which uses HTTP.

A job receives the package and the YAML, without images, weights and results. The head is the server that accepts jobs.
Anyone who reaches a head without token authentication can run code on it.
"""

import asyncio
import logging
import os
import re
import shlex
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

import robust201
from robust201.core.errors import ConfigError, EvaluationError, RobustWarning, one_line
from robust201.core.files import bundled, write_text
from robust201.sweep.config import SweepConfig
from robust201.sweep.sweep_yaml import dump_fields, read_fields, referenced_variables
from robust201.sweep.training_config import TrainingConfig

YAML_NAME = "job.yaml"
"""File name of the sweep or training YAML in a job's folder."""

# Ray's client prefers these variables to its address argument, so they could send the token to another host.
_OVERRIDING_VARIABLES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
# The errors of Ray's client and of its HTTP libraries requests and aiohttp.
_REQUEST_ERRORS = (OSError, RuntimeError, ValueError, aiohttp.ClientError, AuthenticationError)

_CHATTY_LOGGERS = ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk")

_UNSHIPPED_FILES = (".*", "__pycache__", "_bundled", "*.so")
_SHIPPED_LIST = "benchmark_data/downloads.toml"

_RECONNECT_SECONDS = 2.0
_MAX_SILENCE_SECONDS = 300.0
"""Time without a response from the head after which following a job fails; a shorter network failure is tolerated."""


def connect(address: str) -> Any:
    """Connect to a head's Jobs API with Ray's token (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ``~/.ray/auth_token``).

    Raises:
        ConfigError: the address is not HTTP (for another scheme, Ray's client would import a module of that name), the
            head is on another machine and there is no token, or the server is no head or rejects the token.
    """
    url = urlsplit(address)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(
            f"Reading the address failed for {address}: expected http://HOST:8265 or https://HOST. Use the address of "
            "the head's dashboard."
        )
    try:
        loader = AuthenticationTokenLoader.instance()
        loader.reset_cache()  # the token may have changed since an earlier call in this process
        headers = loader.get_token_for_http_header(ignore_auth_mode=True)
        is_local = url.hostname in ("127.0.0.1", "::1", "localhost")
        if not headers and not is_local:
            raise ConfigError(
                f"Submitting failed for {address}: connecting to another machine requires a token, and none is set. "
                "Start the cluster with RAY_AUTH_MODE=token and put its token into ~/.ray/auth_token (docs/ray.md)."
            )
        if url.scheme == "http" and not is_local:
            message = f"The token is sent unencrypted to {address}. Use a tunnel or https to protect it."
            warnings.warn(message, RobustWarning, stacklevel=2)
        for name in _CHATTY_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        with _without_overrides():
            return JobSubmissionClient(address.rstrip("/"), headers=headers)
    except _REQUEST_ERRORS as error:
        raise ConfigError(
            f"Connecting failed for {address}: expected the dashboard of a Ray head, got {one_line(error)}. Check "
            "--address, open the tunnel (ray dashboard CLUSTER.yaml), and copy the cluster's token into "
            "~/.ray/auth_token."
        ) from error


@contextmanager
def _without_overrides() -> Iterator[None]:
    """Remove the variables that override the client's address, during a block."""
    removed_variables = {name: os.environ.pop(name) for name in _OVERRIDING_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(removed_variables)


def write_job_folder(config: SweepConfig | TrainingConfig, source: Path, folder: Path) -> Mapping[str, str]:
    """Write the files that a job needs: the package, bundled files that the YAML names, and the YAML for Ray.

    Args:
        config: the configuration as read on this machine.
        source: a YAML, or the results folder of a sweep.
        folder: an empty folder.

    Returns:
        The environment variables to which the YAML refers, and which are set here; the job resolves them.

    Raises:
        ConfigError: a path in the configuration is relative.
    """
    for field, path in _find_paths(config):
        if not path.is_absolute() and not re.match(r"[a-z][a-z0-9+.-]*:/", str(path)):
            raise ConfigError(
                f"Submitting failed for {source}: the path in `{field}` must be absolute, because a job's working "
                f"folder is deleted with the job, but it is {path}. Use a folder that all machines of the cluster can "
                "access."
            )
    fields = config.model_dump(mode="json") if source.is_dir() else read_fields(source)
    fields["execution"] = (fields.get("execution") or {}) | {"executor": "ray", "ray_address": "auto"}
    package = Path(robust201.__file__).resolve().parent
    shutil.copytree(package, folder / "robust201", ignore=shutil.ignore_patterns(*_UNSHIPPED_FILES))
    for name in {_SHIPPED_LIST, *_find_bundled_names(fields)}:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if bundled(name).is_dir() else shutil.copyfile
        copy(bundled(name), folder / name)
    write_text(folder / YAML_NAME, dump_fields(fields, allow_unicode=True))
    return {name: os.environ[name] for name in sorted(referenced_variables(fields)) if name in os.environ}


def _find_paths(config: SweepConfig | TrainingConfig) -> Iterator[tuple[str, Path]]:
    """Yield each path in a configuration, after the YAML field that contains it."""
    if isinstance(config, TrainingConfig):
        yield "store", config.store
    else:
        yield "results", config.results
        yield from _find_weights_paths(config)
    yield from config.code_files().items()
    for name, dataset in config.datasets.items():
        if dataset.path is not None:
            yield f"datasets.{name}.path", dataset.path
        if dataset.corruptions is not None:
            for field in ("path", "frost_path"):
                path = getattr(dataset.corruptions, field)
                if path is not None:
                    yield f"datasets.{name}.corruptions.{field}", path


def _find_weights_paths(config: SweepConfig) -> Iterator[tuple[str, Path]]:
    if config.checkpoints is not None:
        yield "checkpoints.path", config.checkpoints.path
    if config.weights is not None:
        if config.weights.path is not None:
            yield "weights.path", config.weights.path
        for name, entry in (config.weights.files or {}).items():
            for network, path in entry.items() if isinstance(entry, dict) else [("", entry)]:
                yield f"weights.files.{name}{'.' if network else ''}{network}", path


def _find_bundled_names(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.startswith("bundled:"):
        yield value.removeprefix("bundled:")
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from _find_bundled_names(member)


def entrypoint(options: Sequence[str] = ()) -> str:
    """Return the job's command line, with further options of `run`.

    `python -m` finds the package `robust201` beside the YAML, in the job's folder, before an installed one.
    """
    return shlex.join(["python", "-m", "robust201", "run", YAML_NAME, "--executor", "ray", *options])


def submit_job(
    client: Any,
    config: SweepConfig | TrainingConfig,
    folder: Path,
    variables: Mapping[str, str],
    options: Sequence[str] = (),
) -> str:
    """Upload a job's folder, start the job and return its id: the sweep's name and 8 random hex digits."""
    job_id = f"{config.name}-{uuid.uuid4().hex[:8]}"
    # By default, Ray kills a stopped job 3 seconds after SIGTERM, but its workers need time to finish their parts.
    drain_seconds = int(60 * (config.execution.part_minutes + 1))
    environment = {**variables, "RAY_JOB_STOP_WAIT_TIME_S": str(drain_seconds)}
    try:
        return str(
            client.submit_job(
                entrypoint=entrypoint(options),
                submission_id=job_id,
                runtime_env={"working_dir": str(folder), "env_vars": environment},
                metadata={"robust201_sweep": config.name},
            )
        )
    except _REQUEST_ERRORS as error:
        raise ConfigError(
            f"Submitting failed for {job_id}: the head did not accept the job ({one_line(error)}). Check the "
            "head's log, then submit again."
        ) from error


def follow(client: Any, job_id: str, write: Callable[[str], None]) -> Any:
    """Write a job's log until the job ends and return its `JobDetails` from Ray.

    Raises:
        EvaluationError: the head does not respond for `_MAX_SILENCE_SECONDS`, or does not know the job.
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
                fault = "the head does not know the job" if is_unknown else one_line(error)
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
