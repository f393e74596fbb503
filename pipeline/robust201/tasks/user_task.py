"""A task of the user's own as a row like any other: a function of a Python file, adapted to the contract."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from robust201.core.user_code import UserFunction
from robust201.tasks import Task


@dataclass(frozen=True, kw_only=True)
class UserTask(Task):
    """One row that is in no table.

    Attributes:
        function: the user's function.
    """

    function: UserFunction

    def located(self, path: Path, sha256: str) -> "UserTask":
        """Say where a copy of the file lies, and what its hash must be."""
        return replace(self, function=UserFunction(path, self.function.name, sha256))

    def wants_job(self, engine: str) -> bool:
        """A user's attack is called image batch by image batch by every engine."""
        del engine
        return False

    def load(self, engine: str = "reference") -> Callable[..., Any]:
        """Load the function, and adapt it to the contract of perturbations or measures (imports torch).

        Raises:
            ConfigError: the file is gone, differs from its hash, cannot be executed, or lacks the function.
        """
        del engine
        from robust201.tasks.user_calls import call_attack, call_measure

        call = call_measure if self.kind == "measure" else call_attack
        return functools.partial(call, self.function.load(), self.function.label)
