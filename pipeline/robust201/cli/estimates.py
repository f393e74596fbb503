"""Notes that commands print if they ignore the estimated accuracies of a dataset."""

from pathlib import Path
from typing import TYPE_CHECKING

from robust201.cli import console

if TYPE_CHECKING:
    from robust201.reader.result_files import ResultFiles


def say_unused_estimates(files: "ResultFiles", activity: str) -> None:
    """Print a note if a dataset has estimates, because the command ignores them.

    `activity` is the subject and verb of the note, such as ``figures show``.
    """
    from robust201.reader.estimates import estimates_note

    console.say_each([note for note in [estimates_note(files, activity)] if note])


def say_unused_estimates_in(folders: "set[Path]", activity: str) -> None:
    """Print the note of `say_unused_estimates` for each dataset folder."""
    from robust201.reader.dataset import RobustnessDataset

    for folder in sorted(folders):
        say_unused_estimates(RobustnessDataset(folder).files, activity)
