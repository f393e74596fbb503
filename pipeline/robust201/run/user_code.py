"""Check of the Python files that a YAML names: the user's consent, and whether they can be executed."""

from collections.abc import Callable
from shlex import quote

from robust201.core.errors import ConfigError
from robust201.core.user_code import UserFunction, hash_file
from robust201.sweep.config import SpaceFile, SweepConfig
from robust201.sweep.training_config import TrainingConfig
from robust201.sweep.user_tasks import UserTaskParameters


def announce_code(config: SweepConfig | TrainingConfig, *, allowed: bool, say: Callable[[str], None]) -> None:
    """List the Python files that a configuration names, before anything is executed.

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
        ConfigError: a file cannot be executed, or does not define the function that the YAML names.
    """
    functions = [(config.space.file, config.space.function)] if isinstance(config.space, SpaceFile) else []
    if isinstance(config, SweepConfig):
        user_tasks = (task for task in config.parameters.values() if isinstance(task, UserTaskParameters))
        functions += [(task.file, task.function_name) for task in user_tasks]
    for path, name in functions:
        UserFunction(path, name, hash_file(path)).load()
