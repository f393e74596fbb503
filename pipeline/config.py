"""The sweep YAML: what to evaluate, under which protocol, on what machines (docs/configuration.md has each field)."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline.datasets import DATASETS
from pipeline.errors import ConfigError, RobustError, closest
from pipeline.files import bundled
from pipeline.measurements import MEASUREMENTS
from pipeline.perturbations import CORRUPTIONS, PERTURBATIONS, CorruptionParameters, Parameters, perturbation
from pipeline.spaces import nasbench201

CORRUPTION_GROUP = "corruptions"
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def _expand(value: object) -> object:
    """Replace ``${NAME}`` and ``${NAME:-default}``, and find ``bundled:`` files that ship with robust201."""
    if not isinstance(value, str):
        return value

    def substitute(match: re.Match[str]) -> str:
        name, default = match.groups()
        text = os.environ.get(name, default)
        if text is None:
            raise ValueError(
                f"expected the environment variable {name} to be set, got none; export {name}=FOLDER first"
            )
        return text

    text = _VARIABLE.sub(substitute, value)
    return bundled(text.removeprefix("bundled:")) if text.startswith("bundled:") else Path(text).expanduser()


ConfigPath = Annotated[Path, BeforeValidator(_expand)]


class Section(BaseModel):
    """Base of every part of the YAML: immutable, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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
            raise ValueError("expected a path to the published .npy files, got none")
        if self.frost == "imagecorruptions" and self.source == "generated" and self.frost_path is None:
            raise ValueError("expected frost_path, the folder of the six frost images, got none")
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
    window: Annotated[int, Field(ge=1, le=16)] = 2
    max_attempts: Annotated[int, Field(ge=1)] = 3
    part_minutes: Annotated[float, Field(gt=0)] = 15.0
    gmacs_per_second: Annotated[float, Field(gt=0)] = 2000.0


def _every_key() -> dict[str, dict[str, Any]]:
    return {key: {} for key in PERTURBATIONS}


class SweepConfig(Section):
    """A whole sweep: the protocol (what decides numbers) and the execution (what does not)."""

    format: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    results: ConfigPath
    space: Literal["nasbench201"] = "nasbench201"
    architectures: Literal["evaluated"] | tuple[int | str, ...] = "evaluated"
    network: NetworkSection = NetworkSection()
    checkpoints: CheckpointsSection
    datasets: dict[str, DatasetSection] = Field(min_length=1)
    images: ImagesSection = ImagesSection()
    keys: dict[str, dict[str, Any]] = Field(default_factory=_every_key)
    measurements: tuple[str, ...] = ("accuracy", "confidence", "cm")
    engine: Literal["reference", "fused"] = "reference"
    precision: Literal["fp32"] = "fp32"
    seed: int = 0
    batch_size: Annotated[int, Field(ge=1)] = 250
    execution: ExecutionSection = ExecutionSection()

    @field_validator("architectures")
    @classmethod
    def _check_architectures(cls, value: Literal["evaluated"] | tuple[int | str, ...]) -> Any:
        select_architectures(value)
        return value

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
        if isinstance(value, Mapping):
            return {key: parameters if parameters is not None else {} for key, parameters in value.items()}
        return value

    @field_validator("keys")
    @classmethod
    def _check_keys(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        if not value:
            raise ValueError("expected at least one key, got none")
        _expand_keys(value)
        return value

    @field_validator("measurements")
    @classmethod
    def _check_measurements(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in MEASUREMENTS:
                raise ValueError(f"expected a known measurement, got {name!r}.{closest(name, MEASUREMENTS)}")
        if not value or len(set(value)) != len(value):
            raise ValueError(f"expected different measurements, got {list(value)}")
        return tuple(name for name in MEASUREMENTS if name in value)

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
        written_out[row.key] = _parse_parameters(name, row.parameters, given)
    return {key: written_out[key] for key in PERTURBATIONS if key in written_out}


def _parse_parameters(name: str, model: type[Parameters], given: Mapping[str, Any]) -> Parameters:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"keys.{name}.{_first_problem(error, model)}") from error


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
    if isinstance(selection, str):
        selection = () if selection == "evaluated" else tuple(selection.split(","))
        if not selection:
            return evaluated
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
            f"Selecting architectures failed for {selection!r}: expected at least one evaluated index, got none. "
            "Name indices, ranges such as 0-99, or cell strings."
        )
    return tuple(sorted(indices))


class _StrictLoader(yaml.SafeLoader):
    """A safe loader that refuses a field given twice, where YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"field {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def load_config(path: Path, **overrides: Any) -> SweepConfig:
    """Read and check a sweep YAML.

    Args:
        path: the YAML file.
        **overrides: top-level fields that replace what the file says; None leaves the file's value.

    Returns:
        The sweep, all fields resolved.

    Raises:
        ConfigError: the file is missing, is no YAML, or a field is unknown or wrong; the closest name is given.
    """
    try:
        text = path.read_text(encoding="utf-8")
        # _StrictLoader is a SafeLoader: it builds plain values only
        payload = yaml.load(text, Loader=_StrictLoader)  # noqa: S506
    except OSError as error:
        raise ConfigError(
            f"Reading the sweep failed for {path}: expected a YAML file, got {error.strerror}. See jobs/ for examples."
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        summary = " ".join(str(error).split())
        raise ConfigError(f"Reading the sweep failed for {path}: expected YAML, got an error: {summary}.") from error
    if not isinstance(payload, dict):
        raise ConfigError(f"Reading the sweep failed for {path}: expected fields, got {type(payload).__name__}.")
    payload |= {name: value for name, value in overrides.items() if value is not None}
    return parse_config(payload, str(path))


def parse_config(payload: Mapping[str, Any], source: str) -> SweepConfig:
    """Check a sweep given as plain values.

    Raises:
        ConfigError: a field is unknown or wrong; the closest name is given.
    """
    try:
        return SweepConfig.model_validate(payload)
    except ValidationError as error:
        raise ConfigError(
            f"Reading the sweep failed for {source}: {_first_problem(error, SweepConfig)} docs/configuration.md "
            "explains every field."
        ) from error
    except RobustError as error:
        raise type(error)(f"Reading the sweep failed for {source}: {error}") from error


def _first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    problem = error.errors(include_url=False)[0]
    location = ".".join(str(step) for step in problem["loc"])
    if problem["type"] == "extra_forbidden":
        fields = _fields_at(model, problem["loc"][:-1])
        return f"expected a known field, got {location!r}.{closest(str(problem['loc'][-1]), fields)}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{location}: {message}" if location else message
    if problem["type"] == "missing":
        return f"expected the field {location!r}, got none."
    return f"{location}: {message[0].lower()}{message[1:]}, got {problem['input']!r}."


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
