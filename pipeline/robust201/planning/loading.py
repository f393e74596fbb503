"""Reading a sweep or training YAML into a checked configuration; errors are one line with the place and the problem."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from robust201.core.errors import ArchitectureError, ConfigError, RobustError
from robust201.core.records import Normalisation
from robust201.planning.config import DatasetSection, SweepConfig
from robust201.planning.field_errors import describe_problem, steps_of
from robust201.planning.sweep_yaml import find_line, read_fields
from robust201.planning.training_config import TrainingConfig

FindPlace = Callable[[Sequence[str]], str]
"""Says where a field is, by the names on the way to it."""

_Model = TypeVar("_Model", bound=BaseModel)


def load_config(path: Path, /, **overrides: Any) -> SweepConfig:
    """Read and check a sweep YAML.

    The overrides replace what the file says, those of a section in a mapping; None leaves the file's.

    Raises:
        ConfigError: the file is missing, is no YAML, or a field is unknown or wrong; the closest name is given.
    """
    config = override_config(read_fields(path), path, overrides)
    _check_normalisations(config.datasets, "sweep", _place_finder(path, overrides))
    return config


def override_config(fields: Mapping[str, Any], path: Path, overrides: Mapping[str, Any]) -> SweepConfig:
    """Check fields of a file after replacing what options of the command line say (see `load_config`)."""
    if _describes_trainings(fields):
        raise ConfigError(
            f"Reading the sweep failed for {path}: expected a sweep, got a training YAML. Train it with: robust201 "
            f"train {path} (plan, status and submit also take it)"
        )
    return parse_config(_replace(fields, overrides), str(path), _place_finder(path, overrides))


def is_training(path: Path) -> bool:
    """Whether a YAML describes trainings, by its fields."""
    return path.is_file() and _describes_trainings(read_fields(path))


def _describes_trainings(fields: Mapping[str, Any]) -> bool:
    return bool({"recipes", "store"} & fields.keys())


def load_training(path: Path, /, **overrides: Any) -> TrainingConfig:
    """Read and check a training YAML, like `load_config` for a sweep."""
    fields = read_fields(path, "trainings")
    if not _describes_trainings(fields) and "results" in fields:
        raise ConfigError(
            f"Reading the trainings failed for {path}: expected a training YAML, got a sweep. Run it with: robust201 "
            f"run {path}"
        )
    find_place = _place_finder(path, overrides)
    config = parse_training(_replace(fields, overrides), str(path), find_place)
    _check_normalisations(config.datasets, "trainings", find_place)
    return config


def _check_normalisations(datasets: Mapping[str, DatasetSection], what: str, find_place: FindPlace) -> None:
    """Reject numbers that no pixels in [0, 1] have, but only in a YAML: plans of earlier versions may hold them."""
    for dataset, section in datasets.items():
        given = section.normalisation
        problem = None if given is None else Normalisation(given.mean, given.std).problem
        if problem is not None:
            steps = ("datasets", dataset, "normalisation", problem.field)
            raise ConfigError(
                f"Reading the {what} failed for {find_place(steps)}: {'.'.join(steps)}: {problem.text} "
                "docs/configuration.md explains every field."
            )


def _place_finder(path: Path, overrides: Mapping[str, Any]) -> FindPlace:
    def find(steps: Sequence[str]) -> str:
        option = _find_option(steps, overrides)
        line = None if option else find_line(path, steps)
        return option or (str(path) if line is None else f"{path}, line {line}")

    return find


def _find_option(steps: Sequence[str], overrides: Mapping[str, Any]) -> str:
    """Name the option of the command line that a field comes from; empty if it is from the file."""
    value: Any = overrides
    for step in steps:
        value = value.get(step) if isinstance(value, Mapping) else None
    if not steps or value is None or isinstance(value, Mapping):
        return ""
    return "--out" if steps[0] in {"results", "store"} else f"--{steps[-1]}"


def _replace(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    replaced = dict(fields)
    for name, value in changes.items():
        before = fields.get(name)
        if isinstance(value, Mapping) and (before is None or isinstance(before, Mapping)):
            replaced[name] = _replace(before or {}, value)
        elif value is not None and not isinstance(value, Mapping):
            replaced[name] = value
    return replaced


def parse_config(payload: Mapping[str, Any], source: str, find_place: FindPlace | None = None) -> SweepConfig:
    """Check a sweep given as plain values.

    `source` says in errors where they come from, and `find_place`, if given, where exactly a field does.
    """
    return _parse(SweepConfig, payload, source, find_place, "sweep", "docs/configuration.md")


def parse_training(payload: Mapping[str, Any], source: str, find_place: FindPlace | None = None) -> TrainingConfig:
    """Check a training configuration given as plain values (see `parse_config`)."""
    return _parse(TrainingConfig, payload, source, find_place, "trainings", "docs/training.md")


def _parse(
    model: type[_Model], payload: Mapping[str, Any], source: str, find_place: FindPlace | None, what: str, page: str
) -> _Model:
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        problem = describe_problem(error, model)
        steps = steps_of(error.errors(include_url=False)[0]["loc"]) or _steps_in(problem, model)
        where = find_place(steps) if find_place else source
        raise ConfigError(f"Reading the {what} failed for {where}: {problem} {page} explains every field.") from error
    except RobustError as error:
        steps = ("architectures",) if isinstance(error, ArchitectureError) else _steps_in(str(error), model)
        where = find_place(steps) if find_place else source
        raise type(error)(f"Reading the {what} failed for {where}: {error} {page} explains every field.") from error


def _steps_in(problem: str, model: type[BaseModel]) -> tuple[str, ...]:
    """Find the field that a message names first, as in "keys.pgd.steps: expected …": names on the way to it."""
    fields = "|".join(model.model_fields)
    found = re.search(rf"^(?:{fields})(?=:)|(?<![\w.])(?:{fields})(?:\.[\w@-]+)+", problem)
    return tuple(found[0].split(".")) if found else ()
