"""Parse FILE:FUNCTION, which names a function in a user's Python file."""

from typing import TYPE_CHECKING

from robust201.cli import console
from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.user_code import UserFunction
from robust201.core.user_code import parse_function as core_parse_function
from robust201.networks.spaces import SPACES
from robust201.networks.user_file import UserFileSpace

if TYPE_CHECKING:
    from robust201.networks.space import Space


def parse_function(text: str) -> UserFunction:
    """Parse FILE:FUNCTION, and announce that the file will be executed."""
    function = core_parse_function(text)
    console.say(f"Executing {function.path} (SHA-256 {function.sha256[:16]}…)")
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
