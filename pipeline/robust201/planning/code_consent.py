"""Consent to the Python files that a YAML names: those that came with data are executed only if the user names them."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote

from robust201.core.errors import ConfigError
from robust201.core.user_code import hash_file
from robust201.planning.config import SweepConfig
from robust201.planning.inputs import kept_code
from robust201.planning.plan_file import PLAN_FILE
from robust201.planning.training_config import TrainingConfig

ALLOW_CODE = "--allow-code"
"""Option that names a Python file to execute; repeatable."""

_DATA_MARKS = (
    *("SHA256SUMS", "sweep.json", "meta.json"),  # dataset, of this or the published layout
    *("format.json", PLAN_FILE),  # results
    "manifest.jsonl",  # checkpoint store
    "manifest.json",  # generated images
    "study.md",  # output of a study
)
"""Files of the folders that robust201 writes and that people publish."""


def find_data_mark(path: Path) -> Path | None:
    """Return a file that marks `path`, or a folder above it, as data; links are followed, and looked at themselves."""
    lexical = Path(os.path.abspath(path))  # noqa: PTH100 - a link that came with data is data, wherever it leads
    spellings = dict.fromkeys((lexical, Path(os.path.realpath(path))))
    marks = (
        folder / name for spelling in spellings for folder in (spelling, *spelling.parents) for name in _DATA_MARKS
    )
    return next((mark for mark in marks if os.path.lexists(mark)), None)


def check_consent(files: Iterable[Path], source: Path, allowed: Sequence[Path]) -> None:
    """Require the user's consent to Python files that lie in data, or are named by a YAML that does.

    `source` is the YAML that names the files; `allowed` are the files that the user named by `ALLOW_CODE`.
    """
    consented = {os.path.realpath(path) for path in allowed}
    lacking = [path for path in dict.fromkeys(files) if os.path.realpath(path) not in consented]
    marks = {path: find_data_mark(source) or find_data_mark(path) for path in lacking}
    lacking = [path for path in lacking if marks[path]]
    if lacking:
        named = ", ".join(map(show_path, lacking))
        raise ConfigError(
            f"Executing Python files failed for {show_path(source)}: expected consent to execute {named}, as files "
            f"that came with data may be anybody's ({marks[lacking[0]]}), got none. Read the code first; to execute "
            f"it, add: {' '.join(f'{ALLOW_CODE} {show_path(path)}' for path in lacking)}"
        )


def files_to_consent(config: SweepConfig | TrainingConfig) -> list[Path]:
    """List the Python files of a configuration but those of installed packages, which the user chose to install."""
    installed = config.installed_code if config.code_files() else set()
    return [path for field, path in config.code_files().items() if field not in installed]


def announce_code(
    config: SweepConfig | TrainingConfig, source: Path, *, allowed: Sequence[Path], say: Callable[[str], None]
) -> None:
    """Check consent to the Python files of a configuration, and name them before anything is executed.

    `source` is the YAML, or the results folder, that the configuration was read from.

    Raises:
        ConfigError: see `check_consent`; or a YAML that lies in data names a Ray cluster, whose head can execute code
            in every process that connects to it.
    """
    files = config.code_files()
    check_consent(files_to_consent(config), _file_of(source), allowed)
    address = config.execution.ray_address if config.execution.executor == "ray" else None
    if address not in (None, "auto") and (mark := find_data_mark(_file_of(source))):
        raise ConfigError(
            f"Connecting to Ray failed for {show_path(source)}: expected no execution.ray_address in a YAML that came "
            f"with data ({mark}), as a cluster can execute code on this machine, got {address!r}. Copy the YAML to a "
            "folder of your own if you know the cluster, or use --executor inline."
        )
    for field, path in files.items():
        say(f"Will execute {show_path(path)} ({field}).")


def announce_copies(
    config: SweepConfig,
    source: Path,
    planned: Mapping[str, str],
    *,
    allowed: Sequence[Path],
    say: Callable[[str], None],
) -> None:
    """Check consent to what a share executes: the copies that were made when its sweep was prepared.

    Whoever can write to the results folder can replace plan and copies. So a copy must equal the file that the YAML
    names, or be named itself; the name of a copy is its hash. `planned` is the SHA-256 of each copy by the field that
    names the file.
    """
    files = {field: kept_code(config.results, planned[field]) for field in config.code_files()}
    consented = {os.path.realpath(path) for path in allowed}
    for field, path in config.code_files().items():
        if os.path.realpath(files[field]) in consented:
            continue
        if not path.is_file() or hash_file(path) != planned[field]:
            raise ConfigError(
                f"Running with --share failed for {show_path(path)}: expected the file that was prepared (SHA-256 "
                f"{planned[field][:16]}…), got another or none. Prepare the sweep again with robust201 plan --save; to "
                f"execute the copy that was made then, add: {ALLOW_CODE} {show_path(files[field])}"
            )
        files[field] = path
        if field not in config.installed_code:
            check_consent([path], _file_of(source), allowed)
    for field, path in files.items():
        say(f"Will execute {show_path(path)} ({field}).")


def _file_of(source: Path) -> Path:
    return source / PLAN_FILE if source.is_dir() else source


def consent_words(files: Iterable[Path]) -> tuple[str, ...]:
    """Write out the consent to files, for a command that another process runs."""
    return tuple(word for path in dict.fromkeys(files) for word in (ALLOW_CODE, str(path)))


def show_path(path: Path) -> str:
    """Quote a path for the shell; one with line breaks or invisible characters is escaped."""
    return quote(str(path)) if str(path).isprintable() else ascii(str(path))
