"""Reading a sweep YAML: fields to a checked sweep, or one line that says what is wrong and where."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from robust201.core.errors import ConfigError, RobustError
from robust201.planning.config import SweepConfig
from robust201.planning.field_errors import describe_problem, steps_of
from robust201.planning.sweep_yaml import find_line, read_fields


def load_config(path: Path, **overrides: Any) -> SweepConfig:
    """Read and check a sweep YAML.

    The overrides replace what the file says, those of a section in a mapping; None leaves the file's.

    Raises:
        ConfigError: the file is missing, is no YAML, or a field is unknown or wrong; the closest name is given.
    """
    replaced = {name for name, value in overrides.items() if value is not None and not isinstance(value, Mapping)}

    def find(steps: Sequence[str]) -> int | None:
        return None if steps[:1] and steps[0] in replaced else find_line(path, steps)

    return parse_config(_replace(read_fields(path), overrides), str(path), find)


def _replace(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    replaced = dict(fields)
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(fields.get(name, {}), Mapping):
            replaced[name] = _replace(fields.get(name, {}), value)
        elif value is not None and not isinstance(value, Mapping):
            replaced[name] = value
    return replaced


def parse_config(
    payload: Mapping[str, Any], source: str, find_line: Callable[[Sequence[str]], int | None] = lambda _steps: None
) -> SweepConfig:
    """Check a sweep given as plain values, `source` saying in errors where they come from, `find_line` on which line.

    Raises:
        ConfigError: a field is unknown or wrong; the closest name is given.
    """
    try:
        return SweepConfig.model_validate(payload)
    except ValidationError as error:
        line = find_line(steps_of(error.errors(include_url=False)[0]["loc"]))
        where = source if line is None else f"{source}, line {line}"
        raise ConfigError(
            f"Reading the sweep failed for {where}: {describe_problem(error, SweepConfig)} docs/configuration.md "
            "explains every field."
        ) from error
    except RobustError as error:
        raise type(error)(
            f"Reading the sweep failed for {source}: {error} docs/configuration.md explains every field."
        ) from error
