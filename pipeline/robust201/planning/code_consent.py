"""Consent to execute Python files: a file that came with data is executed only if the user names it explicitly.

A data folder is a folder that robust201 has written, or any folder below it; others may have published it.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote

from robust201.core.errors import ConfigError
from robust201.core.user_code import hash_file
from robust201.planning.config import SweepConfig
from robust201.planning.inputs import code_copy_path
from robust201.planning.plan_file import PLAN_FILE
from robust201.planning.training_config import TrainingConfig

ALLOW_CODE = "--allow-code"
"""Option that names a Python file to execute; repeatable."""

_DATA_MARKERS = (
    "SHA256SUMS",  # dataset
    "sweep.json",  # dataset that robust201 exported
    "meta.json",  # dataset in the published layout
    "format.json",  # results
    PLAN_FILE,  # results
    "manifest.jsonl",  # checkpoint store
    "manifest.json",  # generated images
)
"""Files that identify folders written by robust201, which may have been published and downloaded."""


def find_data_marker(path: Path) -> Path | None:
    """Return a file that marks `path` or a parent folder as data, or None; also check the targets of symbolic links."""
    absolute_path = Path(os.path.abspath(path))  # noqa: PTH100 - a link in a data folder is data, wherever it points
    candidate_paths = dict.fromkeys((absolute_path, Path(os.path.realpath(path))))
    markers = (
        folder / name
        for candidate_path in candidate_paths
        for folder in (candidate_path, *candidate_path.parents)
        for name in _DATA_MARKERS
    )
    return next((marker for marker in markers if os.path.lexists(marker)), None)


def check_consent(files: Iterable[Path], source: Path, allowed: Sequence[Path]) -> None:
    """Require the user's consent to Python files in data folders and to all files that a YAML in a data folder names.

    `source` is the YAML that names the files; `allowed` are the files that the user passed with `ALLOW_CODE`.

    Raises:
        ConfigError: a file lacks consent.
    """
    consented_paths = {os.path.realpath(path) for path in allowed}
    unconfirmed_paths = [path for path in dict.fromkeys(files) if os.path.realpath(path) not in consented_paths]
    markers = {path: find_data_marker(source) or find_data_marker(path) for path in unconfirmed_paths}
    unconfirmed_paths = [path for path in unconfirmed_paths if markers[path]]
    if unconfirmed_paths:
        paths = ", ".join(map(quote_path, unconfirmed_paths))
        raise ConfigError(
            f"Executing Python files failed for {quote_path(source)}: executing {paths} requires your consent, because "
            f"the YAML or the code came with data ({markers[unconfirmed_paths[0]]}). Read the code first; to execute "
            f"it, add: {' '.join(f'{ALLOW_CODE} {quote_path(path)}' for path in unconfirmed_paths)}"
        )


def files_needing_consent(config: SweepConfig | TrainingConfig) -> list[Path]:
    """Return the Python files of a configuration that need consent: all except those of installed packages."""
    installed = config.installed_code if config.code_files() else set()
    return [path for field, path in config.code_files().items() if field not in installed]


def announce_code(
    config: SweepConfig | TrainingConfig, source: Path, *, allowed: Sequence[Path], say: Callable[[str], None]
) -> None:
    """Check consent to a configuration's Python files, and list them before anything is executed.

    `source` is the YAML or results folder that the configuration was read from.

    Raises:
        ConfigError: see `check_consent`; or a YAML in a data folder names a Ray cluster, whose head can execute code
            in every process that connects to it.
    """
    files = config.code_files()
    check_consent(files_needing_consent(config), _config_file(source), allowed)
    address = config.execution.ray_address if config.execution.executor == "ray" else None
    if address not in (None, "auto") and (marker := find_data_marker(_config_file(source))):
        raise ConfigError(
            f"Connecting to Ray failed for {quote_path(source)}: a YAML that came with data ({marker}) must not set "
            f"execution.ray_address, because a cluster can execute code on this machine; got {address!r}. If you trust "
            "the cluster, copy the YAML to another folder; otherwise use --executor inline."
        )
    for field, path in files.items():
        say(f"Will execute {quote_path(path)} ({field}).")


def announce_copies(
    config: SweepConfig,
    source: Path,
    copy_hashes: Mapping[str, str],
    *,
    allowed: Sequence[Path],
    say: Callable[[str], None],
) -> None:
    """Check consent to the files that `run --share` executes: the copies made when its sweep was prepared.

    Anyone with write access to the results folder can replace the plan and the copies. Therefore a copy must be
    identical to the file in the YAML, or be allowed explicitly. `copy_hashes` contains the SHA-256 of each copy by YAML
    field; a copy's name is its hash.
    """
    files = {field: code_copy_path(config.results, copy_hashes[field]) for field in config.code_files()}
    consented_paths = {os.path.realpath(path) for path in allowed}
    for field, path in config.code_files().items():
        if os.path.realpath(files[field]) in consented_paths:
            continue
        if not path.is_file() or hash_file(path) != copy_hashes[field]:
            raise ConfigError(
                f"Running with --share failed for {quote_path(path)}: the file is missing or was changed after the "
                f"sweep was prepared (SHA-256 {copy_hashes[field][:16]}…). Prepare the sweep again with robust201 plan "
                f"--save; to execute the earlier copy, add: {ALLOW_CODE} {quote_path(files[field])}"
            )
        files[field] = path
        if field not in config.installed_code:
            check_consent([path], _config_file(source), allowed)
    for field, path in files.items():
        say(f"Will execute {quote_path(path)} ({field}).")


def _config_file(source: Path) -> Path:
    return source / PLAN_FILE if source.is_dir() else source


def consent_arguments(files: Iterable[Path]) -> tuple[str, ...]:
    """Return the command-line arguments that allow `files`, for a command run by another process."""
    return tuple(argument for path in dict.fromkeys(files) for argument in (ALLOW_CODE, str(path)))


def quote_path(path: Path) -> str:
    """Quote a path for the shell; escape it if it has line breaks or non-printable characters."""
    return quote(str(path)) if str(path).isprintable() else ascii(str(path))
