"""Run sweeps and training YAMLs as jobs of a Ray cluster, through Ray's Jobs API, which uses HTTP.

A job receives the package, the bundled files that the YAML names, and the YAML. It reads other images and weights from
paths on the cluster, and writes its results there. The head is the server that accepts jobs.
Anyone who reaches a head without token authentication can run code on it.
"""

import logging
import os
import re
import shlex
import shutil
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

import robust201
from robust201.core.errors import ConfigError, RobustWarning, one_line
from robust201.core.files import bundled, write_text
from robust201.sweep.config import SweepConfig
from robust201.sweep.sweep_yaml import dump_fields, read_fields, referenced_variables
from robust201.sweep.training_config import TrainingConfig

_Config = SweepConfig | TrainingConfig

YAML_NAME = "job.yaml"
"""File name of the sweep or training YAML in a job's folder."""

_STOP_SECONDS = 900
"""Time for a stopped job to finish its parts if `execution.drain_seconds` is not set; it gets another minute to end."""

_REQUEST_ERRORS = (OSError, RuntimeError, ValueError, AuthenticationError)
"""Errors of Ray's client; those of its HTTP library are OSErrors."""

_CHATTY_LOGGERS = ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk")

_UNSHIPPED_FILES = (".*", "__pycache__", "_bundled", "*.so")
_DOWNLOADS_LIST = "benchmark_data/downloads.toml"


def connect(address: str) -> JobSubmissionClient:
    """Connect to a head's Jobs API with Ray's token (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ``~/.ray/auth_token``).

    Raises:
        ConfigError: the address is not HTTP (for another scheme, Ray's client would import a module of that name), the
            head is on another machine and there is no token, or the server is not a head or rejects the token.
    """
    url = urlsplit(address)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(
            f"Reading the address failed for {address}: expected http://HOST:8265 or https://HOST. Use the address of "
            "the head's dashboard."
        )
    for name in _CHATTY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):  # the client prefers them, and would send the token there
        os.environ.pop(name, None)
    try:
        headers = _make_headers(address, is_local=url.hostname in ("127.0.0.1", "::1", "localhost"))
        return JobSubmissionClient(address.rstrip("/"), headers=headers)
    except _REQUEST_ERRORS as error:
        raise ConfigError(
            f"Connecting failed for {address}: expected the dashboard of a Ray head, got {one_line(error)}. Check "
            "--address, open the tunnel (ray dashboard CLUSTER.yaml), and copy the cluster's token into "
            "~/.ray/auth_token."
        ) from error


def _make_headers(address: str, *, is_local: bool) -> dict[str, str]:
    """Return the headers with the token, and warn if it is sent unencrypted; empty for a local head without a token."""
    token = _read_token(os.environ)
    if not token and not is_local:
        raise ConfigError(
            f"Submitting failed for {address}: connecting to another machine requires a token, and none is set. "
            "Start the cluster with RAY_AUTH_MODE=token and put its token into ~/.ray/auth_token (docs/ray.md)."
        )
    if not is_local and address.startswith("http:"):
        message = f"The token is sent unencrypted to {address}. Use a tunnel or https to protect it."
        warnings.warn(message, RobustWarning, stacklevel=3)
    return {"Authorization": f"Bearer {token}"} if token else {}


def _read_token(environment: Mapping[str, str]) -> str:
    """Return the token from the variables or the file that Ray documents; empty if there is none."""
    if token := environment.get("RAY_AUTH_TOKEN", ""):
        return token.strip()
    path = Path(environment.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def write_job_folder(config: _Config, source: Path, folder: Path) -> dict[str, str]:
    """Write the files that a job needs: the package, its bundled files that the job reads, and the YAML for Ray.

    Args:
        config: the configuration as read on this machine.
        source: a YAML, or the results folder of a sweep.
        folder: an empty folder.

    Returns:
        The environment variables that the YAML refers to and that are set here; the job substitutes them.

    Raises:
        ConfigError: a path in the configuration is relative.
    """
    _check_paths(config, source)
    fields = config.model_dump(mode="json") if source.is_dir() else read_fields(source)
    fields["execution"] = (fields.get("execution") or {}) | {"executor": "ray", "ray_address": "auto"}
    package = Path(robust201.__file__).resolve().parent
    shutil.copytree(package, folder / "robust201", ignore=shutil.ignore_patterns(*_UNSHIPPED_FILES))
    texts = [value for _, value in _iter_fields(fields) if isinstance(value, str)]
    for name in {_DOWNLOADS_LIST, *(text.removeprefix("bundled:") for text in texts if text.startswith("bundled:"))}:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if bundled(name).is_dir() else shutil.copyfile
        copy(bundled(name), folder / name)
    write_text(folder / YAML_NAME, dump_fields(fields, allow_unicode=True))
    return {name: os.environ[name] for name in sorted(referenced_variables(fields)) if name in os.environ}


def _check_paths(config: _Config, source: Path) -> None:
    parameters = config.parameters if isinstance(config, SweepConfig) else {}
    files = {f"keys.{key}.images.file": Path(task.images_file) for key, task in parameters.items() if task.images_file}
    for field, value in _iter_fields(config.model_dump() | config.code_files() | files):
        if isinstance(value, Path) and not value.is_absolute() and not re.match(r"[a-z][a-z0-9+.-]*:/", str(value)):
            raise ConfigError(
                f"Submitting failed for {source}: expected an absolute path in `{field}`, because a job's working "
                f"folder is deleted with the job, got {value}. Use a folder that all machines of the cluster can "
                "access."
            )


def _iter_fields(value: Any, field: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each field of nested mappings, such as ``datasets.cifar10.path``, with its value."""
    if isinstance(value, Mapping):
        for name, member in value.items():
            yield from _iter_fields(member, f"{field}.{name}" if field else str(name))
    else:
        yield field, value


def submit_job(
    client: JobSubmissionClient,
    config: _Config,
    folder: Path,
    variables: Mapping[str, str],
    options: Sequence[str] = (),
) -> str:
    """Upload a job's folder, start the job and return its id: the YAML's `name`, a dash and 8 random hex digits.

    `options` are further options of `run`. In the job's folder, `python -m` finds the package beside the YAML before an
    installed one.
    """
    job_id = f"{config.name}-{uuid.uuid4().hex[:8]}"
    drain_seconds = config.execution.drain_seconds or _STOP_SECONDS
    environment = {**variables, "RAY_JOB_STOP_WAIT_TIME_S": str(int(drain_seconds) + 60)}
    try:
        client.submit_job(
            entrypoint=shlex.join(["python", "-m", "robust201", "run", YAML_NAME, "--executor", "ray", *options]),
            submission_id=job_id,
            runtime_env={"working_dir": str(folder), "env_vars": environment},
            metadata={"robust201_sweep": config.name},
        )
    except _REQUEST_ERRORS as error:
        raise ConfigError(
            f"Submitting failed for {job_id}: the head did not accept the job ({one_line(error)}). Check the "
            "head's log, then submit again."
        ) from error
    return job_id
