"""Parse FILE:FUNCTION, which names a function in a user's Python file."""

from pathlib import Path
from typing import TYPE_CHECKING

from robust201.cli import console
from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.user_code import UserFunction, hash_file
from robust201.spaces import SPACES
from robust201.spaces.user_file import UserFileSpace

if TYPE_CHECKING:
    from robust201.spaces.base import Space


def parse_function(text: str) -> UserFunction:
    """Parse FILE:FUNCTION, and announce that the file will be executed."""
    file, colon, name = text.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise ConfigError(
            f"Reading the command line failed for {text!r}: it is not of the form FILE:FUNCTION, such as "
            "my_model.py:build. Write a Python file and the name of its function."
        )
    function = UserFunction(Path(file), name, hash_file(Path(file)))
    console.say(f"Executing {file} (SHA-256 {function.sha256[:16]}…)")
    return function


def parse_space(text: str) -> "Space":
    """Return the search space with this name, or the custom space that FILE:FUNCTION defines."""
    if text in SPACES:
        return SPACES[text]
    if ":" not in text:
        raise ConfigError(
            f"Reading the command line failed for --space: expected {', '.join(SPACES)} or FILE:FUNCTION, got {text!r}."
            f"{did_you_mean(text, SPACES)}"
        )
    return UserFileSpace(parse_function(text))
