"""Model of the sweep YAML: networks, datasets, protocol and execution (docs/configuration.md describes each field).

In docstrings, (protocol) marks fields that are part of the protocol, and (protocol, by hash) fields whose files are
part of it by their hashes.
"""

import re
import reprlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.precision import MAX_THREADS, Precision
from robust201.core.records import (
    MAX_CLASSES,
    ArchitectureId,
    ImageSelection,
    Normalisation,
    Weights,
    format_architecture,
)
from robust201.core.strict_model import MAX_COUNT, Cells, Channels, PositiveFloat, PositiveInt, StrictModel
from robust201.core.user_code import UserFunction
from robust201.images import DATASETS
from robust201.images.specs import DatasetSpec, Resize, custom_dataset
from robust201.networks.space import Space
from robust201.networks.spaces import DEFAULT_SPACE, SPACES
from robust201.networks.user_file import DEFAULT_GMACS, UserFileSpace
from robust201.sweep.field_errors import describe_problem
from robust201.sweep.sweep_yaml import ConfigPath, substitute_variables
from robust201.sweep.user_tasks import MAX_NAME_BYTES, UserTaskParameters, is_custom_name, make_task
from robust201.tasks import KEY_GROUPS, PAPER_KEYS, TASKS, Task, expand_keys, find_task, suggest_key
from robust201.tasks.columns import (
    COLUMNS,
    MAX_COUNTED_CLASSES,
    MAX_MATRIX_CLASSES,
    MEASUREMENTS,
    PUBLISHED_MEASUREMENTS,
    requested_columns,
)
from robust201.tasks.parameters import Parameters

_ModelT = TypeVar("_ModelT", bound=StrictModel)
_ValuesT = TypeVar("_ValuesT", bound=Collection[Any])

MAX_NAME_LENGTH = 100
"""Maximum number of characters of a name that becomes part of file names."""


def _check_shards(value: object) -> object:
    if not isinstance(value, str):
        return value
    from robust201.store.object_store import check_url

    return check_url(substitute_variables(value))


GPU_GMACS = 2000.0
"""Billion multiply-accumulates per second that one GPU is assumed to sustain."""

CPU_GMACS = 10.0
"""Billion multiply-accumulates per second that one CPU thread is assumed to sustain. The value was measured for cells
that consist mostly of pooling, which are slow. With a higher value, the parts into which work is divided would
take too long for such cells."""

MAX_IMAGE_SIZE = 4_096
MAX_SECONDS = 30 * 24 * 3600.0
"""Upper limit of a duration: 30 days."""

PositiveAmount = Annotated[float, Field(gt=0, le=MAX_COUNT)]
"""A number of cores, GPUs or minutes, or a speed; fractions are allowed."""

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
ShardsUrl = Annotated[str, BeforeValidator(_check_shards)]


class NetworkSection(StrictModel):
    """The macro skeleton around the cell."""

    channels: Channels = 16
    """Channels C of the first stage; the published networks have 16."""
    cells: Cells = 5
    """Cells N in each of the three stages; the published networks have 5."""


def check_distinct(values: _ValuesT) -> _ValuesT:
    """Reject an empty list and duplicates."""
    if not isinstance(values, str) and (len(set(values)) != len(values) or not values):
        raise ValueError(f"expected one or more distinct values, got {reprlib.repr(list(values))}.")
    return values


DistinctIntegers = Annotated[tuple[int, ...], AfterValidator(check_distinct)]
TrainingLengths = Annotated[tuple[Annotated[int, Field(ge=0)], ...], AfterValidator(check_distinct)]
TorchSeed = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]
"""A seed that is passed to PyTorch unchanged; all other seeds are hashed."""


RecipeNames = Annotated[str | tuple[str, ...], AfterValidator(check_distinct)]


class CheckpointsSection(StrictModel):
    """Checkpoint store, and the filters that select one training run per network."""

    path: ConfigPath
    """A checkpoint store, written by `robust201 import` or `robust201 run`."""
    epochs: PositiveInt | None = None
    """Training length of the weights in epochs; by default 200 if available, else the longest."""
    seed: int | None = None
    """Training seed of the weights; by default 777 if available, else the lowest."""


class RandomWeights(StrictModel):
    """Randomly initialised networks, one per seed."""

    seeds: Annotated[tuple[TorchSeed, ...], AfterValidator(check_distinct)] = (0,)
    """Each network is built after `torch.manual_seed(seed)`."""


class WeightsSection(StrictModel):
    """Weights of the networks: from a checkpoint store, from files, or randomly initialised."""

    path: ConfigPath | None = None
    """A checkpoint store."""
    recipe: RecipeNames | None = None
    """Name of a training recipe, or list of names; an empty name means published weights. Required if the weights of a
    network have several recipes."""
    epochs: TrainingLengths | None = None
    """Final weights of training runs with these numbers of epochs, and snapshots after these numbers of epochs."""
    steps: TrainingLengths | None = None
    """Snapshots after these numbers of iterations; with `epochs`, the selections are combined."""
    seeds: DistinctIntegers | None = None
    """Training seeds; by default all."""
    files: dict[str, ConfigPath] | None = None
    """Safetensors files by architecture."""
    random: RandomWeights | None = None
    """Randomly initialised networks."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        sources = [name for name in ("path", "files", "random") if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ValueError(f"expected one of `path`, `files` and `random`, got {' and '.join(sources) or 'none'}.")
        selectors = [name for name in ("recipe", "epochs", "steps", "seeds") if getattr(self, name) is not None]
        if selectors and self.path is None:
            raise ValueError(
                f"expected `path`, since `{selectors[0]}` selects weights from a store, got `{sources[0]}`."
            )
        return self

    @property
    def lengths(self) -> tuple[tuple[int | None, int | None], ...]:
        """The selected snapshots as pairs: (epochs, None) or (None, steps)."""
        epoch_pairs = tuple((epochs, None) for epochs in self.epochs or ())
        return epoch_pairs + tuple((None, steps) for steps in self.steps or ())

    @property
    def recipes(self) -> tuple[str, ...] | None:
        return (self.recipe,) if isinstance(self.recipe, str) else self.recipe


class SpaceFile(StrictModel):
    """A user's Python file that builds networks."""

    file: ConfigPath
    """Python file with a function that builds networks (docs/your-own.md)."""
    function: str = "build"
    """Name of the function."""
    gmacs: PositiveAmount = DEFAULT_GMACS
    """Cost of a forward pass of one image in billion multiply-accumulates, for estimates only."""


class NormalisationSection(StrictModel):
    """Per-channel mean and standard deviation of pixels in [0, 1] that a network was trained with."""

    mean: Annotated[tuple[FiniteFloat, ...], Field(min_length=1, max_length=3)]
    """Mean of each channel, of pixels in [0, 1]."""
    std: Annotated[tuple[PositiveFloat, ...], Field(min_length=1, max_length=3)]
    """Standard deviation of each channel, of pixels in [0, 1]."""

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if problem := Normalisation(self.mean, self.std).problem:
            raise ValueError(problem)
        return self


class CorruptionsSection(StrictModel):
    """Source of a dataset's corrupted images."""

    source: Literal["published", "generated"]
    """`published` (CIFAR-10-C, CIFAR-100-C) or `generated`; one is never used in place of the other."""
    path: ConfigPath | None = None
    """Folder of the .npy files; by default generated files are created in `RESULTS/corruptions`."""
    seed: int = 0
    """Seed of generated corruptions."""
    frost: Literal["synthetic", "imagecorruptions"] = "synthetic"
    """For generated corruptions: `synthetic` texture, or the five photographs of `imagecorruptions` (`robust201 fetch
    imagecorruptions-frost` says where to find them)."""
    frost_path: ConfigPath | None = None
    """Folder of the photographs."""

    @model_validator(mode="after")
    def _check_paths(self) -> Self:
        if self.source == "published" and self.path is None:
            raise ValueError("expected a path to the published .npy files, got none.")
        if self.frost == "imagecorruptions" and self.source == "generated" and self.frost_path is None:
            raise ValueError("expected `frost_path`, the folder of the five frost images, got none.")
        return self


class ResizeSection(StrictModel):
    """Resize rule: scale the shorter side to `shorter_side` pixels, then crop the centre to `image_size`."""

    shorter_side: PositiveInt = Resize().shorter_side
    """Pixels of the shorter side after resizing."""
    resampling: str = Resize().resampling
    """Filter of Pillow: `nearest`, `box`, `bilinear`, `hamming`, `bicubic` or `lanczos`."""


class DatasetSection(StrictModel):
    """Images of a dataset, and the source of their corrupted versions."""

    path: ConfigPath | None = None
    """Folder or file of the images; `digits` needs none."""
    form: str | None = None
    """Format of the images: `binary`, `python`, `imagenet16`, `idx`, `parquet`, `npz`, `folders` (JPEG or PNG files in
    one folder per class, inside `train` and `test` or `val`) or `digits`; by default detected from the path."""
    corruptions: CorruptionsSection | None = None
    """Source of corrupted images. Without it, the key `corruptions` is skipped with a warning, and a single corruption
    in `keys` is an error. `null` skips the key `corruptions` silently, and a single corruption with a warning."""
    classes: Annotated[int, Field(ge=2, le=MAX_CLASSES)] | None = None
    """For custom images: number of classes (protocol)."""
    image_size: Annotated[int, Field(ge=1, le=MAX_IMAGE_SIZE)] | None = None
    """For custom images: height and width (protocol)."""
    channels: Annotated[int, Field(ge=1, le=3)] | None = None
    """For custom images: 3, or 1 if they are grey (protocol)."""
    resize: ResizeSection | None = None
    """For custom JPEG and PNG files of other sizes: resize the shorter side, then crop the central square of
    `image_size` pixels, as torchvision does (protocol)."""
    normalisation: NormalisationSection | None = None
    """Mean and standard deviation; by default those of the dataset; `mnist` and custom images have none (protocol)."""

    def identity(self) -> dict[str, Any]:
        """Return the fields that affect results and are in neither the dataset table nor the hash of the images."""
        fields = {
            "classes": self.classes,
            "channels": self.channels,
            "resize": self.resize,
            "normalisation": self.normalisation,
        }
        return {
            name: value.model_dump(mode="json") if isinstance(value, StrictModel) else value
            for name, value in fields.items()
            if value is not None
        }


class ImagesSection(StrictModel):
    """A class-stratified subset of each split that is read; all images if `count` is None."""

    count: PositiveInt | None = None
    """Number of images, spread evenly over the classes; by default all."""
    seed: int = 0
    """Seed of the subset."""


class ExecutionSection(StrictModel):
    """Executor, workers and devices; not part of the protocol, although the device affects the last bits of results."""

    executor: Literal["inline", "ray"] = "ray"
    """`ray`: actors on this machine or a cluster; `inline`: this process."""
    workers: PositiveInt | None = None
    """Number of Ray actors; by default as many as the CPUs and GPUs allow. A higher number is an error, except on a
    cluster at `ray_address`, because the cluster may scale up."""
    ray_address: str | None = None
    """`auto` or the address of a running cluster; by default Ray is started on this machine. All machines must see
    results, weights and images under the same paths."""
    cpus_per_worker: PositiveAmount = 1.0
    """CPU cores reserved for each actor; with 0.5, four actors share two cores."""
    gpus_per_worker: PositiveAmount = 1.0
    """GPUs reserved for each actor, if any; with a fraction, actors share a GPU and its memory."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: a GPU if this machine has one when the run starts. A results folder keeps the device (`cpu` or `cuda`) of
    its first run, because results differ in the last bits; another device is an error. For workers on other machines
    (`ray_address`, `plan --save`, `submit`), set `cpu` or `cuda`."""
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS)] = 1
    """CPU threads of each worker."""
    micro_batch: PositiveInt | None = None
    """Maximum number of images in one pass through the network, halved if memory runs out. By default `batch_size` with
    the reference engine; with the fused engine 64 on a CPU, and on a GPU as many as its memory holds
    (docs/internals/engine.md)."""
    cuda_graphs: bool = True
    """On a GPU, let the fused engine record the kernels of each batch size once as a CUDA graph; `false` launches the
    kernels one by one, with the same results."""
    max_attempts: PositiveInt = 3
    """Number of worker deaths after which a part (a slice of the work on a network) counts as failed."""
    drain_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] | None = None
    """Time for parts in progress to finish after SIGTERM, SIGUSR1 or Ctrl-C; by default unlimited. After this time, the
    run abandons them and ends with exit code 3. A second signal stops the run immediately."""
    gmacs_per_second: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Assumed speed of a worker in billion multiply-accumulates per second, for estimates and for dividing the work; it
    does not affect results. By default 2000 for a GPU, and 10 for each CPU thread."""

    @property
    def requires_gpu(self) -> bool:
        """Whether workers must have a GPU."""
        return self.device == "cuda"

    def assumed_gmacs(self) -> float:
        """Return the assumed speed of one worker in billion multiply-accumulates per second.

        If `device` is ``auto``, workers are assumed to have a GPU.
        """
        if self.gmacs_per_second is not None:
            return self.gmacs_per_second
        return self.cpu_gmacs if self.device == "cpu" else GPU_GMACS

    @property
    def cpu_gmacs(self) -> float:
        """Default speed of one worker on a CPU, in the same unit as `assumed_gmacs`."""
        return CPU_GMACS * self.threads

    def estimate_hours(self, macs: float) -> dict[str, Any]:
        """Estimate the worker-hours of `macs` multiply-accumulates, as a JSON value.

        The CPU's speed is included if workers may lack GPUs.
        """
        may_lack_gpus = self.gmacs_per_second is None and self.device == "auto"
        return {
            "device": self.device,
            "estimated_worker_hours": macs / (self.assumed_gmacs() * 1e9) / 3600,
            "assumed_gmacs_per_second": self.assumed_gmacs(),
            "assumed_cpu_gmacs_per_second": self.cpu_gmacs if may_lack_gpus else None,
        }


def _check_space(value: object) -> object:
    if isinstance(value, Mapping):
        try:
            return SpaceFile.model_validate(value)
        except ValidationError as error:
            raise ConfigError(describe_problem(error, SpaceFile, ("space",))) from error
    if isinstance(value, SpaceFile) or value in tuple(SPACES):
        return value
    suggestion = did_you_mean(value, SPACES) if isinstance(value, str) else ""
    raise ValueError(f"expected {', '.join(SPACES)} or a Python file, got {reprlib.repr(value)}.{suggestion}")


def check_datasets(sections: Mapping[str, DatasetSection]) -> None:
    """Reject datasets that are neither built in nor fully described, and names that cannot be folder names."""
    for name, section in sections.items():
        if name not in DATASETS and (section.classes is None or section.image_size is None or section.path is None):
            raise ValueError(
                f"expected a known dataset, or a custom one with `path`, `classes` and `image_size`, got {name!r}."
                f"{did_you_mean(name, DATASETS)}"
            )
        is_name = re.fullmatch(rf"[A-Za-z0-9][\w.-]{{,{MAX_NAME_LENGTH - 1}}}", name) and name != "damaged"
        if name not in DATASETS and not is_name:
            raise ValueError(
                f"expected a name of up to {MAX_NAME_LENGTH} letters, digits, dots, dashes and underscores, other than "
                f"damaged, got {reprlib.repr(name)}."
            )
        _check_image_fields(name, section)


def _check_image_fields(name: str, section: DatasetSection) -> None:
    if name in DATASETS and (section.channels, section.resize) != (None, None):
        raise ValueError(f"{name}: `channels` and `resize` are for custom datasets only. Remove them.")
    try:
        spec = make_dataset_spec(name, section)
    except ConfigError as error:
        raise ValueError(f"{name}: {error}") from error
    for field, channel_values in (("mean", spec.normalisation.mean), ("std", spec.normalisation.std)):
        if len(channel_values) != spec.channels:
            raise ValueError(
                f"{name}.normalisation.{field}: expected {spec.channels} numbers, one per channel, got "
                f"{len(channel_values)}. Write one number per channel."
            )


def make_dataset_spec(name: str, section: DatasetSection) -> DatasetSpec:
    """Return the specification of a built-in or custom dataset, with the normalisation of its section, if any."""
    spec = DATASETS.get(name)
    if spec is None:
        assert section.classes is not None and section.image_size is not None  # noqa: S101, PT018 - `check_datasets`
        spec = custom_dataset(
            name,
            n_classes=section.classes,
            image_size=section.image_size,
            channels=section.channels or 3,
            resize=None if section.resize is None else Resize(**section.resize.model_dump()),
        )
    if section.normalisation is not None:
        spec = replace(spec, normalisation=Normalisation(section.normalisation.mean, section.normalisation.std))
    return spec


def _check_architectures(value: object) -> object:
    if isinstance(value, str | int) and value != "evaluated":
        suggestion = did_you_mean(value, ["evaluated"]) if isinstance(value, str) and value.isalpha() else ""
        raise ValueError(
            f"expected `evaluated` or a list such as [0, 21, 100-199], got {reprlib.repr(value)}.{suggestion}"
        )
    return value


ArchitectureNames = Annotated[
    Literal["evaluated"] | tuple[int | str, ...],
    BeforeValidator(_check_architectures),
]
SpaceChoice = Annotated[str | SpaceFile, BeforeValidator(_check_space)]


class BaseConfig(StrictModel):
    """Base model of sweep and training YAMLs. Subclasses declare the fields, so that the order of fields can differ."""

    if TYPE_CHECKING:
        space: SpaceChoice
        architectures: ArchitectureNames
        network: NetworkSection
        datasets: Mapping[str, DatasetSection]
        precision: Precision
        execution: ExecutionSection

    @field_validator("datasets", "keys", mode="before", check_fields=False)
    @classmethod
    def _fill_empty(cls, value: object) -> object:
        """Treat a name with an empty value as a section with all defaults."""
        if isinstance(value, Mapping):
            return {name: {} if fields is None else fields for name, fields in value.items()}
        return value

    @model_validator(mode="after")
    def _check_device(self) -> Self:
        if self.precision == "tf32" and self.execution.device == "cpu":
            raise ValueError("execution.device: expected auto or cuda, since CPUs do not support tf32, got cpu.")
        return self

    def make_space(self, code: Mapping[str, str]) -> Space:
        """Build the space. Networks of a user's file can be built only if ``code["space"]`` is the hash of the file."""
        space: Space
        if isinstance(self.space, SpaceFile):
            function = UserFunction(self.space.file, self.space.function, code.get("space", ""))
            space = UserFileSpace(function, self.space.gmacs)
        else:
            space = SPACES[self.space]
        return space if self.network == NetworkSection() else space.with_size(**self.network.model_dump())

    @property
    def selected_architectures(self) -> tuple[ArchitectureId, ...]:
        return self.make_space({}).select(self.architectures)

    def dataset_spec(self, dataset: str) -> DatasetSpec:
        return make_dataset_spec(dataset, self.datasets[dataset])

    def code_files(self) -> dict[str, Path]:
        """Return the user's Python files that workers execute, by YAML field."""
        return {"space": self.space.file} if isinstance(self.space, SpaceFile) else {}


def _default_measurements(fields: dict[str, Any]) -> tuple[str, ...]:
    """Return the default measurements, without confusion and confidence matrices if a dataset has many classes."""
    class_counts = [section.classes or 0 for section in fields.get("datasets", {}).values()]
    return ("accuracy",) if max(class_counts, default=0) > MAX_COUNTED_CLASSES else PUBLISHED_MEASUREMENTS


def _paper_keys() -> dict[str, dict[str, Any]]:
    return {key: {} for key in PAPER_KEYS}


class SweepConfig(BaseConfig):
    """A sweep: its protocol, which determines the results, and its execution, which affects at most their last bits."""

    format: Literal[1] = 1
    """Version of the file format."""
    name: Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=MAX_NAME_LENGTH)]
    """Name of the sweep: letters, digits, `_ . -`."""
    results: ConfigPath
    """Results folder with shards, plan and lock; created if absent."""
    shards: ShardsUrl | None = None
    """URL prefix for the shards, such as `s3://bucket/paper`; by default `RESULTS/shards` (docs/configuration.md). The
    results folder records the URL; a later run with another URL is an error."""
    take_imported: bool = False
    """Removed feature; the field stays because every plan and exported sweep contains it."""
    space: SpaceChoice = DEFAULT_SPACE
    """Architecture space: `nasbench201`, `zoo` (docs/zoo.md), or a Python file (docs/your-own.md) (protocol)."""
    architectures: ArchitectureNames = "evaluated"
    """`evaluated` (all 6,466), or a list of indices, ranges (`"0-99"`) and cell strings. An index stands for its
    isomorphism class, whose lowest index is evaluated (1832 means 309)."""
    network: NetworkSection = NetworkSection()
    """Macro skeleton of the cells (protocol)."""
    checkpoints: CheckpointsSection | None = None
    """Weights: one training run per network. Set either this field or `weights` (protocol, by hash)."""
    weights: WeightsSection | None = None
    """Weights: several per network, files, or random weights (docs/configuration-inputs.md) (protocol, by hash)."""
    datasets: dict[str, DatasetSection] = Field(min_length=1)
    """Images by name: `cifar10`, `cifar100`, `ImageNet16-120`, `digits`, `mnist`, `mnist-28` (28 × 28 pixels, one
    channel), or your own names (protocol, by hash)."""
    images: ImagesSection = ImagesSection()
    """Subset of each test split; by default all (protocol)."""
    keys: dict[str, dict[str, Any]] = Field(default_factory=_paper_keys)
    """Attacks, corruptions and measures, with their parameters; by default the paper's twenty keys (protocol)."""
    measurements: tuple[str, ...] = Field(
        default_factory=_default_measurements, json_schema_extra={"default": list(PUBLISHED_MEASUREMENTS)}
    )
    """Quantities to record (docs/protocol/measures.md); with more than 256 classes, only accuracy by default.
    `predictions` are always recorded, but exported only if listed here. `distances` adds eight bytes per image and
    strength."""
    engine: Literal["fused", "reference"] = "fused"
    """`fused`: robust201's own attacks on a network compiled for inference, all epsilons together. `reference`: Foolbox
    and AutoAttack on the published network, one call per epsilon (protocol)."""
    precision: Precision = "fp32"
    """Arithmetic of the networks; `tf32` and `bf16` are often faster but give different numbers
    (docs/protocol/images-and-processors.md) (protocol)."""
    seed: int = 0
    """Seed for all random numbers of attacks and measures (protocol)."""
    batch_size: PositiveInt = 250
    """Images per batch; part of the protocol of the reference engine and of custom tasks, which draw random numbers per
    batch."""
    execution: ExecutionSection = ExecutionSection()
    """Executor, workers and devices."""

    @field_validator("take_imported")
    @classmethod
    def _check_take_imported(cls, value: bool) -> bool:
        if value:
            raise ValueError("expected false, got true. Remove the field.")
        return value

    @field_validator("datasets")
    @classmethod
    def _check_datasets(cls, value: dict[str, DatasetSection]) -> dict[str, DatasetSection]:
        check_datasets(value)
        return value

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
                raise ValueError(f"expected a known measurement, got {name!r}.{did_you_mean(name, MEASUREMENTS)}")
        if not value or len(set(value)) != len(value):
            raise ValueError(f"expected one or more measurements without duplicates, got {list(value)}.")
        return tuple(name for name in MEASUREMENTS if name in value)

    @model_validator(mode="after")
    def _check_matrices(self) -> Self:
        matrices = [name for name in requested_columns(self.measurements) if COLUMNS[name].is_matrix]
        for dataset in self.datasets:
            n_classes = self.dataset_spec(dataset).n_classes
            if matrices and n_classes > MAX_MATRIX_CLASSES:
                raise ValueError(
                    f"measurements: {COLUMNS[matrices[0]].measurement} of the {n_classes:,} classes of {dataset} is "
                    f"too large; the maximum is {MAX_MATRIX_CLASSES:,} classes. Remove this measurement."
                )
        return self

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        sources = [name for name in ("checkpoints", "weights") if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ValueError(
                f"expected one of the fields `checkpoints` and `weights`, got {' and '.join(sources) or 'neither'}."
            )
        architectures = self.selected_architectures  # raises an error if a name is invalid
        files = self.weights.files if self.weights is not None else None
        without_file = [architecture for architecture in architectures if str(architecture) not in (files or {})]
        if files is not None and without_file:
            raise ValueError(
                "weights.files: expected a file for each architecture, got none for "
                f"{format_architecture(without_file[0])}."
            )
        return self

    @model_validator(mode="after")
    def _check_corruption_sources(self) -> Self:
        corruptions = [key for key in self.parameters if key in self.keys and self.tasks[key].kind == "corruption"]
        if "keys" not in self.model_fields_set or not corruptions:
            return self
        for name, section in self.datasets.items():
            if section.corruptions is None and "corruptions" not in section.model_fields_set:
                raise ValueError(
                    f"keys.{corruptions[0]}: expected a source of corrupted images for {name}, got none. Write "
                    f"`corruptions: {{source: generated}}` under datasets.{name}, or `corruptions: null` to exclude "
                    f"corruptions on {name}."
                )
        return self

    @model_validator(mode="after")
    def _check_engines(self) -> Self:
        for key, parameters in self.parameters.items():
            task = self.tasks[key]
            problem = parameters.unsupported_engine_reason(self.engine)
            if parameters.images_file is not None and task.shares_random_numbers_in_batch(self.engine):
                problem = (
                    f"images: expected no file, since with engine: {self.engine} an image's result depends on other "
                    "images of the batch. Remove it."
                )
            if self.engine not in task.engines:
                problem = f"expected engine: {task.engines[0]}, got {self.engine}. Set the engine, or remove the key."
            if problem is not None:
                raise ValueError(f"keys.{key}: {problem}")
            for dataset in self.datasets:
                spec = self.dataset_spec(dataset)
                problem = parameters.unsupported_classes_reason(spec.n_classes)
                if problem is None and task.constraint is not None:
                    problem = task.constraint.excessive_strength_reason(
                        parameters.strengths, (3, spec.image_size, spec.image_size)
                    )
                if problem is not None:
                    raise ValueError(f"keys.{key} on {dataset}: {problem}")
        return self

    @property
    def parameters(self) -> dict[str, Parameters]:
        """Parameters by key, with groups expanded; built-in keys in the order of `TASKS`, then custom tasks."""
        return _expand_keys(self.keys)

    @property
    def tasks(self) -> dict[str, Task]:
        """Tasks by key, built-in and custom."""
        return {key: make_task(key, parameters) for key, parameters in self.parameters.items()}

    @property
    def space_name(self) -> str:
        return self.space if isinstance(self.space, str) else UserFileSpace.name

    @property
    def has_several_weights(self) -> bool:
        """Whether networks may have several sets of weights in this sweep; if so, every unit names its weights."""
        return self.weights is not None and self.weights.files is None

    @property
    def image_selections(self) -> tuple[ImageSelection, ...]:
        """Selections of images that keys use instead of the sweep's images, without duplicates."""
        selections = (parameters.image_selection for parameters in self.parameters.values())
        return tuple(dict.fromkeys(selection for selection in selections if selection))

    def placeholder_weights(self, sha256: str) -> tuple[Weights, ...]:
        """Return placeholders for the weights of each network, all with the same hash, to count units."""
        section = self.weights
        if section is None or section.files is not None:
            return (Weights(sha256),)
        if section.random is not None:
            return tuple(Weights(sha256, seed=seed, is_random=True) for seed in section.random.seeds)
        return tuple(
            Weights(sha256, recipe, epochs, seed, steps=steps)
            for recipe in section.recipes or ("",)
            for epochs, steps in section.lengths or ((None, None),)
            for seed in section.seeds or (None,)
        )

    def code_files(self) -> dict[str, Path]:
        user_tasks = {
            key: parameters for key, parameters in self.parameters.items() if isinstance(parameters, UserTaskParameters)
        }
        return super().code_files() | {f"keys.{key}": parameters.file for key, parameters in user_tasks.items()}

    def resolve_keys(self, names: Iterable[str]) -> tuple[str, ...]:
        """Resolve published spellings and groups to keys of this sweep; other names are returned unchanged."""
        keys_by_published_key = {task.published_key: key for key, task in self.tasks.items()}
        return expand_keys((keys_by_published_key.get(name, name) for name in names), self.tasks)

    def keys_of(self, dataset: str) -> tuple[str, ...]:
        """Return the keys evaluated on a dataset: all keys, without corruptions if it has no corrupted images."""
        has_corrupted_images = self.datasets[dataset].corruptions is not None
        return tuple(key for key, task in self.tasks.items() if has_corrupted_images or task.kind != "corruption")


def _expand_keys(keys: Mapping[str, Mapping[str, Any]]) -> dict[str, Parameters]:
    """Return the parameters by key, with groups expanded (see `SweepConfig.parameters`)."""
    built_in: dict[str, Parameters] = {}
    custom: dict[str, Parameters] = {}
    for name, fields in keys.items():
        if name in KEY_GROUPS:
            members = [key for key in expand_keys([name]) if key not in keys]
            built_in |= {key: _parse_parameters(name, TASKS[key], fields) for key in members}
            continue
        if "file" in fields:
            custom[name] = parse_custom_task(name, fields)
            continue
        try:
            task = find_task(name)
        except ConfigError as error:
            suggestion = suggest_key(name, [*TASKS, *KEY_GROUPS])
            field = f"keys.{name}" if is_custom_name(name) else "keys"
            raise ConfigError(f"{field}: expected a known key, got {reprlib.repr(name)}.{suggestion}") from error
        if task.key in built_in:
            raise ValueError(
                f"expected one spelling of each key, got both {task.key!r} and {task.published_key!r}. Remove one of "
                "them."
            )
        built_in[task.key] = _parse_parameters(name, task, fields)
    return {key: built_in[key] for key in TASKS if key in built_in} | custom


def parse_custom_task(name: str, fields: Mapping[str, Any]) -> UserTaskParameters:
    """Parse a task of a user's file.

    Raises:
        ConfigError: a field is invalid.
        ValueError: the name is not allowed for a task.
    """
    if name in TASKS or not is_custom_name(name):
        raise ValueError(
            "expected an unused name for a custom task, such as my_attack, which begins with a letter and has up "
            f"to {MAX_NAME_BYTES} bytes, got {reprlib.repr(name)}."
        )
    return _validate(UserTaskParameters, fields, name)


class _ImagesFile(StrictModel):
    """The field `images` of a key."""

    file: ConfigPath


def _parse_parameters(name: str, task: Task, fields: Mapping[str, Any]) -> Parameters:
    """Parse the parameters of a key, and the file that chooses its images (``images: {file: …}``), if there is one."""
    if task.kind in ("corruption", "measure") or not isinstance(fields.get("images"), Mapping):
        return _validate(task.model, task.complete_fields(fields), name)
    images = _validate(_ImagesFile, fields["images"], name, "images")
    other_fields = {field: value for field, value in fields.items() if field != "images"}
    return _validate(task.model, task.complete_fields(other_fields), name).with_images(str(images.file))


def _validate(model: type[_ModelT], fields: Mapping[str, Any], *names: str) -> _ModelT:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(describe_problem(error, model, ("keys", *names))) from error
