"""Parse FILE:FUNCTION, which names a function in a user's Python file."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.cli import console
from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.user_code import UserFunction, hash_file
from robust201.spaces import SPACES
from robust201.spaces.user_file import UserFileSpace

if TYPE_CHECKING:
    from robust201.spaces.base import Space


@dataclass(frozen=True)
class StepConsent:
    """Consent to execute the Python files of a study's steps; these files are named by the YAML, not by the user.

    Attributes:
        study: study YAML.
        allowed: Python files that the user allowed on the command line.
    """

    study: Path
    allowed: tuple[Path, ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Make `parse_function` check this consent inside a `with` block."""
        token = _step_consent.set(self)
        try:
            yield
        finally:
            _step_consent.reset(token)


_step_consent: ContextVar[StepConsent | None] = ContextVar("step_consent", default=None)


def parse_function(text: str) -> UserFunction:
    """Parse FILE:FUNCTION, and announce that the file will be executed."""
    file, colon, name = text.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise ConfigError(
            f"Reading the command line failed for {text!r}: it is not of the form FILE:FUNCTION, such as "
            "my_model.py:build. Write a Python file and the name of its function."
        )
    if consent := _step_consent.get():
        from robust201.planning.code_consent import check_consent

        check_consent([Path(file)], consent.study, consent.allowed)
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
