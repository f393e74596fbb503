"""Python files of the user's, executed once before a run starts, as most mistakes show there."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from robust201.core.errors import ConfigError
from robust201.core.user_code import UserFunction, hash_file
from robust201.planning.config import SpaceFile, SweepConfig
from robust201.planning.training_config import TrainingConfig
from robust201.planning.user_tasks import UserTaskParameters

CHECK_SECONDS = 300.0
"""How long the files may take together; importing PyTorch from a busy file server takes a minute."""

# The child imports the same modules as this process, from the same places.
_CHILD = "import sys; sys.path[:] = {path!r}; from robust201.runtime.code_check import answer_child; answer_child()"


def check_code(config: SweepConfig | TrainingConfig, *, seconds: float = CHECK_SECONDS) -> None:
    """Execute the Python files that a sweep names, with the user's consent, and look for their functions.

    The inline executor computes in this process, so they are executed here; on Ray in a child, which is ended after
    some seconds.

    Raises:
        ConfigError: a file cannot be read or executed, does not come to an end, or lacks its function.
    """
    functions = list(_functions(config))
    if config.execution.executor == "inline":
        for function in functions:
            function.load()
    elif functions:
        _check_in_child(functions, seconds)


def _check_in_child(functions: list[UserFunction], seconds: float) -> None:
    named = ", ".join(dict.fromkeys(str(function.path) for function in functions))
    request = json.dumps([(str(one.path.absolute()), str(one.path), one.name, one.sha256) for one in functions])
    child = [sys.executable, "-c", _CHILD.format(path=sys.path)]
    try:
        done = subprocess.run(child, input=request, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"Loading {named} failed: expected to be executed within {seconds:g} seconds, got no end. Let the file "
            "define functions only."
        ) from error
    refusal = done.stdout
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        refusal = (
            f"Loading {named} failed: expected a file that can be executed, got the end of its process ({last[0]}). "
            "Correct the file."
        )
    if refusal:
        raise ConfigError(refusal)


def _functions(config: SweepConfig | TrainingConfig) -> Iterator[UserFunction]:
    if isinstance(config.space, SpaceFile):
        yield UserFunction(config.space.file, config.space.function, hash_file(config.space.file))
    for given in config.parameters.values() if isinstance(config, SweepConfig) else ():
        if isinstance(given, UserTaskParameters):
            yield UserFunction(given.file, given.function_name, hash_file(given.file))


def answer_child() -> None:
    """Load the functions that standard input names, and print why one cannot be loaded."""
    functions = json.load(sys.stdin)
    answer = os.dup(1)
    os.dup2(2, 1)  # what the files print is no answer
    refusal = ""
    try:
        for path, shown, name, sha256 in functions:
            UserFunction(Path(path), name, sha256, Path(shown)).load()
    except ConfigError as error:
        refusal = str(error)
    with os.fdopen(answer, "w") as stream:
        stream.write(refusal)
    os._exit(0)  # whatever threads the files started
