"""Python files that a sweep names are code: a run names them, and executes none that came with a dataset."""

from collections.abc import Callable
from pathlib import Path

from robust201.core.errors import ConfigError
from robust201.planning.config import SweepConfig
from robust201.planning.training_config import TrainingConfig

_SIGNS_OF_A_DATASET = ("SHA256SUMS", "sweep.json")
"""What `export` writes beside the sweep YAML of a dataset."""


def announce_code(
    config: SweepConfig | TrainingConfig, sweep: Path, *, is_allowed: bool, say: Callable[[str], None]
) -> None:
    """Say which Python files workers will execute, before anything is executed.

    Raises:
        ConfigError: the sweep came with a dataset or is read from a results folder, names code, and that is not
            allowed.
    """
    files = config.code_files()
    folders = {sweep.absolute().parent, sweep.resolve().parent}
    signs = [folder / name for folder in folders for name in _SIGNS_OF_A_DATASET if (folder / name).exists()]
    if files and (signs or sweep.is_dir()) and not is_allowed:
        named = ", ".join(str(path) for path in dict.fromkeys(files.values()))
        origin = "is read from a results folder" if sweep.is_dir() else "came with a dataset"
        raise ConfigError(
            f"Reading the sweep failed for {sweep}: expected no Python files in a sweep that {origin}, got "
            f"{named}. Read them first; then run the sweep with --allow-code."
        )
    for field, path in files.items():
        say(f"Will execute {path} ({field}).")
