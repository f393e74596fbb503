"""Reading a sweep YAML: fields to a checked sweep, or one line that says what is wrong and where."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from robust201.core.errors import ArchitectureError, ConfigError, RobustError
from robust201.planning.config import SweepConfig
from robust201.planning.field_errors import describe_problem, steps_of
from robust201.planning.sweep_yaml import find_line, read_fields


def load_config(path: Path, /, **overrides: Any) -> SweepConfig:
    """Read and check a sweep YAML.

    The overrides replace what the file says, those of a section in a mapping; None leaves the file's.

    Raises:
        ConfigError: the file is missing, is no YAML, or a field is unknown or wrong; the closest name is given.
    """
    return override_config(read_fields(path), path, overrides)


def override_config(fields: Mapping[str, Any], path: Path, overrides: Mapping[str, Any]) -> SweepConfig:
    """Check fields of a file after replacing what options of the command line say (see `load_config`)."""

    def find(steps: Sequence[str]) -> str:
        option = _find_option(steps, overrides)
        line = None if option else find_line(path, steps)
        return option or (str(path) if line is None else f"{path}, line {line}")

    return parse_config(_replace(fields, overrides), str(path), find)


def _find_option(steps: Sequence[str], overrides: Mapping[str, Any]) -> str:
    """Name the option of the command line that a field comes from; empty if it is from the file."""
    value: Any = overrides
    for step in steps:
        value = value.get(step) if isinstance(value, Mapping) else None
    if not steps or value is None or isinstance(value, Mapping):
        return ""
    return "--out" if steps[0] == "results" else f"--{steps[-1]}"


def _replace(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    replaced = dict(fields)
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(fields.get(name, {}), Mapping):
            replaced[name] = _replace(fields.get(name, {}), value)
        elif value is not None and not isinstance(value, Mapping):
            replaced[name] = value
    return replaced


def parse_config(
    payload: Mapping[str, Any], source: str, find_place: Callable[[Sequence[str]], str] | None = None
) -> SweepConfig:
    """Check a sweep given as plain values.

    `source` says in errors where they come from, and `find_place`, if given, where exactly a field does.

    Raises:
        ConfigError: a field is unknown or wrong; the closest name is given.
    """
    try:
        return SweepConfig.model_validate(payload)
    except ValidationError as error:
        where = find_place(steps_of(error.errors(include_url=False)[0]["loc"])) if find_place else source
        raise ConfigError(
            f"Reading the sweep failed for {where}: {describe_problem(error, SweepConfig)} docs/configuration.md "
            "explains every field."
        ) from error
    except RobustError as error:
        where = find_place(("architectures",)) if find_place and isinstance(error, ArchitectureError) else source
        raise type(error)(
            f"Reading the sweep failed for {where}: {error} docs/configuration.md explains every field."
        ) from error
