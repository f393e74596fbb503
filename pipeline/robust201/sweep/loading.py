"""Load sweep and training YAML files. Each error is one line with the location of the field and the problem."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from robust201.core.errors import ArchitectureError, ConfigError, RobustError
from robust201.sweep.config import SweepConfig
from robust201.sweep.field_errors import describe_problem, field_names_of
from robust201.sweep.sweep_yaml import find_line, read_fields
from robust201.sweep.training_config import TrainingConfig

LocateField = Callable[[Sequence[str]], str]
"""Function from the path of a field (names, outermost first) to its location: file and line, or an option."""

_Model = TypeVar("_Model", bound=BaseModel)


def load_config(path: Path, /, **overrides: Any) -> SweepConfig:
    """Read and check a sweep YAML.

    Overrides replace fields of the file. A mapping replaces only the fields that it names in a section, and None keeps
    the value in the file.

    Raises:
        ConfigError: the file is missing or not valid YAML, or a field is invalid (architectures: ArchitectureError).
    """
    return override_config(read_fields(path), path, overrides)


def override_config(fields: Mapping[str, Any], path: Path, overrides: Mapping[str, Any]) -> SweepConfig:
    """Apply command-line overrides to the fields of a file and validate them (see `load_config`)."""
    if _describes_training_runs(fields):
        raise ConfigError(
            f"Reading the sweep failed for {path}: expected a sweep, got a training YAML. Only plan, run, "
            "submit and status accept it."
        )
    return parse_config(_override_fields(fields, overrides), str(path), _make_locator(path, overrides))


def is_training_yaml(path: Path) -> bool:
    """Return whether a file is a training YAML, judged by its fields."""
    return path.is_file() and _describes_training_runs(read_fields(path))


def _describes_training_runs(fields: Mapping[str, Any]) -> bool:
    return bool({"recipes", "store"} & fields.keys())


def load_training(path: Path, /, **overrides: Any) -> TrainingConfig:
    """Read and check a training YAML, like `load_config` for a sweep."""
    fields = _override_fields(read_fields(path, "training YAML"), overrides)
    return _parse(TrainingConfig, fields, str(path), _make_locator(path, overrides))


def _make_locator(path: Path, overrides: Mapping[str, Any]) -> LocateField:
    """Return the function that locates the fields of a file, and of the overrides, for errors."""

    def locate(field_path: Sequence[str]) -> str:
        option = _find_option(field_path, overrides)
        line = None if option else find_line(path, field_path)
        return option or (str(path) if line is None else f"{path}, line {line}")

    return locate


def _find_option(field_path: Sequence[str], overrides: Mapping[str, Any]) -> str:
    """Return the command-line option that set a field; empty if the field is from the file."""
    override: Any = overrides
    for name in field_path:
        override = override.get(name) if isinstance(override, Mapping) else None
    if not field_path or override is None or isinstance(override, Mapping):
        return ""
    return "--out" if field_path[0] in {"results", "store"} else f"--{field_path[-1]}"


def _override_fields(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged_fields = dict(fields)
    for name, value in overrides.items():
        section = fields.get(name)
        if isinstance(value, Mapping) and (section is None or isinstance(section, Mapping)):
            merged_fields[name] = _override_fields(section or {}, value)
        elif value is not None and not isinstance(value, Mapping):
            merged_fields[name] = value
    return merged_fields


def parse_config(payload: Mapping[str, Any], source: str, locate: LocateField | None = None) -> SweepConfig:
    """Validate the fields of a sweep.

    Errors contain the location that `locate` returns for the field, or `source` if `locate` is None.
    """
    return _parse(SweepConfig, payload, source, locate)


def _parse(model: type[_Model], payload: Mapping[str, Any], source: str, locate: LocateField | None) -> _Model:
    try:
        return model.model_validate(payload)
    except (ValidationError, RobustError) as error:
        error_class: type[RobustError] = ConfigError
        if isinstance(error, ValidationError):
            problem = describe_problem(error, model)
            field_path = field_names_of(error.errors(include_url=False)[0]["loc"]) or _field_path_in(problem, model)
        else:
            error_class, problem = type(error), str(error)
            field_path = ("architectures",) if error_class is ArchitectureError else _field_path_in(problem, model)
        location = locate(field_path) if locate else source
        name, page = ("sweep", "configuration") if model is SweepConfig else ("training YAML", "training")
        raise error_class(
            f"Reading the {name} failed for {location}: {problem} docs/{page}.md explains every field."
        ) from error


def _field_path_in(problem: str, model: type[BaseModel]) -> tuple[str, ...]:
    """Return the path of the first field in a message such as "keys.pgd.steps: expected …"."""
    fields = "|".join(model.model_fields)
    match = re.search(rf"^(?:{fields})(?=:)|(?<![\w.])(?:{fields})(?:\.[\w@-]+)+", problem)
    return tuple(match[0].split(".")) if match else ()
