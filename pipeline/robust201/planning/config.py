"""The sweep YAML: what to evaluate, under which protocol, on what machines (docs/configuration.md has each field)."""

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator, model_validator

from robust201.core.errors import ConfigError, RobustError, closest
from robust201.core.files import bundled
from robust201.core.precision import Precision
from robust201.images import DATASETS
from robust201.planning.sweep_yaml import find_line, read_fields, substitute_variables
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.tasks import CORRUPTIONS, PAPER_KEYS, PERTURBATIONS, perturbation
from robust201.tasks.columns import MEASUREMENTS
from robust201.tasks.parameters import CorruptionParameters, Fields, Parameters

CORRUPTION_GROUP = "corruptions"


def _expand(value: object) -> object:
    """Replace ``${NAME}`` and ``${NAME:-default}``, and find ``bundled:`` files that ship with robust201."""
    if not isinstance(value, str):
        return value
    text = substitute_variables(value)
    if not text or "\0" in text:
        raise ValueError(f"expected a path, got {text!r}. Name a file or folder, '.' for the current one.")
    if text.startswith("bundled:"):
        return bundled(text.removeprefix("bundled:"))
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(f"expected a path, got {text!r}: no such user. Write the folder out.") from error


def _check_shards(value: object) -> object:
    """Replace environment variables in the URL of the shards, and make sure that shards may lie there."""
    if not isinstance(value, str):
        return value
    from robust201.shards.object_store import check_url

    return check_url(substitute_variables(value))


ConfigPath = Annotated[Path, BeforeValidator(_expand)]
ShardsUrl = Annotated[str, BeforeValidator(_check_shards)]


class Section(Fields):
    """Base of every part of the YAML."""


class NetworkSection(Section):
    """The macro skeleton around the cell."""

    channels: Annotated[int, Field(ge=1)] = 16
    cells: Annotated[int, Field(ge=1)] = 5


class CheckpointsSection(Section):
    """Where the imported weights lie, and which of them to take."""

    path: ConfigPath
    epochs: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None


class CorruptionsSection(Section):
    """Where a dataset's corrupted images come from."""

    source: Literal["published", "generated"]
    path: ConfigPath | None = None
    seed: int = 0
    frost: Literal["synthetic", "imagecorruptions"] = "synthetic"
    frost_path: ConfigPath | None = None

    @model_validator(mode="after")
    def _check_paths(self) -> Self:
        if self.source == "published" and self.path is None:
            raise ValueError("expected a path to the published .npy files, got none.")
        if self.frost == "imagecorruptions" and self.source == "generated" and self.frost_path is None:
            raise ValueError("expected frost_path, the folder of the six frost images, got none.")
        return self


class DatasetSection(Section):
    """Where a dataset's images lie; without `corruptions` its corruption keys are left out."""

    path: ConfigPath | None = None
    form: str | None = None
    corruptions: CorruptionsSection | None = None


class ImagesSection(Section):
    """A class-stratified subset of each test split; without a count, all images."""

    count: Annotated[int, Field(ge=1)] | None = None
    seed: int = 0


class ExecutionSection(Section):
    """How the work is done. Nothing here is part of the protocol."""

    executor: Literal["inline", "ray"] = "ray"
    workers: Annotated[int, Field(ge=1)] | None = None
    ray_address: str | None = None
    cpus_per_worker: Annotated[float, Field(gt=0)] = 1.0
    gpus_per_worker: Annotated[float, Field(gt=0)] = 1.0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Field(ge=1)] = 1
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    cuda_graphs: bool = True
    window: Annotated[int, Field(ge=1, le=16)] = 2
    max_attempts: Annotated[int, Field(ge=1)] = 3
    drain_seconds: Annotated[float, Field(gt=0)] | None = None
    part_minutes: Annotated[float, Field(gt=0)] = 15.0
    gmacs_per_second: Annotated[float, Field(gt=0)] | None = None


def _fill_empty(value: object) -> object:
    """Let a name without anything after its colon stand for one with all defaults."""
    if isinstance(value, Mapping):
        return {name: {} if fields is None else fields for name, fields in value.items()}
    return value


def _every_key() -> dict[str, dict[str, Any]]:
    return {key: {} for key in PAPER_KEYS}


class SweepConfig(Section):
    """A whole sweep: the protocol (what decides numbers) and the execution (what does not)."""

    format: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    results: ConfigPath
    shards: ShardsUrl | None = None
    take_imported: bool = False
    """Gone, but still in every plan and exported sweep, whose bytes stay."""
    space: Literal["nasbench201"] = "nasbench201"
    architectures: Literal["evaluated"] | tuple[int | str, ...] = "evaluated"
    network: NetworkSection = NetworkSection()
    checkpoints: CheckpointsSection
    datasets: dict[str, DatasetSection] = Field(min_length=1)
    images: ImagesSection = ImagesSection()
    keys: dict[str, dict[str, Any]] = Field(default_factory=_every_key)
    measurements: tuple[str, ...] = ("accuracy", "confidence", "cm")
    engine: Literal["fused", "reference"] = "fused"
    precision: Precision = "fp32"
    seed: int = 0
    batch_size: Annotated[int, Field(ge=1)] = 250
    execution: ExecutionSection = ExecutionSection()

    @field_validator("take_imported", mode="before")
    @classmethod
    def _check_take_imported(cls, value: object) -> object:
        if value is not False:
            raise ValueError(
                f"expected false, as earlier versions wrote it, got {reprlib.repr(value)}. Remove it, "
                "and read both datasets together: RobustnessDataset(published, ours)."
            )
        return value

    @field_validator("architectures", mode="before")
    @classmethod
    def _check_architectures(cls, value: object) -> object:
        if value != "evaluated":
            if not isinstance(value, list | tuple):
                near = closest(value, ["evaluated"]) if isinstance(value, str) else ""
                raise ValueError(f"expected evaluated, or a list such as [0, 21, 100-199], got {value!r}.{near}")
            wrong = [name for name in value if not isinstance(name, int | str) or isinstance(name, bool)]
            if wrong:
                raise ValueError(f"expected indices, ranges and cell strings, got {wrong[0]!r} among them.")
            select_architectures(tuple(value))
        return value

    @field_validator("datasets", mode="before")
    @classmethod
    def _fill_datasets(cls, value: object) -> object:
        return _fill_empty(value)

    @field_validator("datasets")
    @classmethod
    def _check_datasets(cls, value: dict[str, DatasetSection]) -> dict[str, DatasetSection]:
        for name in value:
            if name not in DATASETS:
                raise ValueError(f"expected a known dataset, got {name!r}.{closest(name, DATASETS)}")
        return value

    @field_validator("keys", mode="before")
    @classmethod
    def _fill_keys(cls, value: object) -> object:
        return _fill_empty(value)

    @field_validator("keys")
    @classmethod
    def _check_keys(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        if not value:
            raise ValueError("expected at least one key, got none.")
        _expand_keys(value)
        return value

    @field_validator("measurements")
    @classmethod
    def _check_measurements(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in MEASUREMENTS:
                raise ValueError(f"expected a known measurement, got {name!r}.{closest(name, MEASUREMENTS)}")
        if not value or len(set(value)) != len(value):
            raise ValueError(f"expected different measurements, got {list(value)}.")
        return tuple(name for name in MEASUREMENTS if name in value)

    @model_validator(mode="after")
    def _check_device(self) -> Self:
        if self.precision == "tf32" and self.execution.device == "cpu":
            raise ValueError("execution.device: expected auto or cuda, since CPUs have no precision tf32, got cpu.")
        return self

    @property
    def parameters(self) -> dict[str, Parameters]:
        """Parameters by key, the group `corruptions` written out, in the order of the table."""
        return _expand_keys(self.keys)

    @property
    def architecture_indices(self) -> tuple[int, ...]:
        """Indices to evaluate, ascending; each stands for its isomorphism class."""
        return select_architectures(self.architectures)

    def keys_of(self, dataset: str) -> tuple[str, ...]:
        """Keys evaluated on a dataset: all of them, or all but the corruptions where it has none."""
        corrupted = self.datasets[dataset].corruptions is not None
        return tuple(key for key in self.parameters if corrupted or PERTURBATIONS[key].kind != "corruption")


def _expand_keys(keys: Mapping[str, Mapping[str, Any]]) -> dict[str, Parameters]:
    written_out: dict[str, Parameters] = {}
    for name, given in keys.items():
        if name == CORRUPTION_GROUP:
            shared = _parse_parameters(name, CorruptionParameters, given)
            written_out |= {key: shared for key in CORRUPTIONS if key not in keys}
            continue
        try:
            row = perturbation(name)
        except ConfigError as error:
            raise ValueError(
                f"expected a known key, got {name!r}.{closest(name, [*PERTURBATIONS, CORRUPTION_GROUP])}"
            ) from error
        if row.key in written_out:
            raise ValueError(f"expected each key in one spelling, got {row.key!r} and {row.published_key!r}.")
        written_out[row.key] = _parse_parameters(name, row.parameters, given)
    return {key: written_out[key] for key in PERTURBATIONS if key in written_out}


def _parse_parameters(name: str, model: type[Parameters], given: Mapping[str, Any]) -> Parameters:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ConfigError(_first_problem(error, model, ("keys", name))) from error


def select_architectures(selection: str | tuple[int | str, ...]) -> tuple[int, ...]:
    """Resolve a selection of architectures to the indices that get evaluated.

    Args:
        selection: ``"evaluated"`` for all 6,466, or indices, ranges such as ``"0-99"`` (those evaluated in it) and cell
            strings.

    Returns:
        Ascending indices. A single architecture stands for its isomorphism class: its lowest index is taken.

    Raises:
        ArchitectureError: an index or string names no architecture, or nothing is selected.
    """
    evaluated = nasbench201.evaluated_indices()
    if selection == "evaluated":
        return evaluated
    if isinstance(selection, str):
        selection = tuple(name for name in selection.split(",") if name.strip())
    indices: set[int] = set()
    for name in selection:
        bounds = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", name) if isinstance(name, str) else None
        if bounds:
            first, last = (nasbench201.resolve(int(bound)).index for bound in bounds.groups())
            indices.update(index for index in evaluated if first <= index <= last)
        else:
            indices.add(nasbench201.resolve(name).isomorph)
    if not indices:
        raise ConfigError(
            f"Selecting architectures failed for {', '.join(map(str, selection)) or 'an empty list'}: expected at "
            "least one evaluated index, got none. "
            "Name indices, ranges such as 0-99, or cell strings."
        )
    return tuple(sorted(indices))


def load_config(path: Path, **overrides: Any) -> SweepConfig:
    """Read and check a sweep YAML.

    Args:
        path: the YAML file.
        **overrides: fields that replace what the file says, those of a section in a mapping; None leaves the file's.

    Returns:
        The sweep, all fields resolved.

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
    """Check a sweep given as plain values.

    Args:
        payload: the fields.
        source: where they come from, for errors.
        find_line: finds the line of a field there.

    Raises:
        ConfigError: a field is unknown or wrong; the closest name is given.
    """
    try:
        return SweepConfig.model_validate(payload)
    except ValidationError as error:
        line = find_line(_steps_of(error.errors(include_url=False)[0]["loc"]))
        where = source if line is None else f"{source}, line {line}"
        raise ConfigError(
            f"Reading the sweep failed for {where}: {_first_problem(error, SweepConfig)} docs/configuration.md "
            "explains every field."
        ) from error
    except RobustError as error:
        raise type(error)(
            f"Reading the sweep failed for {source}: {error} docs/configuration.md explains every field."
        ) from error


_EXPECTATIONS = {
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "too_short": "at least {min_length} of them",
    "string_pattern_mismatch": "letters, digits, dots, dashes and underscores",
    "literal_error": "{expected}",
    "dict_type": "names, each with its fields",
    "model_type": "fields",
    "path_type": "a path",
}
"""What a value should have been, by pydantic's type of error; other types say it well enough themselves."""


def _steps_of(loc: Sequence[int | str]) -> tuple[str, ...]:
    return tuple(str(step) for step in loc if step != "[key]")


def _first_problem(error: ValidationError, model: type[BaseModel], above: tuple[str, ...] = ()) -> str:
    """Say in one line what is wrong with the first wrong field, `above` being where the model stands in the YAML."""
    problem = error.errors(include_url=False)[0]
    steps = (*above, *_steps_of(problem["loc"]))
    place = ".".join(steps)
    if problem["type"] == "extra_forbidden":
        fields = _fields_at(model, problem["loc"][:-1])
        return f"expected a known field, got {place!r}.{closest(steps[-1], fields)}"
    if problem["type"] == "missing":
        return f"expected the field {place!r}, got none."
    if problem["type"] == "value_error":
        return f"{place}: {problem['ctx']['error']}" if place else str(problem["ctx"]["error"])
    template = _EXPECTATIONS.get(problem["type"])
    message = problem["msg"].removeprefix("Input should be ")
    expected = template.format(**problem.get("ctx", {})) if template else f"{message[0].lower()}{message[1:]}"
    choices = re.findall("'([^']*)'", expected) if problem["type"] == "literal_error" else []
    near = closest(str(problem["input"]), choices) if choices else ""
    return f"{place}: expected {expected}, got {reprlib.repr(problem['input'])}.{near}"


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Names of the fields that may stand at a place of the YAML."""
    current: Any = model
    for step in location:
        if isinstance(current, type) and issubclass(current, BaseModel):
            current = current.model_fields[str(step)].annotation if str(step) in current.model_fields else None
        else:  # a mapping's value type: dict[str, X]
            current = getattr(current, "__args__", (None, None))[1]
        for candidate in getattr(current, "__args__", ()):
            if (
                isinstance(candidate, type)
                and issubclass(candidate, BaseModel)
                and getattr(current, "__origin__", None) is not dict
            ):
                current = candidate
    return list(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []
