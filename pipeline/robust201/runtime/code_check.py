"""Execution of the user's Python files before a run starts, which reveals most mistakes early."""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from robust201.core.errors import ConfigError, InputError
from robust201.core.user_code import UserFunction, hash_file, hash_files
from robust201.planning.config import SpaceFile, SweepConfig
from robust201.planning.loading import parse_config, parse_training
from robust201.planning.training_config import TrainingConfig
from robust201.planning.user_tasks import UserTaskParameters
from robust201.planning.weights import WeightsSource

CHECK_SECONDS = 300.0
"""Time limit for executing all files; importing PyTorch from a busy file server can take a minute."""

WEIGHTS_SECONDS = 60.0
"""Time after which the check builds no more networks to compare them with their weights; workers check the others."""

# The child imports the same modules as this process, from the same paths.
_CHILD_CODE = (
    "import sys; sys.path[:] = {path!r}; from robust201.runtime.code_check import check_in_child; check_in_child()"
)


def check_code(config: SweepConfig | TrainingConfig, *, seconds: float = CHECK_SECONDS) -> None:
    """Execute a configuration's Python files, and look up the functions that the configuration names.

    The user must have consented to their execution. With the inline executor, they are executed in this process, which
    also computes the run. With Ray, they are executed in a child process, which is killed after `seconds`. If a file
    builds a sweep's networks, the networks are compared with their weights, for at most `WEIGHTS_SECONDS`.
    """
    functions = list(_find_functions(config))
    if config.execution.executor == "inline":
        for function in functions:
            function.load()
        _check_weights(config)
    elif functions:
        _check_in_separate_process(config, functions, seconds)


def _check_weights(config: SweepConfig | TrainingConfig) -> None:
    if not isinstance(config, SweepConfig) or not isinstance(config.space, SpaceFile):
        return
    weights = WeightsSource(config, config.make_space(hash_files(config.code_files())))
    deadline = time.monotonic() + WEIGHTS_SECONDS
    for dataset, architecture in itertools.product(config.datasets, config.selected_architectures):
        weights.check_by_building(dataset, architecture)
        if time.monotonic() > deadline:
            return


def _check_in_separate_process(
    config: SweepConfig | TrainingConfig, functions: list[UserFunction], seconds: float
) -> None:
    paths = ", ".join(dict.fromkeys(str(function.path) for function in functions))
    config_field = "sweep" if isinstance(config, SweepConfig) else "trainings"
    request = json.dumps({config_field: config.model_dump(mode="json")})
    child = [sys.executable, "-c", _CHILD_CODE.format(path=sys.path)]
    try:
        completed = subprocess.run(child, input=request, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"Loading {paths} failed: executing the code did not end within {seconds:g} seconds. The file should only "
            "define functions."
        ) from error
    problem = completed.stdout
    if completed.returncode:
        last_lines = completed.stderr.strip().splitlines()[-1:] or [f"exit code {completed.returncode}"]
        problem = f"Loading {paths} failed: executing the code ended its process ({last_lines[0]}). Correct the file."
    if problem:
        raise ConfigError(problem)


def _find_functions(config: SweepConfig | TrainingConfig) -> Iterator[UserFunction]:
    if isinstance(config.space, SpaceFile):
        yield UserFunction(config.space.file, config.space.function, hash_file(config.space.file))
    for parameters in config.parameters.values() if isinstance(config, SweepConfig) else ():
        if isinstance(parameters, UserTaskParameters):
            yield UserFunction(parameters.file, parameters.function_name, hash_file(parameters.file))


def check_in_child() -> None:
    """Load the functions and check the weights of the configuration on standard input; print the first error."""
    request = json.load(sys.stdin)
    result_descriptor = os.dup(1)
    os.dup2(2, 1)  # what the files print must not be mistaken for the result
    problem = ""
    try:
        config = (
            parse_config(request["sweep"], "the sweep")
            if "sweep" in request
            else parse_training(request["trainings"], "standard input")
        )
        for function in _find_functions(config):
            function.load()
        _check_weights(config)
    except InputError as error:
        problem = str(error)
    with os.fdopen(result_descriptor, "w") as stream:
        stream.write(problem)
    os._exit(0)  # the files may have started threads
