"""A note of commands that use counts alone, where a dataset also has estimates."""

from pathlib import Path
from typing import TYPE_CHECKING

from robust201.cli import console

if TYPE_CHECKING:
    from robust201.reader.result_files import ResultFiles


def say_unused_estimates(files: "ResultFiles", what: str) -> None:
    """Say that something, such as ``figures show``, counts only; nothing where there are no estimates."""
    from robust201.reader.estimates import describe_unused

    console.say_each([note for note in [describe_unused(files, what)] if note])


def say_unused_in(folders: "set[Path]", what: str) -> None:
    """Say it of the folders of datasets (see `say_unused_estimates`)."""
    from robust201.reader.dataset import RobustnessDataset

    for folder in sorted(folders):
        say_unused_estimates(RobustnessDataset(folder).files, what)
