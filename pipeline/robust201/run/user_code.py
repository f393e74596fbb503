"""Check of the Python files that a YAML names: the user's consent, and whether they can be executed."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

from robust201.core.errors import ConfigError, one_line
from robust201.core.user_code import UserFunction, hash_file
from robust201.sweep.config import SpaceFile, SweepConfig
from robust201.sweep.training_config import TrainingConfig
from robust201.sweep.user_tasks import UserTaskParameters


def announce_code(config: SweepConfig | TrainingConfig, *, allowed: bool, say: Callable[[str], None]) -> None:
    """Print the Python files that a configuration names, before anything is executed.

    Raises:
        ConfigError: there are such files, and the user has not allowed their execution.
    """
    files = {field: quote(str(path)) for field, path in config.code_files().items()}
    if files and not allowed:
        paths = ", ".join(dict.fromkeys(files.values()))
        raise ConfigError(
            f"Executing Python files failed for {config.name}: the YAML names {paths}, and code runs only with your "
            "consent. Read the code, then add --allow-code."
        )
    for field, path in files.items():
        say(f"Will execute {path} ({field}).")


def load_code(config: SweepConfig | TrainingConfig) -> None:
    """Execute the configuration's Python files, so that a mistake is reported before workers start.

    Raises:
        ConfigError: a file cannot be executed, or does not define the function that the YAML names, or the function
            does not accept the arguments with which it will be called.
    """
    functions: list[tuple[Path, str, int, Mapping[str, Any]]] = []
    if isinstance(config.space, SpaceFile):
        functions.append((config.space.file, config.space.function, 2, {}))
    if isinstance(config, SweepConfig):
        user_tasks = (task for task in config.parameters.values() if isinstance(task, UserTaskParameters))
        functions += [
            (task.file, task.function_name, 4 if task.kind == "attack" else 3, task.parameters) for task in user_tasks
        ]
    for path, name, n_arguments, parameters in functions:
        function = UserFunction(path, name, hash_file(path))
        _check_arguments(function.load(), function.label, n_arguments, parameters)


def _check_arguments(function: Callable[..., Any], label: str, n_arguments: int, parameters: Mapping[str, Any]) -> None:
    with suppress(ValueError):  # a few functions of C libraries have no signature
        signature = inspect.signature(function)
        try:
            signature.bind(*range(n_arguments), **parameters)
        except TypeError as error:
            problem = one_line(error).removeprefix("got ")
            raise ConfigError(
                f"Loading {label} failed: expected a function that can be called with {n_arguments} arguments and the "
                f"YAML's `parameters`, got {problem}. Correct the names in the YAML or the function."
            ) from error
