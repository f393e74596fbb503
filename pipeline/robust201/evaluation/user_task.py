"""User-defined tasks: a function of a Python file, adapted to the contract of the built-in tasks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from robust201.core.user_code import UserFunction
from robust201.tasks import Task


@dataclass(frozen=True, kw_only=True)
class UserTask(Task):
    """A user-defined task.

    Attributes:
        function: the user's function.
        function_parameters: the function's parameters from the sweep.
    """

    function: UserFunction
    function_parameters: Mapping[str, Any] = field(hash=False)

    def located(self, path: Path, sha256: str) -> "UserTask":
        """Return the task with a new path for the function's file, and the hash that this file must have."""
        return replace(self, function=self.function.located(path, sha256))

    def uses_runner(self, engine: str) -> bool:
        """Return False: every engine calls a user's attack once per batch."""
        del engine
        return False

    def load(self, engine: str = "reference") -> Callable[..., Any]:
        """Load the function (which imports torch), and adapt it to the contract of perturbations or measures.

        Raises:
            ConfigError: the file is missing, differs from its hash, cannot be executed, or lacks the function.
        """
        del engine
        from robust201.evaluation.user_calls import call_attack, call_measure

        call = call_measure if self.kind == "measure" else call_attack
        function, label = self.function.load(), self.function.label
        return lambda context, _parameters, request: call(function, label, self.function_parameters, context, request)
